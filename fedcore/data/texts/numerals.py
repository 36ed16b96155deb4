"""Recognises texts that are no numbers: 3,5 with a decimal comma, 12 %, 1 234, a date."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

from fedcore.data.cells import as_number
from fedcore.data.texts.spellings import likeness, plain

_WORDS = frozenset(("yes", "no", "y", "n", "t", "f", "on", "off", "ja", "nein", "oui", "non", "si"))
_DIGITS = r"[0-9]+"
_KINDS: tuple[tuple[str, str], ...] = (
    ("percentages; write the number without its sign", r".*[0-9]\s*%"),
    ("sums of money; write the number without its sign", r"[-+]?\s*[$€£¥]\s*[-+]?[0-9].*|.*[0-9]\s*[$€£¥]"),
    ("numbers with an integer's underscores; leave them out", rf"[-+]?{_DIGITS}(_{_DIGITS})+"),
    ("hexadecimal numbers; write decimal ones", r"[-+]?0x[0-9a-f]+"),
    ("numbers with a comma, of decimals or of thousands; write 1.234 or 1234", r"[-+]?[0-9]{1,3},[0-9]{3}"),
    ("numbers with separators of thousands; leave these out", r"[-+]?[0-9]{1,3}([,.' ][0-9]{3})+([.,][0-9]*)?"),
    ("numbers with a decimal comma; write a point", rf"[-+]?({_DIGITS})?,{_DIGITS}(e[-+]?{_DIGITS})?"),
    (
        "dates or times; write days or years as numbers, by a public rule",
        (r"[0-9]{1,4}[-/.][0-9]{1,2}[-/.][0-9]{1,4}([ t].*)?|[0-9]+:[0-9]{2}(:[0-9.]+)?"),
    ),
    ("bounds and no values; take the bound, by a public rule", r"[<>≤≥~=].*[0-9].*"),
    ("negative numbers in brackets or with the sign behind; write the sign in front", r"\([0-9.,]+\)|[0-9.,]+-"),
    ("fractions or ranges; write one number", rf"{_DIGITS}\s*(/|-|\.\.|to)\s*{_DIGITS}"),
    ("infinite", r"[-+]?(inf|infinity|1\.#inf)"),
    ("numbers with a unit; write the number alone", r"[-+]?[0-9][0-9.,]*\s*[^\W\d].*"),
)


def described(cells: Iterable[object]) -> str:
    """Counts the recognised kinds of texts that are no numbers, with remedies; '' for none."""
    found = Counter(kind for cell in cells if (kind := _kind(cell)) is not None)
    return "; ".join(f"{count} seem {kind}" for kind, count in found.most_common(3))


def _kind(cell: object) -> str | None:
    if not isinstance(cell, str):
        return None
    text = plain(cell)
    if as_number(cell) is not None:
        return "numbers beyond what a float holds"
    for kind, form in _KINDS:
        if re.fullmatch(form, text):
            return kind
    if likeness(cell) is None:
        return "codes for a missing value; name them in `missing`"
    if as_number(text) is not None:
        return "numbers in other digits, or with invisible characters; write plain digits"
    if text in _WORDS:
        return "answers; write 1 and 0, or give `categories`"
    return None
