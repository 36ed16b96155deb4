"""The results that are published: files of every study that can be read, and the rows behind advice among them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fedcore.advice.shipped import PROVENANCE, advice_rows
from studies.results.provenance import read_provenance
from studies.results.publication import PUBLISHED, Published
from studies.results.results_file import read_results
from studies.results.settings_file import read_settings
from studies.study import read_study, registered

NAMES = sorted(path.stem for path in PUBLISHED.glob("*.csv"))


def test_every_study_is_published_and_every_file_is_of_a_study():
    assert sorted(registered()) == NAMES
    assert {path.stem for path in PUBLISHED.iterdir()} == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_each_published_figure_is_registered_and_has_its_provenance(name):
    files = Published(name)
    rows, provenance = read_results(files.results), read_provenance(files.provenance)
    known = {figure.name for figure in read_study(name).figures}
    figures = {row.place.figure for row in rows}
    assert provenance.study == name and figures <= known
    assert {figure for each in provenance.published for figure in each.figures} == figures
    for row in rows:
        of = provenance.of(row.place.figure)
        assert row.seed is None or row.seed in of.seeds
    assert not re.search(r"[\w.]+@[\w.]+|(?<![\w.])/\w", files.provenance.read_text() + files.results.read_text())


@pytest.mark.parametrize(
    ("name", "count", "figure", "measure", "curve", "at", "value", "spread"),
    [  # cells of the pages that had the numbers, by hand
        ("five-way", 4080, "hospitals", "test error", "scaffold", "0.5", "0.211", "0.010"),
        ("five-way", 4080, "nonconvex-unlike", "gradient evaluations", "mbsgd", "1", None, ""),
        ("minibatch", 469, "mnist-12", "test error", "fedavg", "12", "0.147", "0.002"),
        ("minibatch", 469, "digits-12", "test error, difference from fedavg", "mbsgd", "18", "-0.026", "0.013"),
        ("regimes", 338, "records", "excess loss, difference from mbsgd", "localized-mbsgd", "20000", "0.007", "0.010"),
        ("localized", 80, "mnist-unreliable", "test error", "one-pass-mbsgd", "0.75", "0.235", "0.019"),
        ("comparison", 140, "synthetic-reliable", "test error", "mbsgd", "1", "0.265", "0.009"),
        ("scaffold", 423, "table-4", "accuracy", "scaffold noise_multiplier 160", "10", "34.35", "6.20"),
        ("fcrn", 50, "condition", "excess loss", "noised-newton", "1000", "0.0075", "0.0017"),
        ("diff2", 145, "convex", "test error", "scaffold", "8", "0.068", "0.017"),
        ("sweeps", 58, "hospitals", "silo mean error", "mbsgd", "5", "0.183", "0.013"),
    ],
)
def test_converted_tables_have_all_cells(name, count, figure, measure, curve, at, value, spread):
    """Of publications that were tables of pages: `source`."""
    files = Published(name)
    provenance = read_provenance(files.provenance)
    if any(each.source is None for each in provenance.published):
        pytest.skip("published anew")
    rows = read_results(files.results)
    assert len(rows) == count
    (row,) = [
        row
        for row in rows
        if (row.place.figure, row.place.measure, f"{row.place.curve} {row.place.panel}".strip(), row.place.at)
        == (figure, measure, curve, at)
    ]
    assert row.spread == spread and (value is None or row.value == value)


def test_the_rows_behind_advice_are_the_published_means_and_settings():
    files = Published("five-way")
    means = {
        (row.place.figure, row.place.curve, float(row.place.at)): (row.value, row.place.measure)
        for row in read_results(files.results)
        if row.place.measure in ("test error", "relative RMSE", "excess loss") and not row.single
    }
    settings = {(each.figure, each.method, each.place["privacy.epsilon"]) for each in read_settings(files.settings)}
    rows = advice_rows()
    assert len(rows) == 120 and len(means) == len(settings) == 1050
    for row in rows:
        for method, error in row.errors.items():
            value, measure = means[row.figure, method, row.facts.epsilon]
            digits = 4 if row.measure == "excess loss" else 3
            assert (value, measure) == (f"{error:.{digits}f}", row.measure)
            assert (row.figure, method, row.facts.epsilon) in settings
    assert read_provenance(PROVENANCE) == read_provenance(files.provenance)
    assert Path(PROVENANCE).parent.name == "advice"
