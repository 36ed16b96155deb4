"""The rows that fedcore ships for `advise`: read back whole, and refused where their file is missing or damaged."""

import pytest

from fedcore.advice.shipped import ROWS, advice_rows, as_bytes
from fedcore.errors import InputError


def test_rows_are_read_back_as_they_were_written(tmp_path):
    rows = advice_rows()
    (tmp_path / "rows.json").write_bytes(as_bytes(rows))
    assert len(rows) > 1 and advice_rows(tmp_path / "rows.json") == rows
    assert as_bytes(rows) == ROWS.read_bytes()


@pytest.mark.parametrize("damage", [lambda whole: whole[:-20], lambda whole: b"[]" + whole, lambda _: b"\xff"])
def test_a_damaged_table_is_refused_by_its_name(tmp_path, damage):
    path = tmp_path / "rows.json"
    with pytest.raises(InputError, match=r"rows\.json does not exist; install fedcore again"):
        advice_rows(path)
    path.write_bytes(damage(ROWS.read_bytes()))
    with pytest.raises(InputError, match=r"rows\.json cannot be read; copy it again from fedcore"):
        advice_rows(path)
