"""Whitening: its matrix against closed forms and SciPy, its map against a loop, its bound against the worst record."""

import dataclasses
import math

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from pydantic import ValidationError
from scipy.linalg import fractional_matrix_power
from threadpoolctl import threadpool_info, threadpool_limits

from fedcore.configfile.reading import validated
from fedcore.data.constants.public_scales import scaled, whitening_of
from fedcore.data.constants.scaling import PublicScaling, Scales, measured
from fedcore.data.constants.whitening import LEAST_EIGENVALUE, Whitening, decorrelation, prepared, standards
from fedcore.data.dataset import prepare
from fedcore.data.file_sources import schema_of
from fedcore.data.schema import Column, features
from fedcore.data.silo_file import SiloSource, open_records
from fedcore.data.tabular import FilesData
from fedcore.errors import InputError
from fedcore.home import LedgerFolders
from fedcore.models.model_config import ModelConfig
from fedcore.silo.opening import SiteSpec

SCHEMA = (
    Column(name="sex", categories=("f", "m"), other=False),
    Column(name="a", centre=10, scale=2, limit=2.0, missing=(), fill=13),
    Column(name="b", range=(0, 4)),
    Column(name="c", centre=0, scale=1, limit=2.0),
)
M = np.array([[1.4, -0.9], [-0.9, 1.6]])
OURS = Whitening.of(("a", "c"), 2.0, M)

# The matrix


@pytest.mark.parametrize("rho", [-0.7, 0.0, 0.5, 0.9])
def test_two_columns_by_the_closed_form(rho):
    """R has eigenvalues 1 + rho and 1 - rho, with the sum and the difference of the columns."""
    made = decorrelation(np.array([[1.0, rho], [rho, 1.0]]), np.zeros((2, 2)))
    plus, minus = 1 / math.sqrt(1 + rho), 1 / math.sqrt(1 - rho)
    expected = np.array([[plus + minus, plus - minus], [plus - minus, plus + minus]]) / 2
    np.testing.assert_allclose(made, expected, atol=1e-14)


def test_exact_correlations_are_undone():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((400, 6)) @ (np.eye(6) + 0.3 * rng.standard_normal((6, 6)))
    R = np.corrcoef(X, rowvar=False)
    assert np.linalg.eigvalsh(R)[0] > LEAST_EIGENVALUE
    made = decorrelation(R, np.zeros((6, 6)))
    np.testing.assert_allclose(made, fractional_matrix_power(R, -0.5), atol=1e-12)
    np.testing.assert_allclose(made @ R @ made, np.eye(6), atol=1e-12)


def test_estimates_are_shrunk_by_how_much_of_them_is_error():
    """By hand: mean square of the three correlations 0.14, of their errors 0.02, so the prior has variance 0.12."""
    r, e = {(0, 1): 0.6, (0, 2): -0.2, (1, 2): math.sqrt(0.02)}, {(0, 1): 0.2, (0, 2): 0.1, (1, 2): 0.1}
    R, E, shrunk = np.eye(3), np.full((3, 3), 9.0), np.eye(3)
    for (i, j), value in r.items():
        R[i, j] = R[j, i] = value
        E[i, j] = E[j, i] = e[i, j]
        shrunk[i, j] = shrunk[j, i] = value * 0.12 / (0.12 + e[i, j] ** 2)
    np.testing.assert_allclose(decorrelation(R, E), fractional_matrix_power(shrunk, -0.5), atol=1e-12)


def test_nothing_but_error_leaves_columns_as_they_are():
    rng = np.random.default_rng(1)
    N = 0.3 * rng.standard_normal((5, 5))
    R = np.eye(5) + np.triu(N, 1) + np.triu(N, 1).T
    np.testing.assert_allclose(decorrelation(R, np.full((5, 5), 0.5)), np.eye(5), atol=1e-14)
    np.testing.assert_array_equal(decorrelation(np.eye(3), np.zeros((3, 3))), np.eye(3))
    np.testing.assert_array_equal(decorrelation(np.array([[7.0]]), np.zeros((1, 1))), [[1.0]])


@given(arrays(np.float64, (4, 4), elements=st.floats(-50, 50)), st.floats(0, 3))
@settings(max_examples=60, deadline=None)
def test_no_direction_is_magnified_beyond_the_least_eigenvalue(R, error):
    made = decorrelation(R + R.T, np.full((4, 4), error))
    values = np.linalg.eigvalsh(made)
    assert np.array_equal(made, made.T) and np.isfinite(made).all()
    # The largest of four eigenvalues that sum to 4, each at least -3, is at most 13.
    assert values[0] > 0 and values[-1] / values[0] <= math.sqrt(13 / LEAST_EIGENVALUE) * (1 + 1e-9)
    assert values[-1] <= math.sqrt(4 / LEAST_EIGENVALUE) * (1 + 1e-9)


def test_noise_bounds_what_is_magnified():
    """Two equal columns under noise: the difference is magnified as far as the remaining noise allows."""
    error = 0.2
    made = decorrelation(np.ones((2, 2)), np.full((2, 2), error))
    weight = (1 - error**2) / 1.0  # of the estimates: the prior has variance 1 - e^2
    floor = weight * error * math.sqrt(2)
    assert floor > LEAST_EIGENVALUE and 1 - weight < floor
    size = 2 / (1 + (1 - weight) / floor)  # of what is left: the sum is whitened, the difference less than that
    expected = [math.sqrt(size / (1 + weight)), math.sqrt(size / floor)]
    np.testing.assert_allclose(np.linalg.eigvalsh(made), expected, rtol=1e-12)


@pytest.mark.parametrize("noise", [0.0, 0.001])
def test_standards_of_moments_are_those_of_the_records(noise):
    rng = np.random.default_rng(2)
    hidden = rng.standard_normal((20_000, 3)) @ np.array([[1, 0.8, 0], [0, 0.6, 0.5], [0, 0, 0.9]])
    U = np.clip(0.2 + 0.15 * hidden, -1, 1)
    second = U.T @ U / len(U)
    N = noise * rng.standard_normal((3, 3))
    second += np.diag(np.diag(N)) + (np.triu(N, 1) + np.triu(N, 1).T) * math.sqrt(0.5)
    centres, scales, matrix = standards(U.mean(axis=0), second, noise, 0.0, len(U))
    np.testing.assert_allclose(centres, U.mean(axis=0), atol=1e-12)
    np.testing.assert_allclose(scales, U.std(axis=0), rtol=0.05 if noise else 1e-9)
    Z = (U - centres) / scales @ matrix
    np.testing.assert_allclose(np.corrcoef(Z, rowvar=False), np.eye(3), atol=0.15 if noise else 0.01)


# The map


def cells(n, seed=0):
    rng = np.random.default_rng(seed)
    a = [None if k % 5 == 0 else float(v) for k, v in enumerate(rng.normal(10, 3, n))]
    sexes = ["fm"[k % 2] for k in range(n)]
    return pa.table({"sex": sexes, "a": a, "b": rng.uniform(-1, 5, n), "c": rng.normal(0, 2, n)})


def test_each_record_by_a_loop():
    table = cells(50)
    rows, made = features(table, SCHEMA), prepared(table, SCHEMA, OURS)
    assert rows.shape == made.shape == (50, 6)
    for before, after in zip(rows, made, strict=True):
        a, c = before[2], before[5]
        expected = [1.4 * a - 0.9 * c, -0.9 * a + 1.6 * c]
        assert after[[2, 5]] == pytest.approx([min(2.0, max(-2.0, z)) for z in expected], abs=1e-14)
        assert after[[0, 1, 3, 4]].tolist() == before[[0, 1, 3, 4]].tolist()
    assert rows[0, 2] == 1.5 and rows[0, 3] == 1.0  # missing: the fill, whitened as a value is
    assert np.abs(made[:, [2, 5]]).max() == 2.0


def test_bits_of_a_row_depend_on_no_other():
    table = cells(40)
    made = prepared(table, SCHEMA, OURS)
    for k in range(40):
        assert prepared(table.slice(k, 1), SCHEMA, OURS).tobytes() == made[k : k + 1].tobytes()


def test_the_largest_norm_is_that_of_the_worst_record():
    """One in its category, missing in a (its fill is 1.5 scales off), b at an end, both whitened ones at the limit."""
    worst = pa.table({"sex": ["f"], "a": [None], "b": [4.0], "c": [-2.0]})
    other = Whitening.of(("a", "c"), 2.0, np.array([[2.0, -1.0], [1.0, -2.0]]))
    norm = np.linalg.norm(prepared(worst, SCHEMA, other))
    assert norm == pytest.approx(math.sqrt(1 + (4 + 1) + 1 + 4)) == pytest.approx(other.longest(SCHEMA))


FINITE = st.floats(-1e6, 1e6)


@given(arrays(np.float64, (3, 2), elements=FINITE), arrays(np.float64, (2, 2), elements=FINITE))
@settings(max_examples=60, deadline=None)
def test_no_record_is_longer_whatever_the_matrix(values, matrix):
    table = pa.table({"sex": ["f"] * 3, "a": values[:, 0], "b": values[:, 1], "c": values[:, 1]})
    other = Whitening.of(("a", "c"), 2.0, matrix)
    made = prepared(table, SCHEMA, other)
    assert np.isfinite(made).all() and (np.linalg.norm(made, axis=1) <= other.longest(SCHEMA) * (1 + 1e-12)).all()


@pytest.mark.parametrize(
    "change",
    [
        {"columns": ("a", "a")},
        {"matrix": ((1.0, 0.0),)},
        {"matrix": ((1.0,), (0.0, 1.0))},
        {"limit": 0.0},
        {"limit": 1e-160},
        {"matrix": ((1.0, 2e6), (0.0, 1.0))},
        {"matrix": ((1.0, math.nan), (0.0, 1.0))},
        {"columns": ()},
    ],
)
def test_what_is_no_matrix_of_the_columns_is_refused(change):
    with pytest.raises(ValidationError):
        Whitening(**{"columns": ("a", "c"), "limit": 2.0, "matrix": ((1.0, 0.0), (0.0, 1.0)), **change})


# At a silo


def write(path, n, seed, rho=0.95):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(n)
    a, c = 50 + 8 * x, 5 + rho * x + math.sqrt(1 - rho**2) * rng.standard_normal(n)
    gone = rng.random(n) < 0.05
    rows = [f"{'' if g else p},{q},{k % 2},{int(q > 5)}" for k, (p, q, g) in enumerate(zip(a, c, gone, strict=True))]
    path.write_text("a,c,sex,y\n" + "\n".join(rows) + "\n")


def config(folder, **scaling):
    values = {
        "silos": [{"name": name, "path": str(folder / f"{name}.csv")} for name in ("n", "s")],
        "label": "y",
        "features": {"a": {"range": [0, 100], "missing": []}, "sex": {"categories": [0, 1]}, "c": {"range": [0, 10]}},
        "scaling": {"path": str(folder / "public.csv"), "whiten": True, **scaling},
    }
    return validated(FilesData, values, "test")


@pytest.fixture
def files(tmp_path):
    for seed, name in enumerate(("public", "n", "s")):
        write(tmp_path / f"{name}.csv", 60, seed)
    return tmp_path


def test_a_public_file_whitens_by_its_correlations_shrunk_by_the_error_of_a_sample(files):
    data = config(files, limit=4.0)
    table = np.genfromtxt(files / "public.csv", delimiter=",", skip_header=1)
    a, c = table[:, 0], table[:, 1]
    z = [np.where(np.isnan(a), 0.0, (a - np.nanmean(a)) / np.nanstd(a)), (c - c.mean()) / c.std()]
    rho = np.corrcoef(z)[0, 1]
    rho *= (rho**2 - 1 / 60) / rho**2
    left = (1 - 1 / 60 / np.corrcoef(z)[0, 1] ** 2) / math.sqrt(60)
    R = np.array([[1, rho], [rho, 1]])
    values, directions = np.linalg.eigh(R)
    floor = np.maximum(values, max(LEAST_EIGENVALUE, left * math.sqrt(2)))
    expected = directions * np.sqrt(2 / (values / floor).sum() / floor) @ directions.T
    described, made = scaled(data.features, data.scaling, "csv")
    assert made.columns == ("a", "c") and made.limit == 4.0 and described[0].limit == 4.0
    np.testing.assert_allclose(np.array(made.matrix), expected, rtol=1e-9)


def test_the_matrix_is_computed_with_one_thread(monkeypatch):
    """With 100 columns two threads add in another order, but not with every kernel: so the test checks their number."""
    correlate, seen = np.corrcoef, []

    def watched(*rows, **how):
        seen.extend(each["num_threads"] for each in threadpool_info() if each["user_api"] == "blas")
        return correlate(*rows, **how)

    monkeypatch.setattr(np, "corrcoef", watched)
    with threadpool_limits(limits=2, user_api="blas"):
        whitening_of(("a", "b"), 3.0, np.random.default_rng(0).standard_normal((30, 2)))
    assert seen and set(seen) == {1}


def test_silos_open_whitened_records_and_the_constants_are_bound(files):
    data, model = config(files), ModelConfig(bias=False)
    dataset = prepare(data, model, 0, files / "root")
    source = dataset.sources[0]
    X = open_records(source).X * source.whitening.longest(source.schema)  # feature_bound is 1
    assert abs(np.corrcoef(X[:, 0], X[:, 5])[0, 1]) < 0.5 < 0.85 < np.corrcoef(*_raw(files / "n.csv"))[0, 1]
    plain = prepare(config(files, whiten=False), model, 0, files / "root")
    assert plain.sources[0].whitening is None and plain.constants != dataset.constants
    assert plain.dim == dataset.dim and plain.sources[0].schema == source.schema


def _raw(path):
    table = np.genfromtxt(path, delimiter=",", skip_header=1)
    return table[~np.isnan(table[:, 0])][:, :2].T


def test_released_constants_come_with_their_matrix(files):
    data, model = config(files), ModelConfig()
    values = {**data.model_dump(mode="json"), "scaling": {"constants": "released", "epsilon": 1, "whiten": True}}
    data = validated(FilesData, values, "test")
    described, stand_in = schema_of(data)
    assert stand_in.columns == ("a", "c") and np.array_equal(np.array(stand_in.matrix), np.eye(2))
    scales = Scales(np.array([50.0, 5.0]), np.array([8.0, 1.0]), M)
    again = Scales.from_bytes(scales.to_bytes())
    assert again.digest == scales.digest != Scales(scales.centres, scales.scales).digest
    made = prepare(data, model, 0, files / "root", (None, again))
    assert made.sources[1].whitening == Whitening.of(("a", "c"), 3.0, M)
    assert [c.names for c in made.sources[1].schema] == [c.names for c in described] and measured(data.features)
    with pytest.raises(ValueError, match="matrix of shape"):
        Scales.from_bytes(Scales(scales.centres, scales.scales, np.eye(3)).to_bytes())


@pytest.mark.parametrize("count", [1, 257])
def test_so_many_columns_are_not_whitened(files, count):
    silos = [{"name": "n", "path": str(files / "n.csv")}]
    columns = {f"x{k}": {"range": [0, 1]} for k in range(count)}
    values = {"silos": silos, "label": "y", "features": columns, "scaling": {"path": "p.csv", "whiten": True}}
    with pytest.raises(InputError, match=rf"data\.scaling\.whiten is for 2 to 256 columns .*; it has {count}"):
        validated(FilesData, values, "test")


def test_a_site_takes_only_what_fits_its_schema(files):
    source = prepare(config(files), ModelConfig(), 0, files / "root").sources[0]
    spec = SiteSpec((source,), 0, "memory", LedgerFolders(files, files))
    assert SiteSpec.from_bytes(spec.to_bytes()) == spec
    fits = "whitened by columns that its schema has as numbers"
    wrong = [
        ({"schema": None}, fits),
        ({"whitening": Whitening.of(("a", "sex"), 3.0, M)}, fits),
        ({"schema": (*source.schema, source.schema[0])}, "has a column twice"),
    ]
    for bad, words in wrong:
        other = dataclasses.replace(source, **bad)
        assert isinstance(other, SiloSource)
        with pytest.raises(InputError, match=words):
            SiteSpec.from_bytes(dataclasses.replace(spec, sources=(other,)).to_bytes())


def test_public_scaling_does_not_whiten_unless_asked(files):
    data = config(files, whiten=False)
    assert not PublicScaling(path="/p.csv").whiten
    assert scaled(data.features, data.scaling, "csv")[1] is None
