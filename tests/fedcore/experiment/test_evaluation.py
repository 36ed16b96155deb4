"""Measures on test data against scikit-learn's, and against those of constant answers."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics
from sklearn.dummy import DummyClassifier, DummyRegressor

from fedcore.data.records import Records
from fedcore.experiment.evaluation import area_under_curve, measures
from fedcore.experiment.result import shortfall
from fedcore.losses import Logistic, Squared
from fedcore.models import Linear, SoftmaxRegression
from tests.flows.results import made_result


def drawn(classes, n=300, d=4, seed=0):
    rng = np.random.default_rng(seed)
    X, w = rng.normal(size=(n, d)), rng.normal(size=(classes, d))
    numbers = (X @ w.T + rng.gumbel(size=(n, classes)) + np.array([2.0] + [0.0] * (classes - 1))).argmax(axis=1)
    return X, numbers, w + rng.normal(size=w.shape)


def test_two_classes_are_measured_as_by_scikit_learn():
    X, numbers, w = drawn(2)
    w = w[1] - w[0]
    found = measures(Linear(Logistic()), w, Records(X, 2.0 * numbers - 1.0), ("no", "yes"))
    predicted = (X @ w >= 0).astype(int)
    assert found["test_error"] == pytest.approx(1 - metrics.accuracy_score(numbers, predicted))
    assert found["test_auc"] == pytest.approx(metrics.roc_auc_score(numbers, X @ w))
    assert found["test_loss"] == pytest.approx(metrics.log_loss(numbers, 1 / (1 + np.exp(-X @ w))))
    recalls = metrics.recall_score(numbers, predicted, average=None)
    assert list(found["test_recall"].values()) == pytest.approx(list(recalls)) and list(found["test_recall"]) == [
        "no",
        "yes",
    ]
    constant = DummyClassifier(strategy="most_frequent").fit(X, numbers).score(X, numbers)
    assert found["majority_error"] == pytest.approx(1 - constant)


@pytest.mark.parametrize("classes", [2, 3])
def test_several_classes_are_measured_as_by_scikit_learn(classes):
    X, numbers, W = drawn(classes)
    model = SoftmaxRegression(classes)
    found = measures(model, W.ravel(), Records(X, numbers.astype(float)), tuple("abc"[:classes]))
    z = X @ W.T
    shares = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
    expected = metrics.roc_auc_score(numbers, shares if classes > 2 else shares[:, 1], multi_class="ovr")
    assert found["test_auc"] == pytest.approx(expected)
    assert found["test_error"] == pytest.approx(np.mean(z.argmax(axis=1) != numbers))
    # A class that no test record has is not among the recalls, nor the areas.
    few = measures(model, W.ravel(), Records(X, np.zeros(len(X))), tuple("abc"[:classes]))
    assert list(few["test_recall"]) == ["a"] and few["majority_error"] == 0 and few["test_auc"] is None


@pytest.mark.parametrize("ends", [None, (10.0, 60.0)])
def test_real_labels_are_measured_in_their_own_units(ends):
    rng = np.random.default_rng(4)
    X, w = rng.normal(size=(200, 3)), rng.normal(size=3)
    labels = X @ w + rng.normal(size=200) if ends is None else 35 + 20 * (X @ w)  # some beyond the range
    y = labels if ends is None else (labels - 35) / 25
    predicted = X @ w if ends is None else 35 + 25 * (X @ w)
    found = measures(Linear(Squared()), w, Records(X, y), None, ends)
    assert found["test_rmse"] == pytest.approx(metrics.root_mean_squared_error(labels, predicted))
    assert found["test_mae"] == pytest.approx(metrics.mean_absolute_error(labels, predicted))
    assert found["variance_explained"] == pytest.approx(metrics.r2_score(labels, predicted))
    constant = DummyRegressor().fit(X, labels).predict(X)
    assert found["mean_rmse"] == pytest.approx(metrics.root_mean_squared_error(labels, constant))
    assert "test_error" not in found


@given(st.lists(st.tuples(st.sampled_from([-1.0, 0.0, 0.5, 2.0]), st.booleans()), min_size=1, max_size=30))
def test_the_area_is_the_part_of_pairs_in_order(pairs):
    scores, positive = np.array([score for score, _ in pairs]), np.array([flag for _, flag in pairs])
    wins = [(a > b) + (a == b) / 2 for a in scores[positive] for b in scores[~positive]]
    assert area_under_curve(scores, positive) == (pytest.approx(np.mean(wins)) if wins else None)


def test_a_model_that_is_no_better_than_none_is_called_so():
    good, bad = made_result(test_error=0.2, majority_error=0.4), made_result(test_error=0.4, majority_error=0.4)
    assert shortfall(good) is None and shortfall(made_result(test_error=0.2)) is None
    assert shortfall(bad) == "no better than always answering the most frequent class: error 0.4, without a model 0.4"
    real = made_result(test_error=None, test_rmse=60.5, mean_rmse=60.0)
    assert shortfall(real) == "no better than always answering the mean: error 60.5, without a model 60"


def test_errors_by_silo_are_those_of_each_part_alone():
    X, numbers, w = drawn(2)
    w, y = w[1] - w[0], 2.0 * numbers - 1.0
    parts = (("a", 50), ("b", 230), ("c", 20))
    found = measures(Linear(Logistic()), w, Records(X, y), (0, 1), parts=parts)
    bounds = {"a": (0, 50), "b": (50, 280), "c": (280, 300)}
    alone = {name: measures(Linear(Logistic()), w, Records(X[i:j], y[i:j]), (0, 1)) for name, (i, j) in bounds.items()}
    assert found["test_errors"] == {name: each["test_error"] for name, each in alone.items()}
    assert found["silo_mean_error"] == pytest.approx(np.mean([each["test_error"] for each in alone.values()]))
    majority = np.mean([each["majority_error"] for each in alone.values()])
    assert found["silo_mean_majority_error"] == pytest.approx(majority)
