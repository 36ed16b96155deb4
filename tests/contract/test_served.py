"""Every registered loss: a served model predicts the loss's link of the predictors of training."""

import numpy as np
import pytest

import fedcore
from fedcore.losses import LOSSES, REALS, Softmax
from fedcore.models.model_config import ModelConfig
from tests.contract.drawn_labels import drawn

KINDS = {**LOSSES, "softmax": Softmax}
METHOD = {"name": "mb-subgradient", "rounds": 6}
CLASSES = ("low", "middle", "high")


def records(loss, seed, count=60):
    """Features, and labels as a user's file has them: words where the loss takes classes."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(count, 3))
    if loss.labels.numbered:
        return X, np.array(CLASSES)[rng.integers(3, size=count)]
    y = drawn(loss.labels, rng, count)
    return X, np.where(y > 0, "high", "low") if loss.labels.classes else y


def prepared(X):
    longer = np.hstack([X, np.ones((len(X), 1))])
    return longer / np.maximum(1.0, np.linalg.norm(longer, axis=1, keepdims=True))


@pytest.mark.parametrize("name", sorted(KINDS))
def test_a_model_is_served_and_measured_as_its_loss_states(name, tmp_path):
    loss = KINDS[name]()
    classes = (CLASSES if loss.labels.numbered else ("low", "high")) if loss.labels.classes else None
    test = records(loss, 3, 200)
    found = fedcore.train(
        {"ash": records(loss, 1), "birch": records(loss, 2)},
        test=test,
        epsilon=4.0,
        seed=0,
        classes=classes,
        model={"loss": {"name": name}, "clip": 1.0},
        algorithm=METHOD,
    )
    outputs = 3 if loss.labels.numbered else 1
    z = prepared(test[0]) @ found.weights.reshape(outputs, -1).T
    means = loss.link.inverse(z if outputs > 1 else z[:, 0])
    predicted = found.predict(test[0])
    if classes is None:
        np.testing.assert_allclose(predicted, means, rtol=1e-10, atol=1e-12)
        assert found.measures["test_rmse"] == pytest.approx(np.sqrt(np.mean((means - test[1]) ** 2)), rel=1e-10)
        assert "test_error" not in found.measures
    else:
        which = z.argmax(axis=1) if outputs > 1 else (z[:, 0] >= 0).astype(int)
        assert predicted.tolist() == [classes[k] for k in which]
        assert found.measures["test_error"] == pytest.approx(np.mean(predicted != test[1]))
        assert "test_rmse" not in found.measures
    assert hasattr(found, "predict_proba") == loss.link.probable
    if loss.link.probable:
        shares = found.predict_proba(test[0])
        np.testing.assert_allclose(shares if outputs > 1 else shares[:, 1], means, rtol=1e-10)
    found.save(tmp_path / "model.json")
    np.testing.assert_array_equal(fedcore.Trained.load(tmp_path / "model.json").predict(test[0]), predicted)


@pytest.mark.parametrize("name", sorted(KINDS))
def test_a_losses_pair_is_of_its_labels_and_pulls_in_opposite_directions(name):
    loss = KINDS[name]()
    low, high = loss.labels.pair
    assert loss.labels.contains(np.array([low, high])).all() and loss.labels.opposite(low) == high
    assert not loss.labels.contains(np.array([np.nan, np.inf, -np.inf])).any()
    z = np.zeros((2, 2)) if loss.labels.numbered else np.zeros(2)
    one, other = loss.residual(z, np.array([low, high]))
    np.testing.assert_allclose(one, -other)
    assert np.abs(one).min() > 0.1
    assert loss.labels.unbounded == (loss.labels == REALS)
    assert ModelConfig(loss=loss, clip=1.0).class_ids == loss.labels.numbered
