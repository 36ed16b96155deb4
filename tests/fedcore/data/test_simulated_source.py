"""Made-up silos as a data source: preparation reproduces the made-up records, with the configured sizes."""

from __future__ import annotations

import numpy as np
import pytest
from pydantic import ValidationError

from fedcore.data.dataset import facts, prepare
from fedcore.data.schema import Column, features
from fedcore.data.silo_file import open_records, read_table
from fedcore.data.sources.made_up.assumed import Assumptions, made_up
from fedcore.data.sources.made_up.simulated import SimulatedData
from fedcore.models.model_config import ModelConfig
from fedcore.planning.problem import SiloFacts

COLUMNS = [
    {"name": "age", "range": [20, 90]},
    {"name": "dose", "range": [0.1, 1000], "log": True},
    {"name": "count", "centre": 4, "scale": 3, "log": True, "plus": 1},
    {"name": "score", "centre": 2, "scale": 0.5},
    {"name": "kind", "categories": [1, 2, 7], "missing": []},
    {"name": "oxygen", "range": [50, 100], "missing": [-9], "fill": 97},
    {"name": "pulse", "range": [40, 180], "missing": [], "indicator": False},
]
SCHEMA = tuple(Column.model_validate(column) for column in COLUMNS)


def data(**changes) -> SimulatedData:
    return SimulatedData.model_validate({"features": COLUMNS, "silos": 3, "records": [30, 50, 2], **changes})


def test_preparation_makes_of_the_files_what_was_made_up(tmp_path):
    silos = [SiloFacts(name, n) for name, n in data().sizes.items()]
    made, test = made_up(SCHEMA, silos, 2, Assumptions(), 2000, seed=5)
    dataset = prepare(data(), ModelConfig(), 5, tmp_path)
    assert [(fact.name, fact.n) for fact in dataset.facts] == [("silo-000", 30), ("silo-001", 50), ("silo-002", 2)]
    for source in dataset.sources:
        raw = read_table(source)
        np.testing.assert_allclose(features(raw, SCHEMA), made[source.name].features, rtol=0, atol=1e-9)
        labels = open_records(source).y
        np.testing.assert_array_equal(labels, 2 * made[source.name].labels - 1)
    assert dataset.test is not None and dataset.test.n == len(test.labels) and abs(len(test.labels) - 2000) <= 3
    assert any(np.isnan(read_table(dataset.sources[1]).column("oxygen").to_numpy()))


def test_nothing_is_made_for_its_facts():
    # 1 + 1 + 1 + 1 of numbers, 3 categories, others and missing, 1 + missing, 1, and the bias
    assert facts(data(), ModelConfig(), 0) == (tuple(SiloFacts(n, k) for n, k in data().sizes.items()), 13)


def test_columns_that_are_only_named_are_numbers_from_0_to_1(tmp_path):
    named = SimulatedData(features=("a", "b"), silos=2, records=100)
    dataset = prepare(named, ModelConfig(), 0, tmp_path)
    table = read_table(dataset.sources[0])
    values = np.stack([table.column(name).to_numpy() for name in ("a", "b")])
    assert values.min() >= 0 and values.max() <= 1 and values.std() > 0.1
    assert dataset.feature_names == ("a", "b")


def test_a_real_label_lies_between_its_ends(tmp_path):
    real = data(classes=None)
    assert real.label_values is None and real.label_range == (-1.0, 1.0)
    model = ModelConfig.model_validate({"loss": {"name": "squared"}, "clip": 1.0})
    y = open_records(prepare(real, model, 0, tmp_path).sources[1]).y
    assert len(set(y)) > 40 and -1 <= y.min() < 0 < y.max() <= 1


def test_seeds_make_other_silos_and_assumptions_too(tmp_path):
    def first(config: SimulatedData, seed: int) -> np.ndarray:
        return open_records(prepare(config, ModelConfig(), seed, tmp_path).sources[0]).X

    X = first(data(), 0)
    np.testing.assert_array_equal(X, first(data(), 0))
    assert not np.array_equal(X, first(data(), 1))
    assert not np.array_equal(X, first(data(assumed={"heterogeneity": 0}), 0))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"silos": 2}, "lists 3 silos, and data.silos = 2"),
        ({"records": 1}, "at least 2"),
        ({"records": [30, 50, 1]}, "at least 2"),
        ({"features": [{"name": "kind", "categories": ["low", "high"]}]}, "categories are numbers, not 'low'"),
    ],
)
def test_what_cannot_be_made_is_refused(changes, message):
    with pytest.raises(ValidationError, match=message):
        data(**changes)
