"""Centres and scales of a public file, against scikit-learn's, and of released moments, against the records' own."""

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pytest
from sklearn.preprocessing import StandardScaler

from fedcore.arrays import pack
from fedcore.configfile.reading import validated
from fedcore.data.constants.public_scales import scaled
from fedcore.data.constants.scaling import PublicScaling, Scales, measured
from fedcore.data.constants.shrinkage import centres_and_scales
from fedcore.data.dataset import facts, prepare
from fedcore.data.file_sources import file_sources, schema_of
from fedcore.data.layout import write_scales
from fedcore.data.schema import Column, features, longest
from fedcore.data.silo_file import Constants, open_records
from fedcore.data.tabular import FilesData
from fedcore.errors import InputError
from fedcore.models.model_config import ModelConfig

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
    made, whitening = scaled(SCHEMA, PublicScaling(path=str(tmp_path / "public.csv"), limit=2.5), "csv")
    assert whitening is None
    judge = StandardScaler().fit(np.clip(ages, 20, 80)[:, None])
    assert (made[0].centre, made[0].scale, made[0].limit) == (
        pytest.approx(judge.mean_[0]),
        pytest.approx(judge.scale_[0]),
        2.5,
    )
    logs = np.log(np.clip(doses[doses > 0], 0.1, 1000))
    assert np.log(made[1].centre) == pytest.approx(logs.mean()) and np.log(made[1].scale) == pytest.approx(logs.std())
    assert made[1].missing == (0,) and made[2:] == SCHEMA[2:]


def config(folder, **changes):
    values = {
        "silos": [{"name": name, "path": str(folder / f"{name}.csv")} for name in ("a", "b")],
        "features": [column.model_dump(exclude_defaults=True) for column in SCHEMA],
        "label": "y",
        "scaling": {"path": str(folder / "public.csv")},
    }
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
    column = schema_of(data)[0][0]
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


# From released moments


RANGED = tuple(column for column in SCHEMA if column.range is not None)


def released_config(folder, **scaling):
    return config(folder, scaling={"constants": "released", "epsilon": 1.0, **scaling})


def test_what_is_released_of_are_the_columns_with_a_range_each_as_one_feature(tmp_path):
    found = measured(SCHEMA)
    assert [column.names for column in found] == [("age",), ("dose",)] and longest(found) == np.sqrt(2)
    assert found[1].missing == (0,) and not found[1].indicator
    write(tmp_path / "a.csv", seed=1)
    table = pyarrow.csv.read_csv(tmp_path / "a.csv")
    both = features(table, SCHEMA)  # age, dose, dose missing, ...
    np.testing.assert_array_equal(features(table, found), both[:, :2])
    assert (both[:, 2] == 1).any() and not features(table, found)[both[:, 2] == 1, 1].any()  # missing: the middle


def test_constants_of_exact_moments_are_mean_and_deviation_in_own_units():
    rng = np.random.default_rng(0)
    ages, doses = rng.uniform(10, 100, 500), rng.lognormal(1, 2, 500)
    table = pa.table({"age": ages, "dose": doses})
    U = features(table, measured(SCHEMA))
    scales = Scales.of_features(RANGED, *centres_and_scales(U.mean(axis=0), (U**2).mean(axis=0), 0.0))
    logs, cut = np.log(np.clip(doses, 0.1, 1000)), np.clip(ages, 20, 80)
    np.testing.assert_allclose(scales.centres, [cut.mean(), np.exp(logs.mean())], rtol=1e-12)
    np.testing.assert_allclose(scales.scales, [cut.std(), np.exp(logs.std())], rtol=1e-12)
    made = scales(SCHEMA, 2.5)
    found = [(c.limit, c.log, c.missing, c.range) for c in made[:2]]
    assert found == [(2.5, False, None, None), (2.5, True, (0,), None)]
    assert made[1].marked and made[2:] == SCHEMA[2:]
    with pytest.raises(ValueError, match="argument"):
        scales(SCHEMA[:1], 3.0)


@pytest.mark.parametrize(
    "column",
    [
        Column(name="x", range=(-8e307, 8e307)),
        Column(name="x", range=(0, 5e-324)),
        Column(name="x", range=(1e-300, 1e300), log=True),
        Column(name="x", range=(1, 1 + 1e-15), log=True),
    ],
)
@pytest.mark.parametrize("moments", [(0.0, 0.0), (1.0, 1.0), (-1.0, 1.0), (-90.0, -7.0)])
def test_extreme_ranges_and_moments_make_columns_that_can_be_used(column, moments):
    found = centres_and_scales(*(np.array([m]) for m in moments), 0.05)
    (made,) = Scales.of_features((column,), *found)((column,), 3.0)
    found = made.features(pa.chunked_array([[*(column.range or ()), 1.0, None]]))
    assert np.isfinite(found).all() and np.abs(found).max() <= 3.0


def test_released_constants_are_those_that_are_given_and_nothing_is_trained_without_them(tmp_path):
    for name in ("a", "b"):
        write(tmp_path / f"{name}.csv", seed=ord(name))
    data, model, root = released_config(tmp_path, limit=2.0), ModelConfig(), tmp_path / "root"
    with pytest.raises(InputError, match=r"data\.scaling\.constants = released, but the silos have not released"):
        prepare(data, model, 0, root)
    scales = Scales(np.array([50.0, 3.0]), np.array([12.0, 4.0]))
    path, written = write_scales(root / "files" / "statistics-0", 2, "a test", lambda: scales)
    constants = Constants(str(path), written.digest, "released", 2)
    made = prepare(data, model, 0, root, (constants, written))
    assert made.sources[0].schema == scales(SCHEMA, 2.0) and made.sources[1].schema == made.sources[0].schema
    assert facts(data, model, 0) == (made.facts, made.dim) == (made.facts, 1 + 2 + 3 + 1 + 1)
    other = Scales(np.array([50.0, 3.0]), np.array([12.0, np.nextafter(4.0, 5)]))
    assert prepare(data, model, 0, root, (constants, other)).constants != made.constants  # the checkpoint is bound
    ages = np.loadtxt(tmp_path / "a.csv", delimiter=",", skiprows=1)[:, 0]
    prepared = open_records(made.sources[0])
    np.testing.assert_allclose(
        prepared.X[:, 0], np.clip((ages - 50) / 12, -2, 2) / np.sqrt(4 + 4 + 1 + 9 + 1), rtol=1e-12
    )
    assert all(source.schema == SCHEMA for source in file_sources(data, model))  # an operator hears of ranges
    assert [column.names for column in schema_of(data)[0]] == [column.names for column in made.sources[0].schema]


def test_constants_are_recorded_once_and_damage_is_told(tmp_path):
    first = Scales(np.array([1.0, 2.0]), np.array([3.0, 4.0]))
    path, written = write_scales(tmp_path, 2, "a test", lambda: first)
    _, again = write_scales(tmp_path, 2, "a test", lambda: Scales(np.zeros(2), np.ones(2)))
    assert again.digest == written.digest == first.digest
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(InputError, match=r"released/scaling: scales\.bin is missing or damaged; move the folder away"):
        write_scales(tmp_path, 2, "a test", lambda: first)
    for bad in (
        pack({"centres": np.zeros(2)}),
        pack({"centres": np.zeros(2), "scales": np.ones(3)}),
        pack({"centres": np.zeros(2), "scales": np.array([1.0, 0.0])}),
        b"",
    ):
        with pytest.raises(ValueError):
            Scales.from_bytes(bad)
    assert Scales.from_bytes(first.to_bytes()).digest == first.digest
