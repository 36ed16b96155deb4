"""Scalars as YAML 1.2 reads them, and the spellings that are refused because YAML 1.1 reads them otherwise."""

from __future__ import annotations

import math
import re

import pytest
import yaml

from fedcore.configfile.reading import read_yaml, value_of
from fedcore.configfile.yaml_loader import Loader
from fedcore.errors import InputError

READ = {
    "0": 0,
    "-0": 0,
    "+5": 5,
    "17": 17,
    "0x1f": 31,
    "0.5": 0.5,
    "-.5": -0.5,
    "1.": 1.0,
    "1e3": 1000.0,
    "1E-5": 1e-5,
    "1.5e3": 1500.0,
    ".inf": math.inf,
    "-.inf": -math.inf,
    "true": True,
    "FALSE": False,
    "null": None,
    "~": None,
    "yes": "yes",
    "no": "no",
    "on": "on",
    "2020-01-01": "2020-01-01",
    "2020-01-01T00:00:00Z": "2020-01-01T00:00:00Z",
    "1,5": "1,5",
    "12:3a": "12:3a",
    "1e": "1e",
    "0o8": "0o8",
    "=": "=",
    "<<": "<<",
    "10_a": "10_a",
    "9007199254740992.0": 2.0**53,
    "'010'": "010",
    '"1_0"': "1_0",
    "'1:30'": "1:30",
    "'12e45678'": "12e45678",
}
"""The value of each plain or quoted scalar, by hand from YAML 1.2.2, chapter 10.3."""
REFUSED = {
    "010": "10 in YAML 1.2 and 8 in YAML 1.1",
    "-020": "-20 in YAML 1.2 and -16 in YAML 1.1",
    "090": "90 in YAML 1.2 and a text in YAML 1.1",
    "007": "write 7, or '007' for the text",
    "00": "write 0, or '00'",
    "0777": "777 in YAML 1.2 and 511 in YAML 1.1",
    "08.5": "write 8.5, or '08.5'",
    "1_0": "a text in YAML 1.2 and 10 in YAML 1.1",
    "1_000.5": "a text in YAML 1.2 and 1000.5 in YAML 1.1",
    "1:30": "a text in YAML 1.2 and 90 in YAML 1.1",
    "12:30": "a text in YAML 1.2 and 750 in YAML 1.1",
    "12:30:45": "a text in YAML 1.2 and 45045 in YAML 1.1",
    "1:30.5": "a text in YAML 1.2 and 90.5 in YAML 1.1",
    "0b11": "a text in YAML 1.2 and 3 in YAML 1.1",
    "0o17": "15 in YAML 1.2 and a text in YAML 1.1",
    "12e45678": "more than a float holds",
    "9007199254740993.0": "is 9007199254740992 as a number",
    "123456789012345678e3": "write '123456789012345678e3' for the text",
}


@pytest.mark.parametrize("text", READ)
def test_what_is_read(text):
    found = yaml.load(f"a: [{text}]", Loader)["a"][0] if "," not in text else yaml.load(text, Loader)
    assert found == READ[text] and type(found) is type(READ[text])


@pytest.mark.parametrize("text", REFUSED)
def test_what_has_two_readings_is_refused_where_it_stands(tmp_path, text):
    path = tmp_path / "config.yaml"
    path.write_text(f"data:\n  range: [{text}, 1]\n")
    with pytest.raises(InputError) as raised:
        read_yaml(path, ())
    assert str(raised.value).startswith(f"{path}, line 2: {text} is ") and REFUSED[text] in str(raised.value)
    path.write_text("seed: 1")
    with pytest.raises(InputError, match=f"'seed={re.escape(text)}': {re.escape(text)} is "):
        read_yaml(path, [f"seed={text}"])
    with pytest.raises(InputError, match=f"grid: {re.escape(text)} is "):
        value_of(text, "grid")


def test_keys_and_explicit_tags_are_read_alike():
    with pytest.raises(yaml.YAMLError, match=r"10 in YAML 1\.2 and 8"):
        yaml.load("010: 1", Loader)
    with pytest.raises(yaml.YAMLError, match="'1_0' is no number"):
        yaml.load("!!int '1_0'", Loader)
    assert yaml.load("!!int '010'", Loader) == 10
    assert yaml.load("!!float 3", Loader) == 3.0 and isinstance(yaml.load("!!float 3", Loader), float)
    assert math.isnan(yaml.load(".nan", Loader))
