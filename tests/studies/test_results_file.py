"""Published results read back as they were written; everything else in such a file is refused by its line."""

from __future__ import annotations

import pytest

from fedcore.errors import InputError
from studies.results.measured import Measured, Place
from studies.results.results_file import COLUMNS, LARGEST, read_results, write_results

PLACE = Place("plain", "test error", "mbsgd, average last", "(0, 0)", "privacy.epsilon", "0.5")
ROWS = (
    Measured(PLACE, "0.250", 0),
    Measured(PLACE, "0.270", 1, 2),
    Measured(PLACE, "0.260", trials=2, spread="0.013", spread_of="interval 95%"),
    Measured(Place("plain", "gap", "DP-fedavg"), "-1.5e-07", 0),
)
LINE = "plain,test error,mbsgd,,privacy.epsilon,1,0,,1,0.25,,"


def test_rows_read_back_as_they_were_written(tmp_path):
    path = tmp_path / "small.csv"
    write_results(path, ROWS)
    assert read_results(path) == ROWS
    assert path.read_text().splitlines()[0] == ",".join(COLUMNS)
    assert '"mbsgd, average last"' in path.read_text()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (LINE.replace("0.25", "nan"), "value = 'nan' must be a finite number"),
        (LINE.replace("0.25", "inf"), "finite"),
        (LINE.replace("0.25", "1e999"), "finite"),
        (LINE.replace("0.25", "1e+999"), "finite"),
        (LINE.replace("0.25", "0x10"), "finite"),
        (LINE.replace("0.25", "=1+1"), "finite"),
        (LINE.replace("0.25", "0." + "3" * 50), "finite"),
        (LINE.replace("0.25", ""), "finite"),
        (LINE.replace(",0,,1,", ",-1,,1,"), "seed = '-1' must be a whole number"),
        (LINE.replace(",0,,1,", ",0,,2,"), "trials"),
        (LINE.replace(",0,,1,", ",,1,1,"), "a repetition needs a seed"),
        (LINE.replace(",0,,1,", ",,,0,"), "trials"),
        (LINE.replace(",0,,1,", ",,,,"), "trials"),
        (LINE.replace("0.25,,", "0.25,0.1,"), "spread_of"),
        (LINE.replace("0.25,,", "0.25,0.1,about"), "spread_of"),
        (LINE.replace("0.25,,", "0.25,-0.1,deviation"), "at least 0"),
        (LINE.replace("mbsgd", "=cmd()"), "curve must be printable ASCII"),
        (LINE.replace("mbsgd", "mb\x1bsgd"), "curve must be printable ASCII"),
        (LINE.replace("mbsgd", ""), "curve must be printable ASCII"),
        (LINE.replace("plain", "p" * 300), "figure must be printable ASCII"),
        (f"{LINE},", "13 values, and there are 12 columns"),
        ("plain", "1 values"),
        (f"{LINE}\n{LINE}", "line 3: a second value of plain: test error of mbsgd at privacy.epsilon 1"),
        (LINE.replace("mbsgd", '"mbsgd'), "line"),
        (LINE.replace("mbsgd", "größe"), "not ASCII"),
        ("", "no line"),
    ],
)
def test_other_lines_are_refused(tmp_path, line, message):
    path = tmp_path / "small.csv"
    path.write_text(f"{','.join(COLUMNS)}\n{line}\n".replace("\n\n", "\n"))
    with pytest.raises(InputError, match=r"small\.csv") as refused:
        read_results(path)
    assert message in str(refused.value)


def test_other_columns_and_files_are_refused(tmp_path):
    path = tmp_path / "small.csv"
    with pytest.raises(InputError, match="do not exist"):
        read_results(path)
    path.write_text(",".join(COLUMNS[::-1]))
    with pytest.raises(InputError, match="the columns must be figure, measure"):
        read_results(path)
    with open(path, "wb") as file:
        file.truncate(LARGEST + 1)
    with pytest.raises(InputError, match="cannot be read"):
        read_results(path)


def test_rows_that_no_file_may_have_are_not_written(tmp_path):
    path = tmp_path / "small.csv"
    with pytest.raises(InputError, match="finite"):
        write_results(path, [Measured(PLACE, "nan", 0)])
    with pytest.raises(InputError, match="a second value"):
        write_results(path, [ROWS[0], ROWS[0]])
    assert not list(tmp_path.iterdir())
