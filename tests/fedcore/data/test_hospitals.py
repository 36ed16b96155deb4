"""The four hospitals: the files that come with fedcore, each one's records, and the benchmark's list of rows."""

import csv
from pathlib import Path

import numpy as np
import pytest
from sklearn.model_selection import train_test_split

from fedcore.configfile.reading import validated
from fedcore.data import generated
from fedcore.data.dataset import facts, prepare, records_of
from fedcore.data.silo_file import open_records
from fedcore.data.sources.hospitals import COLUMNS, HOSPITALS, HospitalsData, hospitals, rows
from fedcore.errors import InputError
from fedcore.experiment.config import ExperimentConfig
from fedcore.models.model_config import ModelConfig

FOLDER = Path(generated.__file__).parent / "sources" / "heart_disease"
SCHEMA = {"age": {"range": [30, 80]}, "chol": {"range": [120, 350], "missing": [0]}, "cp": {"categories": [1, 2, 3, 4]}}
SIZES = {"cleveland": (199, 104), "budapest": (172, 89), "zurich-basel": (30, 16), "long-beach": (85, 45)}


def raw(name):
    with open(FOLDER / f"{name}.csv", newline="") as file:
        return list(csv.DictReader(file))


def test_files_hold_the_published_numbers_of_records_and_classes():
    found = {name: [row["disease"] for row in raw(name)] for name in HOSPITALS}
    assert {name: len(labels) for name, labels in found.items()} == HOSPITALS
    # UCI's page: 164, 188, 8 and 51 of them without disease.
    assert [labels.count("0") for labels in found.values()] == [164, 188, 8, 51]
    assert all(set(labels) == {"0", "1"} for labels in found.values())


def test_the_list_is_that_of_the_benchmark():
    """Repeats the benchmark's published loader: drops rows with missing values, then splits by label."""
    baseline = []
    for name, (train, test) in rows("flamby").items():
        records = raw(name)
        used = [column for column in COLUMNS if column not in ("slope", "ca", "thal")]
        whole = np.array([k for k, row in enumerate(records) if all(row[column] for column in used)])
        labels = np.array([records[k]["disease"] for k in whole])
        counts = [np.sum(labels == value) for value in ("0", "1")]
        at = np.arange(len(whole))
        first, second = train_test_split(
            at, test_size=1 - 0.66, train_size=0.66, random_state=43, stratify=labels if min(counts) > 2 else None
        )
        assert (sorted(whole[first]), sorted(whole[second])) == (list(train), list(test))
        assert (len(train), len(test)) == SIZES[name] and not set(train) & set(test)
        share = np.mean(labels[second] == "1")
        baseline.append(max(share, 1 - share))
    assert np.mean(baseline) == pytest.approx(0.721, abs=5e-4)  # published beside the benchmark


def test_by_index_every_third_row_is_test_data_and_none_is_lost():
    for name, (train, test) in rows("index").items():
        assert list(test) == list(range(2, HOSPITALS[name], 3))
        assert sorted(train + test) == list(range(HOSPITALS[name]))


@pytest.mark.parametrize("split", ["index", "flamby"])
def test_silos_hold_their_rows_as_they_are_in_the_files(split, tmp_path):
    made = hospitals(split)
    assert list(made.silos) == list(HOSPITALS)
    for name, table in made.silos.items():
        records, train = raw(name), rows(split)[name][0]
        cells = np.array([[float(records[k][c]) if records[k][c] else np.nan for c in COLUMNS] for k in train])
        np.testing.assert_array_equal(table.features, cells)
        assert table.labels.tolist() == [int(records[k]["disease"]) for k in train]
    data = validated(HospitalsData, {"split": split, "features": SCHEMA}, "test")
    planned, dim = facts(data, ModelConfig(), 3)
    ready = prepare(data, ModelConfig(), 3, tmp_path)
    assert (ready.facts, ready.dim) == (planned, dim) and dim == 1 + 2 + 5 + 1
    assert ready.test is not None and ready.test.n == sum(n for _, n in ready.test_parts) == len(made.test.labels)
    records = open_records(ready.sources[2])
    holes = np.isnan(made.silos["zurich-basel"].features[:, COLUMNS.index("chol")])
    holes |= made.silos["zurich-basel"].features[:, COLUMNS.index("chol")] == 0
    np.testing.assert_array_equal(records.X[:, 2] > 0, holes)  # the indicator of missing cholesterol


def test_seeds_ask_the_same_records_on_one_account(tmp_path):
    data = validated(HospitalsData, {"features": SCHEMA}, "test")
    versions = [{source.version for source in prepare(data, ModelConfig(), seed, tmp_path).sources} for seed in (0, 1)]
    assert versions[0] == versions[1] and len(versions[0]) == 4
    other = validated(HospitalsData, {"features": {"sex": {"range": [0, 1]}}, "split": "flamby"}, "test")
    assert records_of(data) == records_of(other)
    assert {source.version for source in prepare(data, ModelConfig(), 0, tmp_path).sources} == versions[0]


def test_chosen_rows_are_said_to_be_outside_of_the_guarantee_and_refused_when_guarded():
    base = {"privacy": {"epsilon": 1}, "algorithm": {"name": "mbsgd"}}
    for split, unprotected in (("index", None), ("flamby", "data.split = flamby")):
        values = {**base, "data": {"source": "hospitals", "split": split, "features": SCHEMA}}
        config = validated(ExperimentConfig, values, "test")
        assert config.unprotected_constants == unprotected
        assert generated.unprotected(config.data) == (unprotected is not None)
        guarded = {**values, "privacy": {"epsilon": 1, "ledger": "sqlite", "noise": "guarded"}}
        if unprotected is None:
            validated(ExperimentConfig, guarded, "test")
        else:
            with pytest.raises(InputError, match=r"data\.split = flamby shows what .* protects: choose index"):
                validated(ExperimentConfig, guarded, "test")


def test_columns_that_are_not_there_or_without_schema_are_refused():
    with pytest.raises(InputError, match=r"data.features.weight is no column; there are age, sex"):
        validated(HospitalsData, {"features": {"weight": {"range": [40, 150]}}}, "test")
    with pytest.raises(InputError, match="needs a schema"):
        validated(HospitalsData, {"features": ["age", "sex"]}, "test")
