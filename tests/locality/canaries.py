"""Values that are in one place only, and every form in which they might appear in another one.

A *strong* form is long enough to be a find by itself. A *weak* form, such as a float32 with 24 bits of its own or eight
digits with 27, needs a second one near it. Both must be of the same kind and owner.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from fedcore.data.records import prepare_records

DIVIDE_BY, BOUND = 1.7, 1.0
DIGITS = 9


@dataclass(frozen=True)
class Needle:
    """Bytes to look for; `anchor` is the start of its rarest four bytes."""

    owner: str
    form: str
    text: bytes
    anchor: int
    weak: bool = False


def prepared(rows: np.ndarray) -> np.ndarray:
    """A silo's prepared form of these rows (n, d), to the bit: (n, d + 1)."""
    return prepare_records(rows, np.zeros(len(rows)), True, BOUND, DIVIDE_BY).X


def canary_rows(rng: np.random.Generator, count: int, features: int) -> np.ndarray:
    """Rows (count, features) of full mantissas and mixed signs, which survive rounding and preparation."""
    rows: list[np.ndarray] = []
    while len(rows) < count:
        row = rng.uniform(0.1, 1.0, features)
        if all(_steady(value) for value in (*row, *prepared(row[None])[0])):
            rows.append(row * rng.choice([-1.0, 1.0], features))
    return np.array(rows)


def _steady(value: float) -> bool:
    """True if rounding at a later digit never changes the first nine, and shortens no form."""
    digits = f"{value:.17e}".replace(".", "")
    return digits[DIGITS] in "12345678" and digits[5] not in "09" and 0.02 < value < 1.0


def needles(owner: str, values: np.ndarray) -> list[Needle]:
    """All forms of all values."""
    found = [needle for value in np.unique(values) for needle in _forms(owner, float(value))]
    return list({(needle.owner, needle.text): needle for needle in found}.values())


def _forms(owner: str, value: float) -> Iterator[Needle]:
    little, big, single = struct.pack("<d", value), struct.pack(">d", value), struct.pack("<f", value)
    yield Needle(owner, "float64", little, 0)
    yield Needle(owner, "float64 big-endian", big, 4)
    yield Needle(owner, "float32", single, 0, weak=True)
    yield Needle(owner, "float32 big-endian", single[::-1], 0, weak=True)
    for text in {_leading(repr(number), DIGITS) for number in (abs(value), float(np.float32(abs(value))))}:
        yield Needle(owner, "decimal", text.encode(), len(text) - 4)
    rounded = f"{abs(value):.{DIGITS}g}"
    yield Needle(owner, "decimal", rounded.encode(), len(rounded) - 4)
    yield Needle(owner, "decimal", _leading(f"{abs(value):.17e}", DIGITS).encode(), 2)
    few = {f"{abs(value):.{digits}g}" for digits in (6, 7, 8)} | {f"{abs(value):.6f}", str(np.float32(abs(value)))}
    for text in few | {f"{abs(value):.6e}", f"{abs(value):.7e}"}:
        yield Needle(owner, "few digits", text.encode(), len(text) - 4 if "e" not in text else 2, weak=True)
    for text in {little.hex(), float(abs(value)).hex().partition(".")[2].partition("p")[0]}:
        for cased in {text, text.upper()}:
            yield Needle(owner, "hex", cased.encode(), 0)
    escaped = repr(little)[2:-1].encode()
    yield Needle(owner, "bytes as text", escaped, 0)
    for raw in (little, big):
        for shift in range(3):
            text = _inner_base64(raw, shift)
            for alphabet in {text, text.replace(b"+", b"-").replace(b"/", b"_")}:
                yield Needle(owner, "base64", alphabet, 0 if raw is little else 4)


def _leading(text: str, digits: int) -> str:
    """The first `digits` significant digits of a decimal."""
    seen = 0
    for position, letter in enumerate(text):
        seen += letter.isdigit() and (seen > 0 or letter != "0")
        if seen == digits:
            return text[: position + 1]
    return text


def _inner_base64(raw: bytes, shift: int) -> bytes:
    """The characters that depend on `raw` alone when it begins `shift` bytes into a group of three."""
    coded = base64.b64encode(bytes(shift) + raw + bytes(3))
    return coded[-(-8 * shift // 6) : (8 * (shift + len(raw))) // 6]
