"""What different spellings have in common that may mean the same: 7, 007 and 7.0, or one text in two Unicode forms.

Of persons such spellings are one, since a person of whom some rows count for another has less than the guarantee. Of
categories, classes and codes they are apart, and an operator is told. No number here is a float: ids beyond 2^53 would
become each other.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Hashable, Sequence
from decimal import Decimal

from fedcore.data.cells import MISSING, Value, exact_number

_HEXADECIMAL = re.compile(r"[0-9]+e[0-9]+")
"""Eight digits of hexadecimal ids may be of this form, and no software writes a number so: the exponent has a sign, or
there is a point before."""
_INVISIBLE = ("Cc", "Cf")
"""Categories of Unicode of which nothing is seen: null characters that pad a text, marks of direction, zero widths."""
_IGNORABLE = re.compile("[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]")
"""Characters of other categories that Unicode calls ignorable by default: fillers, joiners, selectors of variants."""


def likeness(cell: object) -> Hashable:
    """What all spellings have in common that may mean what this cell does; None for a cell that means nothing.

    A number is what it is to its last digit, whatever its zeros in front and after the point; a text is taken without
    capitals, blanks around it, kinds of blanks and dashes within, invisible characters and forms of Unicode. 12e45678
    is a text. Bytes are the text that they spell, if they spell one that can be seen.
    """
    if isinstance(cell, bytes):
        text = _as_text(cell) if cell else ""
        return cell if text is None else _of_text(text)
    if isinstance(cell, str):
        return _of_text(cell)
    if isinstance(cell, int):
        return int(cell)
    if isinstance(cell, float | Decimal):
        return exact_number(cell)
    return cell  # None, a date, a time


class Alike:
    """Of some values, by what they may mean: which of them a cell may be meant as that is none of them."""

    def __init__(self, values: Sequence[Value]) -> None:
        self._values = values
        self._meant: dict[Hashable, int] = {}
        self._numbers: dict[Decimal, int] = {}
        for place, value in enumerate(values):
            self._meant.setdefault(likeness(value), place)
            if (number := exact_number(value)) is not None:
                self._numbers.setdefault(number, place)

    def nearly(self, cell: object) -> str | None:
        """The value that such a cell may mean, and how the cell is spelled, for a sentence; None for none."""
        if (mine := likeness(cell)) is None:
            return None
        number = exact_number(cell)
        found = [self._meant.get(mine), None if number is None else self._numbers.get(number)]
        places = [place for place in found if place is not None]
        return None if not places else f"{(value := self._values[min(places)])!r} ({_difference(cell, value)})"


def _difference(cell: object, value: Value) -> str:
    if isinstance(cell, bytes):
        return "bytes and no text"
    if not isinstance(cell, str) or not isinstance(value, str):
        return "another spelling of a number"
    if cell.strip().casefold() == value.strip().casefold():
        return "other capitals"
    if unicodedata.normalize("NFC", cell.strip()) == unicodedata.normalize("NFC", value.strip()):
        return "another Unicode form"
    if exact_number(cell) is not None:
        return "another spelling of a number"
    return "other blanks, dashes, characters that nobody sees, or Unicode forms"


def seems_number(cell: object) -> bool:
    """Whether a cell is a text that could be a number in exponent form and is taken for the text that it is."""
    return isinstance(cell, str) and _HEXADECIMAL.fullmatch(plain(cell)) is not None


def plain(text: str) -> str:
    """A text without what may differ between two spellings of it."""
    if text.isascii() and text.isprintable():
        return " ".join(text.lower().split())
    for _ in range(2):  # capitals of compatible characters appear with their plain form
        text = unicodedata.normalize("NFKC", unicodedata.normalize("NFD", text).casefold())
    text = "".join(map(_plain_character, text))
    text = _IGNORABLE.sub("", text)
    words = "".join(mark for mark in " ".join(text.split()) if unicodedata.category(mark) not in _INVISIBLE)
    return " ".join(words.split())


def _plain_character(mark: str) -> str:
    if mark.isdecimal():
        return str(unicodedata.decimal(mark))
    return "-" if unicodedata.category(mark) == "Pd" or mark == "\N{MINUS SIGN}" else mark


def _of_text(text: str) -> Hashable:
    text = plain(text)
    if text in _NOBODY:
        return None
    number = None if _HEXADECIMAL.fullmatch(text) else exact_number(text)
    return text if number is None else number


def _as_text(cell: bytes) -> str | None:
    try:
        text = cell.decode()
    except UnicodeDecodeError:
        return None
    return text if text.isprintable() else None


_NOBODY = frozenset(map(plain, MISSING)) | {
    "<na>",
    "nat",
    "nil",
    "\\n",
    "?",
    "-",
    "--",
    ".",
    "unknown",
    "inf",
    "-inf",
    "+inf",
    "infinity",
    "-infinity",
}
"""Texts that stand for no value in tables of databases, statistics and spreadsheets."""
