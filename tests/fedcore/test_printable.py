"""Names that are markup, formulas or orders: refused or escaped."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedcore.configfile.reading import validated
from fedcore.data.cells import Refusal
from fedcore.data.columns import header
from fedcore.data.tabular import FilesData
from fedcore.errors import InputError
from fedcore.printable import in_cell, in_drawing, in_markdown, on_terminal, plain_name
from fedcore.silo.policies.policy import Policy

CONTROLS = [
    "\x1b[31m",
    "\x9b2J",
    "\x1b]0;x\x07",
    "a\nb",
    "a\tb",
    "\u202eabc",
    "\u2066a",
    "a\u200bb",
    "\ufeffa",
    "\u2028",
    "\ud800",
]


@pytest.mark.parametrize("text", CONTROLS, ids=ascii)
def test_control_characters_are_refused_wherever_a_name_enters(text):
    with pytest.raises(InputError, match="control character"):
        plain_name(text)
    plain = {"silos": [{"name": "a", "path": "a.csv"}], "features": ["x"], "label": "y"}
    for change in (
        {"label": text},
        {"features": [text]},
        {"person": f"p{text}"},
        {"classes": ["no", text]},
        {"test": text},
        {"silos": [{"name": "a", "path": text}]},
        {"features": {text: {"range": [0, 1]}}},
        {"features": {"x": {"categories": ["a", text]}}},
    ):
        with pytest.raises(InputError):
            validated(FilesData, plain | change, "config.yaml")
    with pytest.raises(InputError):
        validated(Policy, {"methods": [text], "delta": 1e-5}, "policy.yaml")


@pytest.mark.parametrize("name", ["Größe", "年齢", "a b", "x<script>", "=1+1", "[bold]", "price $"])
def test_other_names_are_plain(name):
    assert plain_name(name) == name


@pytest.mark.parametrize("text", [text for text in CONTROLS if "\n" not in text and text.isascii()], ids=ascii)
def test_a_header_with_a_control_character_is_refused(tmp_path, text):
    path = tmp_path / "silo.csv"
    path.write_bytes(f"age,col{text}umn\n1,2\n".encode())
    with pytest.raises(Refusal) as refusal:
        header(str(path), "csv")
    assert text not in refusal.value.sentence


@given(st.text())
def test_no_order_reaches_a_terminal_or_a_page(text):
    for shown in (on_terminal(text), in_markdown(text), in_drawing(text), str(in_cell(text))):
        seen = {unicodedata.category(each) for each in shown if each not in "\n\t"}
        assert not seen & {"Cc", "Cf", "Cs", "Zl", "Zp"}
        shown.encode()


@pytest.mark.parametrize("text", ["=1+1", "+1+1", "-1+cmd|' /C calc'!A0", "@SUM(A1)", "\t=1", "\r=1", "  =1", "＝1"])
def test_a_formula_is_a_text_in_a_cell(text):
    assert not str(in_cell(text)).lstrip().startswith(("=", "+", "-", "@", "＝"))


@pytest.mark.parametrize("value", ["-0.5", "+1e-3", -2, 0.5, None, "plain", True])
def test_numbers_and_texts_stay_as_they_are_in_a_cell(value):
    assert in_cell(value) == value


@pytest.mark.parametrize(
    "text, shown",
    [
        ("<script>", "&lt;script&gt;"),
        ("[a](javascript:b)", r"\[a\](javascript:b)"),
        ("![a](b)", r"!\[a\](b)"),
        ("**a**", r"\*\*a\*\*"),
        ("`a`", r"\`a\`"),
        ("a|b", r"a\|b"),
        ("http://a", r"http\://a"),
        ("_a_", r"\_a\_"),
        ("a&lt;", "a&amp;lt;"),
        ("test_error localized-mbsgd 0.5 - (a)", "test_error localized-mbsgd 0.5 - (a)"),
    ],
)
def test_markup_is_text_on_a_page(text, shown):
    assert in_markdown(text) == shown
