"""Aims of the benchmarks and the quiet of the machine, from results that are made up."""

from pathlib import Path

import pytest

from benchmarks import differences, local_steps, newton, workload
from benchmarks.aims import QUIET, aims_of, frozen
from benchmarks.interleaving import Series

PAGE = Path(__file__).resolve().parents[2] / "docs" / "results" / "performance.md"


def table(silos, **rows):
    names = {"in_process": "in-process", "bare_actors": "bare actors", "dask_sites": "dask sites"}
    return {"silos": silos, "variants": {names[name]: row for name, row in rows.items()}}


def test_each_part_with_an_aim_is_listed_with_its_value():
    small = table(
        25,
        in_process={"ratio": 2.4, "ratio_to": "floor"},
        bare_actors={"ratio": 6.0, "ratio_to": "floor"},
    )
    small["variants"]["stack, behind"] = {"ratio": 17.0, "ratio_to": "floor", "median_ms": 14.5}
    large = table(250, dask_sites={"ratio": 1.1, "ratio_to": "bare actors"})
    local = table(100, in_process={"median_ms": 3.0})
    assert aims_of({"rounds": [small, large], "local": local}) == [
        ("round, N = 25: in-process / floor", 2.4, 1.5),
        ("round, N = 25: stack, behind, ms", 14.5, 9.0),
        ("round, N = 250: dask sites / bare actors", 1.1, 1.2),
    ]
    assert aims_of({"machine": {}, "start": []}) == []
    tables = [{"silos": 25, "variants": {"services": {"extra_ms": [17.5, 16.0, 19.0]}}}]
    assert aims_of({"services": {"tables": tables}}) == [("services, N = 25: ms more than on Dask", 17.5, 15.0)]


def test_a_floor_whose_blocks_differ_is_of_a_busy_machine():
    quiet, busy = Series([[1.0, 1.1, 9.0], [1.0, 1.1, 1.2], [1.2]]), Series([[1.0], [1.0], [1.3]])
    assert quiet.spread == pytest.approx(0.1 / 1.1) and quiet.spread < QUIET < busy.spread == pytest.approx(0.3)


@pytest.mark.parametrize("module", [workload, local_steps, differences, newton])
def test_published_ratios_are_to_the_floors_of_today(module):
    """A floor that changes makes them void: measure anew, then name its digest on the page."""
    assert frozen(module) in PAGE.read_text()
