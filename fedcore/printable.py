"""Checks of foreign texts at input, and their escapes at output.

A name may be markup, a formula or a command to a terminal. Control characters are refused at input. Each output
escapes the characters that have a meaning there.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping

from fedcore.errors import InputError

_CONTROLS = {"Cc", "Cf", "Cs", "Zl", "Zp"}
"""Unicode categories: controls, invisible and direction characters, surrogates, line and paragraph separators."""
_MARKDOWN = re.compile(r"([\\`*\[\]|~$]|:(?=//)|(?<=www)\.|@|(?<![^\W_])_|_(?![^\W_]))")
"""Starts of inline markup in CommonMark, and of GitHub's links without brackets."""
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""Characters with which a formula begins in a spreadsheet, full-width forms included (OWASP, CSV injection)."""


def control(text: str) -> str | None:
    """The first control character of a text; None if it has none."""
    if text.isprintable():
        return None
    return next((each for each in text if unicodedata.category(each) in _CONTROLS), None)


def plain_name(text: str, what: str = "name") -> str:
    """Returns the name. Raises InputError naming the first control character in it."""
    if (found := control(text)) is not None:
        called = unicodedata.name(found, "no letter")
        raise InputError(
            f"{what} {on_terminal(text[:60])!r} holds the control character U+{ord(found):04X} ({called.lower()}); "
            "names have none"
        )
    return text


def plain_names(value: object, what: str) -> None:
    """Raises InputError for a control character in a text of a value, lists and keys included."""
    if isinstance(value, str):
        plain_name(value, what)
    elif isinstance(value, Mapping):
        for key, each in value.items():
            plain_names(key, what)
            plain_names(each, what)
    elif isinstance(value, list | tuple | set | frozenset):
        for each in value:
            plain_names(each, what)


def on_terminal(text: str) -> str:
    """The text with control characters as escapes; line ends and tabs stay."""
    if text.isprintable():
        return text
    return "".join(each if each in "\n\t" or control(each) is None else _escaped(each) for each in text)


def _escaped(character: str) -> str:
    number = ord(character)
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


def in_markdown(text: str) -> str:
    """The text escaped for Markdown: no markup, no link, no HTML, one line."""
    one_line = " ".join(on_terminal(text).split())
    html = one_line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _MARKDOWN.sub(r"\\\1", html)


def in_cell(value: object) -> object:
    """A cell's value for CSV; an apostrophe goes before a text that a spreadsheet would compute."""
    if not isinstance(value, str):
        return value
    text = on_terminal(value)
    return f"'{text}" if text.lstrip(" ").startswith(_FORMULA) and not _is_number(text) else text


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return text.isascii()


def in_drawing(text: str) -> str:
    """The text escaped for matplotlib, which reads formulas between two dollar signs."""
    return on_terminal(text).replace("$", r"\$")
