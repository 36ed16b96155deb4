"""`Trained` as a fitted model of scikit-learn: against arithmetic by hand, and against scikit-learn's own measures."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from sklearn.inspection import permutation_importance
from sklearn.metrics import accuracy_score, log_loss, mean_squared_error, r2_score, roc_auc_score

import fedcore
from fedcore.errors import InputError, ModelWarning

METHOD = {"name": "mbsgd", "rounds": 8, "step": 1.0}
NAMES = ["age", "dose", "pulse"]


def drawn(seed, n=90):
    X = np.random.default_rng(seed).standard_normal((n, 3)) * [2.0, 1.0, 0.5]
    return X, (X @ [1.0, -2.0, 0.5] > 0.3).astype(int)


NORTH, SOUTH, TEST = drawn(1), drawn(2, 60), drawn(3, 200)
SILOS = {"north": NORTH, "south": SOUTH}


def frames(of):
    return pd.DataFrame(of[0], columns=NAMES), of[1]


def train(silos=SILOS, test=TEST, **keys):
    return fedcore.train(silos, test=test, **({"epsilon": 4.0, "algorithm": METHOD, "seed": 0} | keys))


def prepared(X):
    """A bias of 1, then each record brought to norm at most 1."""
    longer = np.hstack([X, np.ones((len(X), 1))])
    return longer / np.maximum(1.0, np.linalg.norm(longer, axis=1, keepdims=True))


def test_classes_and_probabilities_are_those_of_training():
    model, (X, y) = train(), TEST
    z = prepared(X) @ model.weights
    np.testing.assert_array_equal(model.predict(X), (z >= 0).astype(int))
    np.testing.assert_allclose(model.predict_proba(X)[:, 1], 1 / (1 + np.exp(-z)), rtol=1e-12)
    np.testing.assert_array_equal(X @ model.coef_[0] + model.intercept_[0] >= 0, z >= 0)
    assert model.coef_.shape == (1, 3) and model.intercept_.shape == (1,) and model.classes_.tolist() == [0, 1]
    assert 1 - accuracy_score(y, model.predict(X)) == pytest.approx(model.test_error, abs=1e-15)
    assert model.score(X, y) == model.score(X, y > 0) == pytest.approx(1 - model.test_error)
    assert log_loss(y, model.predict_proba(X)) == pytest.approx(model.measures["test_loss"], rel=1e-9)
    assert roc_auc_score(y, model.predict_proba(X)[:, 1]) == pytest.approx(model.measures["test_auc"], rel=1e-12)


def test_words_are_answered_where_words_were_learned():
    words = np.array(["sick", "well"])
    silos = {name: (X, words[1 - y]) for name, (X, y) in SILOS.items()}
    model = train(silos, (TEST[0], words[1 - TEST[1]]), classes=("well", "sick"))
    same = train()
    assert model.classes_.tolist() == ["well", "sick"]
    # The two runs differ in noise, by their configs; without noise they are one.
    model = train(silos, None, classes=("well", "sick"), epsilon=None, privacy={"trust": "none"})
    same = train(SILOS, None, epsilon=None, privacy={"trust": "none"})
    np.testing.assert_allclose(model.weights, same.weights, rtol=1e-12)
    np.testing.assert_array_equal(model.predict(TEST[0]) == "sick", same.predict(TEST[0]) == 1)
    assert model.score(TEST[0], words[1 - TEST[1]]) == same.score(*TEST)
    with pytest.raises(InputError, match="y has labels that are none of the model's classes_"):
        model.score(*TEST)


def test_three_classes_and_a_network_are_models_too():
    silos = {name: (X, y + (X[:, 2] > 0.4)) for name, (X, y) in SILOS.items()}
    test = TEST[0], TEST[1] + (TEST[0][:, 2] > 0.4)
    linear = train(silos, test, classes=(0, 1, 2), model={"loss": {"name": "softmax"}})
    assert linear.coef_.shape == (3, 3) and linear.intercept_.shape == (3,)
    z = prepared(test[0]) @ linear.weights.reshape(3, 4).T
    np.testing.assert_array_equal(linear.predict(test[0]), z.argmax(axis=1))
    np.testing.assert_allclose(linear.predict_proba(test[0]), np.exp(z) / np.exp(z).sum(axis=1, keepdims=True))
    network = train(silos, test, classes=(0, 1, 2), model={"loss": {"name": "softmax"}, "hidden": 4, "clip": 1.0})
    for model in (linear, network):
        assert log_loss(test[1], model.predict_proba(test[0])) == pytest.approx(model.measures["test_loss"], rel=1e-9)
        assert model.score(*test) == pytest.approx(1 - model.test_error)
    with pytest.raises(AttributeError, match="a network has no coef_"):
        _ = network.coef_


def test_a_hinge_has_classes_and_no_probabilities():
    model = train(model={"loss": {"name": "hinge"}}, algorithm={"name": "mb-subgradient", "rounds": 8})
    assert not hasattr(model, "predict_proba") and model.score(*TEST) == pytest.approx(1 - model.test_error)


@pytest.mark.filterwarnings("ignore::fedcore.errors.ModelWarning")
def test_numbers_are_answered_in_their_own_units():
    silos = {name: (X, 50 + 10 * np.tanh(X @ [1.0, -2.0, 0.5])) for name, (X, _) in SILOS.items()}
    test = TEST[0], 50 + 10 * np.tanh(TEST[0] @ [1.0, -2.0, 0.5])
    plain = {"loss": {"name": "squared"}, "clip": 4.0, "diameter": 200}
    model = train(silos, test, classes=None, model=plain, epsilon=50.0)
    found = model.predict(test[0])
    np.testing.assert_allclose(found, prepared(test[0]) @ model.weights, rtol=1e-12)
    assert mean_squared_error(test[1], found) ** 0.5 == pytest.approx(model.measures["test_rmse"])
    assert model.score(*test) == pytest.approx(r2_score(test[1], found))
    assert model.coef_.shape == (3,) and isinstance(model.intercept_, float)
    assert not hasattr(model, "classes_")


def test_columns_are_found_by_their_names():
    model = train({name: frames(of) for name, of in SILOS.items()}, frames(TEST))
    table, y = frames(TEST)
    expected = model.predict(table)
    assert np.mean(expected != y) == model.test_error
    np.testing.assert_array_equal(model.predict(table[["pulse", "age", "dose"]]), expected)
    with pytest.warns(ModelWarning, match="X has no names of columns"):
        np.testing.assert_array_equal(model.predict(TEST[0]), expected)
    assert model.feature_names_in_.tolist() == NAMES and model.n_features_in_ == 3


@pytest.mark.parametrize(
    ("records", "message"),
    [
        (pd.DataFrame(TEST[0], columns=["age", "dose", "PULSE"]), "X: column 'pulse' of the model is not there"),
        (frames(TEST)[0].assign(sex=1), "X: column 'sex' is not one of the model; drop it first"),
        (frames(TEST)[0].assign(town="Bonn"), "X: column 'town' is not one of the model; drop it first"),
        (frames(TEST)[0].assign(town="Bonn", sex=1j), "X: columns 'town', 'sex' are not of the model; drop them first"),
        (TEST[0][:, :2], "X: 2 features where the model has 3"),
        (TEST[0][0], r"X: features have the shape \(3,\); wanted \(n, k\)"),
        (frames(TEST)[0].assign(dose=np.nan), "X: features have missing or infinite values in column 'dose'"),
        (frames(TEST)[0].assign(dose="much"), "X: column 'dose': values are texts"),
    ],
)
def test_other_records_are_refused_in_a_sentence(records, message):
    model = train({name: frames(of) for name, of in SILOS.items()}, None)
    with pytest.raises(InputError, match=message):
        model.predict(records)


def test_a_table_is_no_array_without_names():
    with pytest.raises(InputError, match=r"trained on arrays, whose columns have no names; give X.to_numpy\(\)"):
        train(test=None).predict(frames(TEST)[0])


def test_files_with_texts_and_missing_cells_are_predicted_from_a_table(tmp_path):
    features = {"age": {"range": [-5, 5], "missing": []}, "kind": {"categories": ["a", "b"]}}
    paths = {}
    for place, name in enumerate(("north", "south", "test")):
        X, y = drawn(place, 80)
        table = pd.DataFrame({"age": X[:, 0], "kind": np.where(y == 1, "a", "b"), "sick": y})
        table.loc[3, "age"] = np.nan
        paths[name] = tmp_path / f"{name}.csv"
        table.to_csv(paths[name], index=False)
    test = paths.pop("test")
    model = train(paths, test, label="sick", features=features)
    table = pd.read_csv(test)
    with pytest.raises(InputError, match="X: column 'sick' is not one of the model; drop it first"):
        model.predict(table)
    truth = table.pop("sick")
    assert np.mean(model.predict(table) != truth) == model.test_error < 0.2
    with pytest.raises(InputError, match="X: column 'kind' of the model is not there"):
        model.predict(table[["age"]])
    with pytest.raises(InputError, match="X: this model takes texts and missing values; give a DataFrame"):
        model.predict([[1.0, "a"]])


@pytest.fixture(scope="module")
def of_files(tmp_path_factory):
    """A model of files: `age` may be missing, with a code for it, `dose` may not, and `kind` is a text of two."""
    place = tmp_path_factory.mktemp("silos")
    for seed, name in enumerate(("north", "south")):
        X, y = drawn(seed, 40)
        kind, sex = np.where(y == 1, "a", "b"), np.arange(len(y)) % 2
        table = pd.DataFrame({"age": X[:, 0], "dose": X[:, 1], "kind": kind, "sex": sex, "sick": y})
        table.to_csv(place / f"{name}.csv", index=False)
    features = {
        "age": {"range": [-5, 5], "missing": [999, "unknown"]},
        "dose": {"range": [-3, 3]},
        "kind": {"categories": ["a", "b"]},
        "sex": {"categories": [0, 1], "other": False},
    }
    paths = {name: place / f"{name}.csv" for name in ("north", "south")}
    return train(paths, None, label="sick", features=features)


MIXED = pd.DataFrame({"age": [1.0, np.nan, 2.0], "dose": [0.5, 1.5, -1.0], "kind": ["a", "b", "a"], "sex": [0, 1, 1]})
DAY = pd.Timestamp("2024-02-29")


@pytest.mark.parametrize(
    ("records", "message"),
    [
        (MIXED.assign(dose=pd.Categorical(["low", "high", "low"])), "X: column 'dose': some values are no finite numb"),
        (MIXED.assign(dose=pd.Categorical([DAY, DAY, DAY])), "X: column 'dose': values are dates"),
        (MIXED.assign(age=DAY), "X: column 'age': values are dates; make numbers of them first"),
        (MIXED.assign(age=pd.Series([DAY, 1, 2], dtype=object)), "X: column 'age': values are dates"),
        (MIXED.assign(age=DAY - DAY), "X: column 'age': values are durations"),
        (MIXED.assign(age=1j), "X: column 'age': values are complex numbers"),
        (MIXED.assign(age=[[1], [2], [3]]), "X: column 'age': values are of type list; make numbers of them first"),
        (MIXED.assign(age="missing"), "X: column 'age': some values are no finite numbers, nor codes for a missing"),
        (MIXED.assign(dose=["1", "much", "2"]), "X: column 'dose': some values are no finite numbers; make numbers"),
        (MIXED.assign(dose=[0.5, np.nan, 1]), "X: column 'dose': values are missing, which the model's schema has"),
        (MIXED.assign(kind=None), "X: column 'kind': no cell is one of its categories 'a', 'b'"),
        (MIXED.assign(kind=np.nan), "X: column 'kind': no cell is one of its categories 'a', 'b'"),
        (MIXED.assign(kind="zzz"), "X: column 'kind': no cell is one of its categories 'a', 'b'$"),
        (MIXED.assign(kind=[" A", "B", "ZZZ"]), r"X: column 'kind': no cell .* 'a' \(other capitals\), 'b' \(other c"),
        (MIXED.assign(sex=[0, "yes", 1]), "X: column 'sex': 1 of 3 cells are none of its categories 0, 1, and the"),
        (MIXED.assign(sex="yes"), "X: column 'sex': no cell is one of its categories 0, 1$"),
        (MIXED.assign(dose="unknown"), "X: column 'dose': some values are no finite numbers"),
        (MIXED.assign(dose=[0.5, np.inf, 1]), "X: column 'dose': some values are no finite numbers"),
        (MIXED.assign(age=[-np.inf, 1, 1]), "X: column 'age': some values are no finite numbers, nor codes"),
        (MIXED.assign(kind=DAY), "X: column 'kind': values are dates; make texts or numbers of them first"),
        (MIXED.assign(kind=[["a"], ["b"], ["a"]]), "X: column 'kind': values are of type list; make texts or numbers"),
        (MIXED.assign(kind=[{"a": 1}] * 3), "X: column 'kind': values are of type dict"),
        (MIXED.assign(kind=[b"a", b"b", b"a"]), "X: column 'kind': values are bytes"),
        (MIXED.assign(kind=pd.Period("2024-02")), "X: column 'kind': values are of type Period"),
        (MIXED[["age", "dose", "kind", "sex", "kind"]], "X: column 'kind' is there twice"),
        (MIXED[["age", "kind", "kind"]], "X: column 'kind' is there twice"),
        (MIXED.assign(more=DAY), "X: column 'more' is not one of the model; drop it first"),
        (MIXED.assign(more=DAY, sick="no", age=1j), "X: columns 'more', 'sick' are not of the model; drop them first"),
        (MIXED[["age", "kind"]], "X: column 'dose' of the model is not there"),
        (MIXED[:0], r"X: features have the shape \(0, 4\); wanted a row for each record"),
        (pd.DataFrame(), r"X: features have the shape \(0, 0\); wanted a row for each record"),
        (MIXED.to_dict("list"), "X: features are a dictionary; give a DataFrame"),
        ({}, "X: features are a dictionary; give a DataFrame"),
        (MIXED.to_numpy(), "X: this model takes texts and missing values; give a DataFrame"),
        (np.zeros((0, 3)), "X: this model takes texts and missing values; give a DataFrame"),
        (pa.table({"age": [DAY], "dose": [1.0], "kind": ["a"], "sex": [0]}), "X: column 'age': values are dates"),
        (pa.table({"age": [1.0], "dose": [1.0], "kind": [["a"]], "sex": [0]}), "X: column 'kind': values are of type"),
    ],
)
def test_of_texts_and_missing_values_other_records_are_refused_in_a_sentence(of_files, records, message):
    for asked in (of_files.predict, of_files.predict_proba, lambda X: of_files.score(X, [0, 1, 1])):
        with pytest.raises(InputError, match=f"^{message}") as raised:
            asked(records)
        shown = str(raised.value)
        assert "\n" not in shown and not any(cell in shown for cell in ("2024", "yes", "zzz", "ZZZ", "NA"))


def test_of_texts_and_missing_values_any_spelling_of_the_same_cells_is_the_same_record(of_files):
    expected = of_files.predict_proba(MIXED)
    features = np.array([[0.2, 0, 0.5 / 3, 1, 0, 0, 1, 0], [0, 1, 0.5, 0, 1, 0, 0, 1], [0.4, 0, -1 / 3, 1, 0, 0, 0, 1]])
    z = np.hstack([features, np.ones((3, 1))]) @ of_files.weights
    np.testing.assert_array_equal(of_files.predict(MIXED), (z >= 0).astype(int))
    assert np.all((expected[:, 1] >= 0.5) == (z >= 0))
    for other in (
        MIXED.assign(age=["1", "", "2.0"]),
        MIXED.assign(age=[1, 999, 2]),
        MIXED.assign(age=["1", "unknown", 2]),
        MIXED.assign(age=pd.array([1, None, 2], dtype="Int64")),
        MIXED.assign(age=[Decimal(1), None, Decimal(2)]),
        MIXED.assign(age=pd.Series([True, pd.NA, 2], dtype=object)),
        MIXED.astype({"kind": "category"}),
        MIXED.astype({"age": "category", "dose": np.longdouble, "sex": "category"}),
        MIXED.astype({"age": np.longdouble, "dose": "category", "sex": np.longdouble}),
        MIXED.assign(sex=[False, True, True]),
        MIXED.assign(sex=["0", "1.0", " 1"]),
        pa.Table.from_pandas(MIXED),
        MIXED.set_index(pd.Index([7, 7, 7])),
        MIXED.convert_dtypes(),
    ):
        np.testing.assert_array_equal(of_files.predict_proba(other), expected)


def test_cells_of_no_category_count_as_other_and_are_told(of_files):
    strange = MIXED.assign(kind=["a", "A ", 2**70])
    features = np.array([[0.2, 0, 0.5 / 3, 1, 0, 0, 1, 0], [0, 1, 0.5, 0, 0, 1, 0, 1], [0.4, 0, -1 / 3, 0, 0, 1, 0, 1]])
    z = np.hstack([features, np.ones((3, 1))]) @ of_files.weights
    message = (
        r"^X: column 'kind': 2 of 3 cells are none of its categories 'a', 'b' and count as other; cells may be meant "
        r"as 'a' \(other capitals\)$"
    )
    with pytest.warns(ModelWarning, match=message) as caught:
        np.testing.assert_array_equal(of_files.predict(strange), (z >= 0).astype(int))
    assert [each.filename for each in caught] == [__file__]
    with pytest.warns(ModelWarning, match=message) as caught:
        probable = of_files.predict_proba(strange)
    assert [each.filename for each in caught] == [__file__]
    with pytest.warns(ModelWarning, match=message):
        of_files.score(strange, [0, 1, 1])
    # A single record cannot show that the column is a different one: unknown categories are allowed.
    with pytest.warns(ModelWarning, match="X: column 'kind': 1 of 1 cells are none of its categories"):
        np.testing.assert_array_equal(of_files.predict_proba(strange[2:]), probable[2:])


def test_scikit_learn_takes_its_estimator():
    model = train()
    found = permutation_importance(model.estimator, *TEST, n_repeats=2, random_state=0)
    assert found.importances_mean.shape == (3,)


def test_it_says_what_it_is():
    model = train()
    assert repr(model) == f"Trained('mbsgd', epsilon=4, delta=0.000278, test_error={model.test_error:.4g})"
    assert repr(train(test=None)) == "Trained('mbsgd', epsilon=4, delta=0.000278)"
    assert repr(train(epsilon=None, privacy={"trust": "none"})).startswith("Trained('mbsgd', epsilon=None, test_error=")


def test_a_notebook_shows_the_budget_and_the_rounds_and_runs_nothing():
    model = train()
    shown = replace(model, noise="<script>alert(1)</script> & co")._repr_html_()
    assert "<script>" not in shown and "&lt;script&gt;alert(1)&lt;/script&gt; &amp; co" in shown
    assert "<td>north</td><td>90</td><td>8</td><td>4</td>" in shown and "the last 5 of 8 rounds" in shown
    assert "No test records: the error of this model is unknown." in train(test=None)._repr_html_()


def test_no_better_than_no_model_is_told_as_a_warning():
    """All labels of the silos are 0, and the test records are mixed: the model can only answer one class."""
    silos = {name: (X, 0 * y) for name, (X, y) in SILOS.items()}
    test = TEST[0], np.where(np.arange(200) < 90, 1, 0)
    message = "no better than always answering the most frequent class: error 0.45"
    with pytest.warns(ModelWarning, match=message) as caught:
        model = train(silos, test, epsilon=None, privacy={"trust": "none"})
    assert caught[0].filename == __file__ and model.shortfall in str(caught[0].message)
    real = {name: (X, y * 1.5) for name, (X, y) in SILOS.items()}
    with pytest.warns(ModelWarning, match="no better than always answering the mean"):
        train(real, (TEST[0], TEST[1] + 100.5), classes=None, model={"loss": {"name": "squared"}, "clip": 1.0})


def test_a_good_model_is_told_without_a_warning(recwarn):
    train(epsilon=20.0)
    assert not [each for each in recwarn if issubclass(each.category, ModelWarning)]
