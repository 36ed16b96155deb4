"""No config of the repository needs more accounting than a guarded site does for one agreement."""

from pathlib import Path

import pytest

from fedcore.accounting.effort import effort_within
from fedcore.errors import InputError
from fedcore.experiment.experiment import make_plan
from fedcore.experiment.sweep import load_cells
from fedcore.limits import MOST_EFFORT

ROOT = Path(__file__).parents[3]
NO_EXPERIMENT = {"figures.yaml", "reference.yaml", "hospital.yaml"}


def configs():
    """Those of studies/conf take minutes together."""
    found = [
        path
        for path in sorted([*ROOT.glob("conf/**/*.yaml"), *ROOT.glob("studies/conf/**/*.yaml")])
        if path.name not in NO_EXPERIMENT
    ]
    marks = [[pytest.mark.hours] if "studies" in path.relative_to(ROOT).parts else [] for path in found]
    return [
        pytest.param(path, marks=[*of, pytest.mark.minutes], id=str(path.relative_to(ROOT)))
        for path, of in zip(found, marks, strict=True)
    ]


@pytest.mark.parametrize("path", configs())
def test_all_cells_of_a_config_plan_within_the_effort_of_one_agreement(path):
    """Caches that one cell fills make a later one cheaper: all of them together bound each, whatever came before it."""
    try:
        cells = load_cells(path)
    except InputError as error:
        pytest.skip(str(error))  # data that is not here, or what a figure fills in
    with effort_within(MOST_EFFORT):
        for cell in cells:
            try:
                make_plan(cell)
            except InputError as error:
                if "points of grids" in str(error):
                    raise
                pytest.skip(str(error))
