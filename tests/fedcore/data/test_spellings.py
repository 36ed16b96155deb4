"""Spellings of a person's id: two that may be one person are one, and no id is read as a float."""

from __future__ import annotations

import time
import unicodedata
import uuid
from decimal import Decimal
from fractions import Fraction
from itertools import permutations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedcore.data.cells import Places, Refusal, exact_number, is_same, repeated, same_number, same_text
from fedcore.data.checks.judgement import Findings, _judge
from fedcore.data.persons import count_persons, ids_of, persons_of
from fedcore.data.schema import Column
from fedcore.data.texts.spellings import Alike, likeness, seems_number

LONG = 2**53


def persons(*cells, type=None):
    return persons_of(pa.chunked_array([pa.array(list(cells), type)]), "p")


def count(*cells, type=None):
    return count_persons(persons(*cells, type=type))


def hexadecimal(many: int) -> list[str]:
    """Different ids of eight hexadecimal digits, of which one is an e between decimal ones."""
    found = set()
    k = 0
    while len(found) < many:
        k += 1
        digits = f"{k * 7919 % 10**7:07d}"
        place = 1 + k % 6
        found.add(digits[:place] + "e" + digits[place:])
    return sorted(found)


def test_thirteen_thousand_hexadecimal_ids_are_as_many_persons():
    """Floats would make one person of all zeros times a power, one of all beyond 1e308, and one of 10e1 and 1e2."""
    ids = hexadecimal(13_000)
    as_floats = len({float(each) for each in ids})
    assert as_floats < 13_000, "these would be distinct floats, so nothing would be tested"
    assert count(*ids) == 13_000
    assert count("1e9000", "1e9001", "2e400", "00e1", "0e2", "10e1", "1e2", "12e45678") == 8


@pytest.mark.parametrize("write", [str, "{}.0".format, "{}.000".format, "+{}".format, "000{}".format])
def test_whole_numbers_beyond_a_float_s_digits_are_persons_of_their_own(write):
    ids = [write(LONG + k) for k in range(40)] + [write(10**400 + k) for k in range(3)]
    assert count(*ids) == 43
    assert likeness(f"{LONG + 1}.0") == Decimal(LONG + 1)


def test_integers_and_decimals_of_parquet_are_counted_to_their_last_digit():
    large = [2**63 - k for k in range(1, 20)]
    assert count(*large, type=pa.int64()) == 19
    assert count(*[Decimal(2**70 + k) for k in range(9)], type=pa.decimal128(38, 0)) == 9
    assert count(*[Decimal(10**60 + k) for k in range(9)], type=pa.decimal256(70, 0)) == 9
    assert count(*[Decimal(k) for k in range(9)], type=pa.decimal32(4, 0)) == 9
    column = pa.array([str(each) for each in large]).dictionary_encode()
    assert count_persons(persons_of(pa.chunked_array([column]), "p")) == 19


ONE = [
    ("7", "007", "7.0", " 7 ", "+7", "7.", "0007.00", "７", "\N{ARABIC-INDIC DIGIT SEVEN}"),
    ("Müller", unicodedata.normalize("NFD", "Müller"), "MÜLLER", "\tmüller\u00a0", "mü\u200bller"),
    ("ﬁnn", "finn", "FINN"),
    ("Straße", "STRASSE", "strasse"),
    ("AB 12", "ab\u00a012", "AB  12", "\ufeffAB 12", "ＡＢ 12"),
    ("a-1", "A\N{EN DASH}1", "a\N{NON-BREAKING HYPHEN}1"),
    ("100000", "1e+05", "1E+5", "1.0E5"),
    ("AB\0\0", "AB", "ab", b"ab", b"AB"),
    ("7", 7, 7.0, Decimal("7.00"), b"007"),
    ("1", True, "true", "1.0"),
    ("-3", "\N{MINUS SIGN}3", "-03.0"),
]


@pytest.mark.parametrize("spellings", ONE, ids=[str(each[0]) for each in ONE])
def test_what_may_be_one_person_is_one(spellings):
    assert len({likeness(each) for each in spellings}) == 1


APART = [
    "7",
    "8",
    "-7",
    "7a",
    "7.5",
    "12e45678",
    "1200e45676",
    "120e45677",
    "1e3",
    "1000",
    "10 00",
    "x",
    "0x7",
    "a_b",
    "ab",
    "9007199254740993.0",
    "9007199254740992.0",
    "9007199254740993.5",
    "1/2",
    "é",
    "e",
    "2020-01-02",
]


def test_what_cannot_be_one_person_is_several():
    assert len({likeness(each) for each in APART}) == len(APART)


@given(st.text(), st.text())
def test_spellings_that_are_equal_under_unicode_s_own_folding_are_one_person(one, other):
    """UAX 15 and the case folding of Unicode 3.13: NFKC of folded text; what follows it is only ever more alike."""
    folded = [unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", each.casefold())) for each in (one, other)]
    if folded[0] == folded[1]:
        assert likeness(one) == likeness(other)
    for form in ("NFC", "NFD", "NFKC", "NFKD"):
        assert likeness(unicodedata.normalize(form, one)) == likeness(one)
    assert likeness(f" {one}\t") == likeness(one)


@given(st.decimals(allow_nan=False, allow_infinity=False), st.decimals(allow_nan=False, allow_infinity=False))
def test_numbers_are_one_person_exactly_where_they_are_equal(one, other):
    spelt = [f"{each:f}" for each in (one, other)]
    same = Fraction(one) == Fraction(other)
    assert (likeness(spelt[0]) == likeness(spelt[1])) == same


@pytest.mark.parametrize(
    "cell",
    [
        "",
        " ",
        "NA",
        "<NA>",
        "NaN",
        "NaT",
        "None",
        "none",
        "NULL",
        "\\N",
        "?",
        "-",
        "\N{EM DASH}",
        ".",
        "unknown",
        "\u200b",
        "\0",
        "inf",
        None,
        float("nan"),
        float("inf"),
        b"",
        b"NA",
    ],
)
def test_a_code_for_nobody_is_no_person(cell):
    assert likeness(cell) is None
    if not isinstance(cell, float) and not (isinstance(cell, str) and not cell.isprintable()):
        with pytest.raises(Refusal, match="missing-person"):
            persons(cell, b"a" if isinstance(cell, bytes) else "a")


def test_bytes_that_are_no_text_are_persons_as_they_are():
    ids = [uuid.UUID(int=0xFFFF_FFFF_0000 + k) for k in range(50)]
    assert count(*[each.bytes for each in ids], type=pa.binary(16)) == 50
    assert count(*[each.bytes for each in ids], type=pa.uuid()) == 50
    assert count(*[k.to_bytes(4, "little") for k in range(1, 50)], type=pa.binary()) == 49
    assert count(b"north-1", b"north-1", b"NORTH-1", type=pa.large_binary()) == 1
    assert count(*np.arange(40, dtype=np.float16), type=pa.float16()) == 40


def test_an_operator_hears_of_merges_exponents_and_floats_that_are_too_short():
    found = ids_of(pa.chunked_array([pa.array(["7", " 7", "007", "x", "X", "12e4", "?", "y"])]), "p")
    assert sorted(map(set, found.merged), key=len) in ([{"7", "007"}, {"x", "X"}], [{"x", "X"}, {"7", "007"}])
    assert (found.unnamed, found.exponents, found.beyond) == (1, 1, 0)
    for type, first in ((pa.float16(), 2.0**11), (pa.float32(), 2.0**24), (pa.float64(), 2.0**53)):
        cells = [first - 1, first, first + 2, -first]
        assert ids_of(pa.chunked_array([pa.array(np.array(cells, type.to_pandas_dtype()))]), "p").beyond == 3


def test_where_in_doubt_values_of_categories_and_classes_are_apart():
    for cell, value in (
        ("007", 7),
        ("7", "07"),
        ("12e4", 120000),
        ("x", "X"),
        ("12e4", "120000"),
        (120000, "12e4"),
        (unicodedata.normalize("NFD", "é"), "é"),
        (b"x", "x"),
        ("1", "１"),
    ):
        assert not is_same(cell, value) and Alike([value, "other"]).nearly(cell)
    for cell, value in (("1.0", 1), (1.0, "1"), ("true", 1), (" x ", "x"), ("1e+05", 100000), (Decimal("0.10"), 0.1)):
        assert is_same(cell, value)
    assert Places(("01", 1)).of("01") == 0 and Places(("01", 1)).of("1") == 1
    assert Alike(["x"]).nearly("y") is None and Alike(["x"]).nearly("") is None
    assert not is_same(LONG + 1, str(LONG)) and not is_same(f"{LONG + 1}.0", LONG)
    assert not is_same(Decimal(LONG + 1), float(LONG))


CELLS = ["", "a", " a", "A", "ä", "1", "01", 1, 1.0, True, "true", "1.0", "12e4", 120000, "120000", 1.5, "1.50", b"a"]


def test_looking_a_cell_up_finds_what_comparing_it_with_each_value_finds():
    """All lists of three of these values, by the rule itself: equal texts are matched before equal numbers."""
    for values in permutations(("a", "A", "1", "01", 1, "1.0", "12e4", 120000, 1.5), 3):
        places, alike = Places(values), Alike(values)
        again = [each for at, each in enumerate(values) if any(is_same(each, other) for other in values[:at])]
        assert repr(repeated(values)) == repr(again[0] if again else None)
        for cell in CELLS:
            fits = [place for place, value in enumerate(values) if same_text(cell, value)]
            fits = fits or [place for place, value in enumerate(values) if same_number(cell, value)]
            assert places.of(cell) == (fits[0] if len(fits) == 1 else None)
            close = [
                value
                for value in values
                if likeness(cell) is not None
                and (
                    likeness(cell) == likeness(value)
                    or (exact_number(cell) is not None and exact_number(cell) == exact_number(value))
                )
            ]
            message = alike.nearly(cell)
            assert (message is None) == (not close) and (message is None or message.startswith(f"{close[0]!r} ("))


def test_many_different_cells_of_many_categories_are_looked_up():
    """Ten thousand of each once took 1e8 comparisons, several minutes."""
    column = Column(name="code", categories=tuple(f"Code {each}" for each in range(10_000)), missing=[])
    cells = pa.chunked_array([pa.array([f"code {each}" for each in range(10_000)])])
    began, found = time.process_time(), Findings(len(cells))
    _judge(column, cells, found)
    assert np.all(column.places(cells) == 10_000)
    assert "10000 cells are no category, and may be meant as one: 'code 0' for 'Code 0'" in "".join(found.notes)
    assert time.process_time() - began < 10
    quiet = Findings(len(cells), noting=False)
    _judge(column, cells, quiet)
    assert quiet.doubts == found.doubts and not any("meant" in each for each in quiet.notes)


def test_what_seems_a_number_and_is_a_text():
    assert [seems_number(each) for each in ("12e4", "12E4", "1e+4", "1.5e4", "e4", 12e4)] == [True, True] + [False] * 4


@pytest.mark.parametrize("mark", ["\ufe0f", "\u034f", "\u3164", "\u180b", "\U000e0101", "\u200b", "\u00ad"])
def test_what_nobody_sees_tells_no_persons_apart(mark):
    assert count("Anna", f"An{mark}na", f"Anna{mark}", "Hanna") == 2
