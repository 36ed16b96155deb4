"""Normal form of spellings that may mean the same: 7, 007 and 7.0, or two Unicode forms.

Ids of persons with one normal form are one person, since a person split in two would have a weaker guarantee. For
categories, classes and codes such spellings differ, and a note informs the operator. Numbers are never floats here,
since different ids beyond 2^53 would become equal.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Hashable, Sequence
from decimal import Decimal

from fedcore.data.cells import MISSING, Value, exact_number

_HEXADECIMAL = re.compile(r"[0-9]+e[0-9]+")
"""Form of some hexadecimal ids of digits. Software writes numbers with a sign in the exponent, or a point before it."""
_INVISIBLE = ("Cc", "Cf")
"""Unicode categories of invisible characters: null characters that pad a text, direction marks, zero widths."""
_IGNORABLE = re.compile("[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]")
"""Characters of other categories that Unicode calls ignorable by default: fillers, joiners, selectors of variants."""


def likeness(cell: object) -> Hashable:
    """Normal form of a cell, equal for spellings that may mean the same; None for no value.

    A number is exact to its last digit, without leading zeros and zeros after the point. A text loses capitals, outer
    blanks, invisible characters, Unicode forms, and kinds of blanks and dashes. 12e45678 is a text. Bytes count as
    the text that they encode, if it is printable.
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
    """Index of values by normal form, which finds the value that a cell may be a misspelling of."""

    def __init__(self, values: Sequence[Value]) -> None:
        self._values = values
        self._meant: dict[Hashable, int] = {}
        self._numbers: dict[Decimal, int] = {}
        for place, value in enumerate(values):
            self._meant.setdefault(likeness(value), place)
            if (number := exact_number(value)) is not None:
                self._numbers.setdefault(number, place)

    def nearly(self, cell: object) -> str | None:
        """The value that a cell may mean, with the difference in spelling; None for none."""
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
    return "other blanks, dashes, invisible characters or Unicode forms"


def seems_number(cell: object) -> bool:
    """Checks for a text that looks like a number in exponent form but counts as a text."""
    return isinstance(cell, str) and _HEXADECIMAL.fullmatch(plain(cell)) is not None


def plain(text: str) -> str:
    """A text without case, outer blanks, invisible characters, kinds of blanks and dashes."""
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
    if text in _NO_VALUE:
        return None
    number = None if _HEXADECIMAL.fullmatch(text) else exact_number(text)
    return text if number is None else number


def _as_text(cell: bytes) -> str | None:
    try:
        text = cell.decode()
    except UnicodeDecodeError:
        return None
    return text if text.isprintable() else None


_NO_VALUE = frozenset(map(plain, MISSING)) | {
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
"""Texts for a missing value in databases, statistics packages and spreadsheets."""
