"""Tables with a real label in silos by its size: hand counts, every record once, constants of no silo, bad files."""

from __future__ import annotations

import csv
import json
import math
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from sklearn import datasets

from fedcore.configfile.reading import validated
from fedcore.data.dataset import facts, prepare
from fedcore.data.silo_file import open_records
from fedcore.data.sources.insurance import load_insurance
from fedcore.data.sources.regression import RegressionData, regression, silo_sizes
from fedcore.errors import InputError
from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.evaluation import measures
from fedcore.experiment.experiment import make_plan
from fedcore.losses import Squared
from fedcore.models import model_of
from fedcore.models.model_config import ModelConfig
from tests.flows.results import made_result

MODEL = validated(ModelConfig, {"loss": {"name": "squared"}, "clip": 1}, "test")
HEADER = ["age", "sex", "bmi", "children", "smoker", "region", "charges"]
REGIONS = ["southwest", "southeast", "northwest", "northeast"]


def person(k: int) -> list[object]:
    """A made-up row, different from all others, whose charges do not follow its number."""
    charges = 1000 + (k * 7919) % 1361 * 40.5
    return [
        18 + k % 47,
        ["female", "male"][k % 2],
        16 + k % 37 + 0.25,
        k % 6,
        ["yes", "no"][k % 3 > 0],
        REGIONS[k % 4],
        charges,
    ]


def write(folder: Path, rows: list[list[object]], header: list[str] = HEADER) -> str:
    folder.mkdir(exist_ok=True)
    with open(folder / "insurance.csv", "w", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return str(folder)


@pytest.fixture(scope="module")
def charges(tmp_path_factory) -> str:
    return write(tmp_path_factory.mktemp("charges"), [person(k) for k in range(1338)])


def test_sizes_are_those_counted_by_hand(charges):
    # ceil(1338 / N) in each group, the rest last; of each ceil(0.2 n) are test records: 90, 54 and 54, 27 and 27.
    by_hand = {3: [356] * 3, 5: [214] * 4 + [212], 10: [107] * 9 + [105], 15: [72] * 14 + [62]}
    for silos, sizes in by_hand.items():
        data = RegressionData(table="insurance", folder=charges, silos=silos)
        assert list(silo_sizes(data).values()) == sizes
        made = regression(data, 4)
        assert [len(table.labels) for table in made.silos.values()] == sizes
        assert len(made.test.labels) == 1338 - sum(sizes)
    # 442 records: 148, 148, 146; 89 x 4, 86; 45 x 9, 37.
    by_hand = {3: [118, 118, 116], 5: [71] * 4 + [68], 10: [36] * 9 + [29]}
    for silos, sizes in by_hand.items():
        assert list(silo_sizes(RegressionData(silos=silos)).values()) == sizes


def test_every_record_is_in_one_place_and_silos_are_ranges_of_the_label():
    X, y = datasets.load_diabetes(return_X_y=True, scaled=False)
    made = [regression(RegressionData(silos=5), seed) for seed in (0, 1)]
    for one in made:
        parts = [*one.silos.values(), one.test]
        rows = np.concatenate([np.column_stack([part.features, part.labels]) for part in parts])
        assert sorted(map(tuple, rows)) == sorted(map(tuple, np.column_stack([X, y])))
        ends = [(table.labels.min(), table.labels.max()) for table in one.silos.values()]
        assert all(high <= low for (_, high), (low, _) in pairwise(ends))
    first, second = (one.silos["silo-002"].labels for one in made)
    assert not np.array_equal(first, second)  # the split is drawn by the seed, who belongs to a silo is not
    again = regression(RegressionData(silos=5), 0)
    np.testing.assert_array_equal(again.test.labels, made[0].test.labels)


def test_features_and_labels_are_scaled_by_public_constants_alone(tmp_path):
    rows = [person(k) for k in range(12)]
    # A record beyond the constants: bmi 90 is 10 scales above 30, of which 4 count, and 90,000 is above 65,000.
    rows[5] = [54, "male", 90, 2, "yes", "southeast", 90000.0]
    data = RegressionData(table="insurance", folder=write(tmp_path / "in", rows), silos=2, test_fraction=0.3)
    ready = prepare(data, MODEL, 0, tmp_path / "silos")
    assert (ready.facts, ready.dim) == facts(data, MODEL, 0) and ready.dim == 7
    manifest = json.loads((tmp_path / "silos" / ready.name / "silo-000" / "manifest.json").read_text())
    assert manifest["columns"][-1] == {"name": "charges", "type": "double"}
    longest = math.sqrt(2**2 + 1 + 4**2 + 5**2 + 1 + 3**2 + 1)

    def by_hand(row: list[object]) -> list[float]:
        age, sex, bmi, children, smoker, region, _ = row
        raw = [
            (age - 40) / 14,
            float(sex == "male"),
            min((bmi - 30) / 6, 4),
            children,
            float(smoker == "yes"),
            sorted(REGIONS).index(region),
            1,
        ]
        return [value / longest for value in raw]

    held = [open_records(source) for source in ready.sources]
    found = np.column_stack([np.concatenate([r.X for r in held]), np.concatenate([r.y for r in held])])
    expected = np.array([[*by_hand(row), min(row[6], 65000) / 65000] for row in rows])
    for record in found:
        assert np.abs(expected - record).max(axis=1).min() < 1e-12
    # Every public test record, too, with its charges as they are.
    assert ready.test is not None and len(found) + ready.test.n == 12
    honest = np.array([[*by_hand(row), row[6] / 65000] for row in rows])
    for record in np.column_stack([ready.test.X, ready.test.y]):
        assert np.abs(honest - record).max(axis=1).min() < 1e-12


def test_relative_rmse_is_that_of_the_labels_own_units(charges, tmp_path):
    data = RegressionData(table="insurance", folder=charges, silos=3)
    ready = prepare(data, MODEL, 1, tmp_path)
    w = np.random.default_rng(3).standard_normal(7)
    ends = ready.sources[0].label_range
    found = measures(model_of(Squared()), w, ready.test, None, ends)
    truth = regression(data, 1).test.labels
    answers = 65000 * (ready.test.X @ w)
    rmse = math.sqrt(np.mean((answers - truth) ** 2))
    assert found["test_rmse"] == pytest.approx(rmse, rel=1e-12)
    by_hand = math.sqrt(np.sum((truth - answers) ** 2) / np.sum((truth - truth.mean()) ** 2))
    result = made_result(test_rmse=found["test_rmse"], mean_rmse=found["mean_rmse"])
    assert result.relative_rmse == pytest.approx(by_hand, rel=1e-12)
    assert made_result(test_rmse=3.0, mean_rmse=4.0).relative_rmse == 0.75
    assert made_result(test_error=0.1).relative_rmse is None
    assert made_result(test_rmse=3.0, mean_rmse=0.0).relative_rmse is None


def test_another_folder_with_the_same_file_is_the_same_data(charges, tmp_path):
    copy = write(tmp_path / "copy", [person(k) for k in range(1338)])
    other = write(tmp_path / "other", [person(k + 1) for k in range(1338)])
    names = [
        prepare(RegressionData(table="insurance", folder=folder), MODEL, 0, tmp_path / "silos").name
        for folder in (charges, copy, other)
    ]
    assert names[0] == names[1] != names[2]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda rows: (rows, HEADER[:-1]), r"insurance\.csv has no column 'charges'; it has 'age', 'sex', 'bmi', "),
        (lambda rows: (rows, [str(k) for k in range(7)]), "has none of the columns 'age', .* in its first line"),
        (lambda rows: (rows, [*HEADER, "bmi"]), "has column 'bmi' more than once"),
        (lambda rows: (put(rows, 3, 2, ""), HEADER), r"column 'bmi' of record 4 is missing; it must be a number$"),
        (lambda rows: (put(rows, 0, 6, "much"), HEADER), r"'charges' of record 1 is 'much'; it must be a number$"),
        (lambda rows: (put(rows, 1, 0, "inf"), HEADER), r"column 'age' of record 2 is 'inf'; it must be a number$"),
        (lambda rows: (put(rows, 2, 4, "maybe"), HEADER), r"'smoker' of record 3 is 'maybe'; it must be one of no"),
        (lambda rows: (put(rows, 5, 5, ""), HEADER), r"'region' of record 6 is missing; it must be one of north"),
        (lambda rows: (rows[:5], HEADER), r"data\.silos = 3: 5 records in groups of 2 leave 1 to the last silo"),
    ],
)
def test_files_that_do_not_fit_are_refused_with_a_sentence(change, sentence, tmp_path):
    rows, header = change([person(k) for k in range(12)])
    data = RegressionData(table="insurance", folder=write(tmp_path / "in", rows, header), silos=3)
    for ask in (lambda: facts(data, MODEL, 0), lambda: prepare(data, MODEL, 0, tmp_path / "silos")):
        with pytest.raises(InputError, match=sentence) as refused:
            ask()
        assert "\n" not in str(refused.value) and refused.value.__cause__ is None


def put(rows: list[list[object]], row: int, column: int, value: object) -> list[list[object]]:
    rows[row][column] = value
    return rows


def test_a_file_that_is_not_there_or_no_text_is_refused(tmp_path):
    with pytest.raises(InputError, match=rf"there is no insurance\.csv in {tmp_path}; nothing is downloaded"):
        load_insurance(str(tmp_path))
    (tmp_path / "insurance.csv").write_bytes(b"\x00\xff\xfe" * 30)
    with pytest.raises(InputError, match=r"insurance\.csv is empty, damaged or not CSV|none of the columns"):
        load_insurance(str(tmp_path))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"table": "insurance"}, r"data\.folder is missing: table insurance needs the folder that has insurance\.csv"),
        ({"folder": "x"}, r"data\.folder has no meaning with data\.table = diabetes"),
        ({"silos": 150}, r"data\.silos = 150: 442 records in groups of 3 leave 0 to the last silo"),
        ({"test_fraction": 0.98}, r"data\.test_fraction = 0\.98 sets aside 88 of a silo's 89 records"),
    ],
)
def test_keys_that_do_not_fit_are_refused_with_a_sentence(changes, sentence):
    model = {"loss": {"name": "squared"}, "clip": 1}
    base = {"model": model, "privacy": {"epsilon": 1}, "algorithm": {"name": "mbsgd"}}
    with pytest.raises(InputError, match=sentence):
        make_plan(validated(ExperimentConfig, {**base, "data": {"source": "regression", **changes}}, "test"))


def test_a_loss_of_classes_is_refused():
    values = {"data": {"source": "regression"}, "privacy": {"epsilon": 1}, "algorithm": {"name": "mbsgd"}}
    with pytest.raises(InputError, match=r"the label is a number: choose model\.loss\.name = absolute, huber, "):
        validated(ExperimentConfig, values, "test")
