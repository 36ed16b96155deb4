"""Written YAML reads back as the same values with this project's reader, also texts that look like numbers."""

from __future__ import annotations

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from fedcore.configfile.yaml_loader import Loader
from fedcore.configfile.yaml_writer import quoted, yaml_block, yaml_text

TEXTS = st.one_of(
    st.text(max_size=8),
    st.from_regex(r"[-+.0-9_:eExob]{1,12}", fullmatch=True),
    st.sampled_from(["010", "1_0", "1:30", "12e45678", "0o17", "0b1", "yes", "null", "~", "=", "\x85 ", "\u2028"]),
)
VALUES = st.recursive(
    st.one_of(TEXTS, st.integers(-(2**70), 2**70), st.floats(allow_nan=False), st.booleans(), st.none()),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXTS, inner, max_size=3)),
    max_leaves=6,
)


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(TEXTS, VALUES, max_size=3))
def test_values_come_back(values):
    for text in (yaml_text(values), yaml_block(values)):
        assert repr(yaml.load(text, Loader)) == repr(values)


@settings(max_examples=150, deadline=None)
@given(TEXTS)
def test_a_quoted_text_is_one_line_and_comes_back(text):
    assert "\n" not in quoted(text)
    assert yaml.load(f"a: [{quoted(text)}]", Loader) == {"a": [text]}


@pytest.mark.parametrize("text", ["010", "090", "1_0", "1:30", "1e3", "12e45678", "yes", "2020-01-01", "null"])
def test_what_either_version_reads_as_something_else_is_quoted(text):
    assert f"'{text}'" in yaml_text({"missing": [text]}) and f"'{text}'" in yaml_block({"missing": [text]})
