"""The two tables over all figures of a study, against numbers by hand."""

from __future__ import annotations

from fedcore.advice.shipped import as_bytes
from fedcore.advice.table import Facts, Row
from studies.figures.overview import overview, write_overview
from studies.figures.rows import gathered


def row(figure: str, epsilon: float, tied: tuple[str, ...], **errors: float) -> Row:
    facts = Facts(silos=4, per_round=4, records=50, weights=3, convex=True, epsilon=epsilon, delta=1e-5)
    return Row(
        figure=figure,
        facts=facts,
        measure="test error",
        errors=errors,
        tied=tied,
        settings={name: {} for name in errors},
        rounds=dict.fromkeys(errors, 1),
        floats=dict.fromkeys(errors, 1.0),
    )


ROWS = (
    row("far", 1.0, ("a",), a=0.1, b=0.4),
    row("far", 4.0, ("a", "b"), a=0.1, b=0.1),
    row("near", 4.0, ("b", "c"), b=0.2, c=0.3),
)


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|\n ").split("|")]


def test_lowest_ties_and_means_over_epsilon():
    """b is 4 times and once the lowest on far: 2 in geometric mean, tied at one of two epsilons."""
    lines = [cells(line) for line in overview(ROWS).splitlines() if line.startswith("|")]
    assert lines[0] == ["figure", "epsilon 1", "epsilon 4"]
    assert lines[2:4] == [["far", "**a**", "a, 1 tied"], ["near", "-", "b, 1 tied"]]
    assert lines[4] == ["figure", "a", "b", "c"]
    assert lines[6] == ["far", "1.00 (2 of 2)", "2.00 (1 of 2)", "-"]
    assert lines[7:] == [["near", "-", "1.00 (1 of 1)", "1.50 (1 of 1)"]]


def test_it_is_written_beside_the_figures_with_the_rows_behind_it(tmp_path):
    assert write_overview(tmp_path) is None and not list(tmp_path.iterdir())
    for name in ("far", "near"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "rows.json").write_bytes(as_bytes(tuple(each for each in ROWS if each.figure == name)))
    assert write_overview(tmp_path) == tmp_path / "overview.md"
    assert (tmp_path / "overview.md").read_text() == overview(ROWS)
    assert (tmp_path / "table.json").read_bytes() == as_bytes(gathered(tmp_path)) == as_bytes(ROWS)


def test_rows_are_gathered_by_the_names_of_the_figures(tmp_path):
    for name, one in zip(("b", "a"), ROWS[:2], strict=True):
        (tmp_path / name).mkdir()
        (tmp_path / name / "rows.json").write_bytes(as_bytes((one,)))
    assert gathered(tmp_path) == ROWS[1::-1]
