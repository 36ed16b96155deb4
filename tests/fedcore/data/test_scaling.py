"""Centres and scales of a public file: against scikit-learn's, and that no silo's record enters them."""

import numpy as np
import pytest
from sklearn.preprocessing import StandardScaler

from fedcore.configfile import validated
from fedcore.data.dataset import facts, prepare, schema_of
from fedcore.data.scaling import PublicScaling, scaled
from fedcore.data.schema import Column
from fedcore.data.silo_file import FilesData, open_records
from fedcore.errors import InputError
from fedcore.models.config import ModelConfig

SCHEMA = (
    Column(name="age", range=(20, 80)),
    Column(name="dose", range=(0.1, 1000), log=True, missing=(0,)),
    Column(name="sex", categories=(0, 1)),
    Column(name="pulse", centre=70, scale=15),
)


def write(path, n=40, seed=0, age=None):
    rng = np.random.default_rng(seed)
    ages = rng.uniform(10, 100, n) if age is None else np.full(n, age)
    doses = np.where(rng.random(n) < 0.2, 0.0, rng.lognormal(1, 2, n))
    lines = [f"{a},{d},{k % 2},{60 + k % 9},{k % 2}" for k, (a, d) in enumerate(zip(ages, doses, strict=True))]
    path.write_text("age,dose,sex,pulse,y\n" + "\n".join(lines) + "\n")
    return ages, doses


def test_numbers_with_a_range_have_the_public_mean_and_deviation_within_it(tmp_path):
    ages, doses = write(tmp_path / "public.csv")
    made = scaled(SCHEMA, PublicScaling(path=str(tmp_path / "public.csv"), limit=2.5), "csv")
    judge = StandardScaler().fit(np.clip(ages, 20, 80)[:, None])
    assert (made[0].centre, made[0].scale, made[0].limit) == (
        pytest.approx(judge.mean_[0]), pytest.approx(judge.scale_[0]), 2.5
    )  # fmt: skip
    logs = np.log(np.clip(doses[doses > 0], 0.1, 1000))
    assert np.log(made[1].centre) == pytest.approx(logs.mean()) and np.log(made[1].scale) == pytest.approx(logs.std())
    assert made[1].missing == (0,) and made[2:] == SCHEMA[2:]


def config(folder, **changes):
    values = {
        "silos": [{"name": name, "path": str(folder / f"{name}.csv")} for name in ("a", "b")],
        "features": [column.model_dump(exclude_defaults=True) for column in SCHEMA], "label": "y",
        "scaling": {"path": str(folder / "public.csv")},
    }  # fmt: skip
    return validated(FilesData, {**values, **changes}, "test")


def test_constants_come_from_the_public_file_and_from_no_silo(tmp_path):
    """Replacing all of one silo's records leaves the other's prepared records as they are, bit for bit."""
    write(tmp_path / "public.csv")
    write(tmp_path / "a.csv", seed=1)
    write(tmp_path / "b.csv", seed=2)
    data, model = config(tmp_path), ModelConfig()
    first = prepare(data, model, 0, tmp_path / "root")
    records = open_records(first.sources[0])
    write(tmp_path / "b.csv", seed=3, age=79.0)
    second = prepare(data, model, 0, tmp_path / "root")
    assert open_records(second.sources[0]).X.tobytes() == records.X.tobytes()
    assert first.constants == second.constants and first.constants is not None
    write(tmp_path / "public.csv", seed=4)  # other public records are other constants, which a checkpoint is bound to
    assert prepare(data, model, 0, tmp_path / "root").constants != first.constants
    planned, dim = facts(data, model, 0)
    assert (planned, dim) == (first.facts, 1 + 2 + 3 + 1 + 1)
    ages = np.loadtxt(tmp_path / "a.csv", delimiter=",", skiprows=1)[:, 0]
    write(tmp_path / "public.csv")
    column = schema_of(data)[0]
    expected = np.clip((ages - column.centre) / column.scale, -3, 3) / np.sqrt(9 + 9 + 1 + 9 + 1)
    np.testing.assert_allclose(records.X[:, 0], expected, rtol=1e-12)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"n": 9}, r"column 'age' of .*public.csv has 9 values that fit; a scale needs at least 10"),
        ({"age": 5.0}, "column 'age' of .* does not vary within its range"),
    ],
)
def test_a_public_file_that_says_nothing_of_a_column_is_refused(tmp_path, change, words):
    write(tmp_path / "public.csv", **change)
    for name in ("a", "b"):
        write(tmp_path / f"{name}.csv")
    with pytest.raises(InputError, match=words):
        prepare(config(tmp_path), ModelConfig(), 0, tmp_path / "root")


def test_a_public_file_is_there_is_no_silos_and_needs_a_schema(tmp_path):
    for name in ("a", "b"):
        write(tmp_path / f"{name}.csv", seed=ord(name))
    with pytest.raises(InputError, match=r"data\.scaling\.path: file .*public\.csv does not exist"):
        prepare(config(tmp_path), ModelConfig(), 0, tmp_path / "root")
    with pytest.raises(InputError, match=r"data\.scaling\.path: file .* is the file of silo 'b'; it must be of public"):
        own = {"path": str(tmp_path / "b.csv")}
        prepare(config(tmp_path, scaling=own), ModelConfig(), 0, tmp_path / "root")
    with pytest.raises(InputError, match="scaling needs a schema"):
        config(tmp_path, features=["age", "dose"])
