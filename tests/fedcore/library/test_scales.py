"""`scale=`: raw columns give a warning, and a config's keys bring them to one scale with public constants."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import yaml
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split

import fedcore
from fedcore.errors import InputError, ModelWarning
from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.experiment import make_plan
from fedcore.experiment.outlook import urgent
from fedcore.library.scales import LIMIT, RELEASED_SHARE

METHOD = {"name": "mbsgd", "rounds": 6, "step": 2.0}
FREE = {"epsilon": None, "privacy": {"trust": "none"}}


def breast_cancer():
    """Four silos of raw columns, and public test records."""
    data = load_breast_cancer(as_frame=True)
    X, public, y, labels = train_test_split(data.data, data.target, test_size=0.25, random_state=0)
    return {f"hospital-{k}": (X.iloc[k::4], y.iloc[k::4]) for k in range(4)}, (public, labels)


def drawn(seed, n=80):
    rng = np.random.default_rng(seed)
    X = np.column_stack([rng.normal(55, 12, n), rng.lognormal(6, 0.5, n), rng.normal(0, 0.01, n)])
    return pd.DataFrame(X, columns=["age", "dose", "shift"]), (X[:, 0] > 55).astype(int)


SILOS = {"north": drawn(1), "south": drawn(2)}
TEST = drawn(3, 120)


def train(silos=SILOS, test=TEST, **keys):
    return fedcore.train(silos, test=test, **({"epsilon": 4.0, "algorithm": METHOD, "seed": 0} | keys))


def test_raw_columns_of_a_known_table_are_told_of_and_its_scaled_ones_are_learned():
    silos, test = breast_cancer()
    with pytest.warns(ModelWarning) as caught:
        raw = fedcore.train(silos, test=test, epsilon=2, seed=0)
    size, worth = (str(each.message) for each in caught)
    assert "columns of the test records differ in size: 'worst area' is about" in size and "scale='test'" in size
    assert "the model is no better than always answering the most frequent class" in worth
    assert all(each.filename == __file__ for each in caught)
    errors = [fedcore.train(silos, test=test, epsilon=2, scale="test", seed=seed).test_error for seed in range(3)]
    assert np.mean(errors) < 0.11 < raw.test_error


def test_columns_are_not_told_of_where_they_are_alike_or_scaled_or_nobody_may_look(recwarn):
    alike = {name: (frame * [1, 0.1, 1000], y) for name, (frame, y) in SILOS.items()}
    train(alike, (TEST[0] * [1, 0.1, 1000], TEST[1]))
    train(test=None)  # no warning may depend on private records
    train(scale="test")
    assert not [each for each in recwarn if "differ in size" in str(each.message)]


def test_private_records_do_not_decide_whether_it_is_told(recwarn):
    public = TEST[0] * [1, 0.1, 1000], TEST[1]
    train(SILOS, public)
    assert not [each for each in recwarn if "differ in size" in str(each.message)]


@pytest.mark.filterwarnings("ignore:the model is no better")
def test_it_is_told_of_files_and_config_files_too(tmp_path):
    for name, (frame, y) in (SILOS | {"test": TEST}).items():
        frame.assign(sick=y).to_csv(tmp_path / f"{name}.csv", index=False)
    silos, test = {name: tmp_path / f"{name}.csv" for name in SILOS}, tmp_path / "test.csv"
    columns = ["age", "dose", "shift"]
    with pytest.warns(ModelWarning, match="'dose' is about .* 'shift' about"):
        train(silos, test, label="sick", features=columns)
    paths = [{"name": name, "path": str(path)} for name, path in silos.items()]
    data = {"source": "files", "silos": paths, "label": "sick", "features": columns, "test": str(test)}
    (tmp_path / "own.yaml").write_text(yaml.safe_dump({"data": data, "privacy": {"epsilon": 4}, "algorithm": METHOD}))
    with pytest.warns(ModelWarning, match="'dose' is about .* 'shift' about"):
        fedcore.train(tmp_path / "own.yaml")
    scaled = train(silos, test, label="sick", features=columns, scale="test", **FREE)
    np.testing.assert_allclose(scaled.weights, train(scale="test", **FREE).weights, rtol=1e-9)


def test_a_config_file_is_told_how_its_columns_get_ranges(tmp_path):
    """The warning of `plan`, `run` and `sweep` depends on the test file only."""
    for name, (frame, y) in (SILOS | {"test": TEST}).items():
        frame.assign(sick=y).to_csv(tmp_path / f"{name}.csv", index=False)
    silos = [{"name": name, "path": str(tmp_path / f"{name}.csv")} for name in SILOS]
    columns = ["age", "dose", "shift"]

    def warnings_of(features, test="test.csv"):
        data = {"source": "files", "silos": silos, "label": "sick", "features": features}
        data |= {"test": test and str(tmp_path / test)}
        config = ExperimentConfig.model_validate({"data": data, "privacy": {"epsilon": 4}, "algorithm": METHOD})
        return [each for each in urgent(config, make_plan(config)) if "differ in size" in each]

    (message,) = warnings_of(columns)
    assert (
        "'dose' is about" in message and "give each column its range in data.features, as {age: {range: [20" in message
    )
    assert (
        warnings_of(columns, None)
        == warnings_of({name: {"range": [-50, 50]} for name in columns})
        == warnings_of(columns[:1])
        == []
    )


def test_a_column_may_be_called_constants():
    silos = {name: (frame.rename(columns={"dose": "constants"}), y) for name, (frame, y) in SILOS.items()}
    ends = {"age": (0, 9), "constants": (-2, 5000), "shift": (-9, 9)}
    same = train(test=None, scale={"dose" if name == "constants" else name: at for name, at in ends.items()}, **FREE)
    np.testing.assert_allclose(train(silos, None, scale=ends, **FREE).weights, same.weights, rtol=1e-9)
    with pytest.raises(InputError, match="scale= has no range of column 'age'"):
        train(silos, None, scale={"constants": (-2, 5000)}, **FREE)


def by_hand(X, centre, scale, limit, bound):
    """Cut at limit scales, then all records by the one constant that brings the longest possible one to norm 1."""
    cut = np.clip((X - centre) / scale, -limit, limit)
    return np.hstack([cut, np.ones((len(X), 1))]) / np.hypot(bound, 1.0)


def descended(silos, rounds=6, step=2.0):
    """Full-batch gradient descent on the mean over silos of their mean logistic losses; the uniform average."""
    w, total = np.zeros(silos[0][0].shape[1]), 0.0
    for _ in range(rounds):
        gradients = []
        for A, y in silos:
            sign = np.where(y == 1, 1.0, -1.0)
            gradients.append(-(A * (sign / (1 + np.exp(sign * (A @ w))))[:, None]).mean(axis=0))
        w = w - step * np.mean(gradients, axis=0)
        total = total + w
    return total / rounds


def test_the_test_records_give_centre_and_scale():
    public = TEST[0].to_numpy()
    centre, scale = public.mean(axis=0), public.std(axis=0)
    made = [(by_hand(X.to_numpy(), centre, scale, LIMIT, LIMIT * 3**0.5), y) for X, y in SILOS.values()]
    model = train(scale="test", **FREE)
    np.testing.assert_allclose(model.weights, descended(made), rtol=1e-9)
    z = by_hand(public, centre, scale, LIMIT, LIMIT * 3**0.5) @ model.weights
    np.testing.assert_array_equal(model.predict(TEST[0]), (z >= 0).astype(int))
    np.testing.assert_allclose(model.predict_proba(TEST[0])[:, 1], 1 / (1 + np.exp(-z)), rtol=1e-9)
    arrays = {name: (X.to_numpy(), y) for name, (X, y) in SILOS.items()}
    np.testing.assert_allclose(train(arrays, (public, TEST[1]), scale="test", **FREE).weights, model.weights)


def test_ranges_are_mapped_to_one_scale_by_name_or_in_order():
    ends = {"shift": (-0.03, 0.03), "age": (20, 90), "dose": (0.0, 1500.0)}
    low, high = np.array([20, 0.0, -0.03]), np.array([90, 1500.0, 0.03])
    made = [(by_hand(X.to_numpy(), (low + high) / 2, (high - low) / 2, 1.0, 3**0.5), y) for X, y in SILOS.values()]
    expected = descended(made)
    np.testing.assert_allclose(train(test=None, scale=ends, **FREE).weights, expected, rtol=1e-9)
    arrays = {name: (X.to_numpy(), y) for name, (X, y) in SILOS.items()}
    in_order = np.column_stack([low, high])
    np.testing.assert_allclose(train(arrays, None, scale=in_order, **FREE).weights, expected, rtol=1e-9)


def test_released_scales_are_charged_and_epsilon_covers_both():
    model = train(scale="released", epsilon=2.0, seed=0)
    assert 2.0 * (1 - RELEASED_SHARE) < model.epsilon <= 2.0
    assert model.statistics.epsilon_accounted == pytest.approx(2.0 * RELEASED_SHARE, rel=1e-6)
    assert [account.releases for account in model.accounts] == [7, 7]  # one of moments, six of training
    assert max(account.epsilon for account in model.accounts) == pytest.approx(model.epsilon)
    assert model.rounds["epsilon"].iloc[-1] == pytest.approx(model.epsilon, rel=1e-6)
    assert "released with noise" in model.noise
    again = train(scale="released", epsilon=2.0, seed=0)
    np.testing.assert_array_equal(model.weights, again.weights)
    own = train(scale={"constants": "released", "epsilon": 0.5}, epsilon=2.0)
    assert own.epsilon > 2.0 and own.statistics.epsilon_accounted == pytest.approx(0.5, rel=1e-6)


def test_a_column_that_does_not_vary_is_centred_as_scikit_learn_does():
    def with_one(frame, value):
        return frame.assign(one=value)

    silos = {name: (with_one(X, 7.0), y) for name, (X, y) in SILOS.items()}
    model = train(silos, (with_one(TEST[0], 7.0), TEST[1]), scale="test")
    (column,) = (each for each in model.model.schema if each.name == "one")
    assert (column.centre, column.scale) == (7.0, 1.0)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"scale": "tests"}, "scale = 'tests' is not known; scale= is 'test'"),
        ({"scale": True}, "scale= is of type bool; scale= is 'test'"),
        ({"scale": "test", "test": None}, "scale='test' needs test=, public records that no silo holds"),
        ({"scale": "released", "test": None}, "scale='released' needs the columns' ranges: from test="),
        ({"scale": "test", "test": (TEST[0][:9], TEST[1][:9])}, "test: 9 records are too few to scale by"),
        ({"scale": {"age": (20, 90)}}, "scale= has no range of column 'dose'"),
        ({"scale": {"age": (20, 90), "dose": (0, 1), "shift": (0, 1), "sex": (0, 1)}}, "a range of 'sex', which is no"),
        ({"scale": [(20, 90), (0, 1)]}, "scale= has 2 ranges for 3 columns"),
        ({"scale": [(20, 90), (0, 1), 3]}, "scale= of column 'shift' is no range"),
        ({"scale": [(20, 90), (0, 1), ("a", "b")]}, "scale= of column 'shift' is no range"),
        ({"scale": [(90, 20), (0, 1), (0, 1)]}, r"range \[90, 20\] must be \[smallest, largest\], swapped"),
        ({"scale": {"constants": "realised"}}, "constants must be public or released"),
        ({"scale": {"constants": "released"}}, "data.scaling.epsilon is missing"),
    ],
)
def test_what_is_no_scale_is_refused_in_a_sentence(keys, message):
    with pytest.raises(InputError, match=message) as raised:
        train(**keys)
    assert "\n" not in str(raised.value) and "fedcore-" not in str(raised.value)
