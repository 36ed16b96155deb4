"""Softmax regression from a config to the model that MLflow serves: metrics, checkpoint, result, estimator."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy.special import log_softmax

from fedcore.audit.audited_silo import AuditedSilo
from fedcore.audit.instruments.sums import exact_sums
from fedcore.data.constants.pca import Projection
from fedcore.data.records import prepare_records
from fedcore.data.silo_file import open_records
from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.experiment import Experiment, make_plan
from fedcore.experiment.problem import training_loss
from fedcore.experiment.served.phase_model import PhaseModel, phase_model
from fedcore.home import LedgerFolders
from fedcore.models import SoftmaxRegression
from tasks.mlflow.models import save_model
from tasks.run_store import RunStore
from tasks.training import Training
from tests.registers import registered

SYNTHETIC = {"source": "synthetic", "silos": 3, "records": 40, "features": 3, "test_records": 200, "classes": 4}


def config(data, **sections):
    values = {
        "data": data,
        "model": {"loss": {"name": "softmax"}, "diameter": 30, "ridge": 0.001},
        "privacy": {"epsilon": 8},
        "algorithm": {"name": "mbsgd", "rounds": 6},
    }
    return ExperimentConfig.model_validate(values | sections)


def trained(made, folder, stop_after=None):
    """A training that ran in this process, to its end or for some rounds, with a durable store."""
    backend = registered(made, LedgerFolders.below(folder)).in_process(LedgerFolders.below(folder))
    training = Training(made, backend, RunStore(folder / "run.sqlite"), None)
    training.start()
    done = 0
    while training.phase is not None and done != stop_after:
        training.advance()
        done += 1
    return training


@pytest.mark.parametrize(
    ("data", "privacy"),
    [
        ({"source": "digits", "labels": "digit"}, {"epsilon": 8}),
        (SYNTHETIC, {"epsilon": 8}),
        (SYNTHETIC, {"epsilon": 8, "noise": "guarded", "ledger": "sqlite"}),
        ({"source": "digits", "labels": "digit", "pca": {"dimension": 9}}, {"epsilon": 8}),
        ({"source": "digits"}, {"trust": "none"}),
    ],
)
def test_a_run_reports_what_a_recomputation_finds(tmp_path, data, privacy, request):
    if privacy.get("noise") == "guarded":
        request.getfixturevalue("policies")
    made = Experiment.prepare(config(data, privacy=privacy), tmp_path / "silos")
    classes = len(made.config.data.label_values)
    assert made.plan.problem.objective.dim == classes * made.dataset.dim
    assert make_plan(made.config).digest == made.plan.digest
    training = trained(made, tmp_path)
    result, w = training.finish(), training.model
    training.backend.close()
    z = made.dataset.test.X @ w.reshape(classes, -1).T
    y = made.dataset.test.y.astype(int)
    assert result.test_error == pytest.approx((z.argmax(axis=1) != y).mean())
    assert result.test_loss == pytest.approx(-log_softmax(z, axis=1)[np.arange(len(y)), y].mean(), rel=1e-12)
    assert result.weights_shape == (classes, made.dataset.dim)
    assert result.epsilon_accounted is None or result.epsilon_accounted <= 8
    json.dumps(result.as_json(), allow_nan=False)
    if made.config.simulation_metrics:
        held = [open_records(source) for source in made.dataset.sources]
        wrong = [(r.X @ w.reshape(classes, -1).T).argmax(axis=1) != r.y for r in held]
        assert result.simulation["train_error"] == pytest.approx(np.concatenate(wrong).mean())
    assert result.test_error < 0.9


def test_a_resumed_run_ends_with_the_same_bits(tmp_path):
    made = Experiment.prepare(config(SYNTHETIC), tmp_path / "silos")
    (tmp_path / "whole").mkdir()
    (tmp_path / "parts").mkdir()
    whole = trained(made, tmp_path / "whole").finish()
    trained(made, tmp_path / "parts", stop_after=3)._checkpoint()
    assert trained(made, tmp_path / "parts").finish().weights_sha256 == whole.weights_sha256


def test_the_loss_that_silos_agree_to_says_the_number_of_classes_and_audits_can_read_it():
    made = config(SYNTHETIC)
    assert training_loss(made, None) == SoftmaxRegression(4)
    audited = AuditedSilo(make_plan(made), made.algorithm, SoftmaxRegression(4), "silo-000", b"k" * 32)
    assert audited.answer.features == 4 and exact_sums(audited, np.random.default_rng(0)).passed


# The estimator

RAW = np.random.default_rng(1).normal(size=(300, 3)) * 5


def predicted(model, raw):
    return [str(label) for label in model.estimator().predict(pd.DataFrame(raw, columns=list(model.feature_names)))]


@pytest.mark.parametrize("classes", [("no", "yes"), (0, 1, 2), ("a", 3, "c", "d")])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("projected", [True, False])
def test_the_estimator_predicts_the_class_of_the_largest_predictor(classes, bias, projected):
    projection = Projection.fit([RAW[:50] / 4.0], 2) if projected else None
    width = (2 if projected else 3) + bias
    w = np.random.default_rng(2).normal(size=len(classes) * width)
    model = PhaseModel(w, bias, ("a", "b", "c"), classes, 4.0, 0.5, projection, multinomial=True)
    X = prepare_records(RAW, np.zeros(300), bias, 0.5, 4.0, projection).X
    expected = [str(classes[k]) for k in (X @ w.reshape(len(classes), -1).T).argmax(axis=1)]
    assert len(set(expected)) >= max(2, len(classes) - 1)
    assert predicted(model, RAW) == expected
    estimator = model.estimator()
    rows = 1 if len(classes) == 2 else len(classes)
    assert (estimator.coef_.shape, estimator.intercept_.shape) == ((rows, 3), (rows,))


@pytest.mark.parametrize("classes", [("no", "yes"), (0, 1, 2), ("a", 3, "c", "d")])
@pytest.mark.parametrize("multinomial", [True, False])
@pytest.mark.parametrize("projected", [True, False])
def test_features_scaled_apart_from_the_bias_are_scaled_before_the_model(classes, multinomial, projected):
    """Scaling then moves a predictor against its bias, so the estimator needs it, for probabilities too."""
    if not multinomial:
        classes = classes[:2]
    projection = Projection.fit([RAW[:50] / 4.0], 2) if projected else None
    W = np.random.default_rng(2).normal(size=(len(classes) if multinomial else 1, 3 if projected else 4))
    W[:, -1] *= 0.1  # biases that do not drown features of norm 0.5
    model = PhaseModel(
        W.ravel(), True, ("a", "b", "c"), classes, 4.0, 0.5, projection, multinomial=multinomial, normalise="features"
    )
    X = prepare_records(RAW, np.zeros(300), True, 0.5, 4.0, projection, "features").X
    z = X @ W.T
    winners = z.argmax(axis=1) if multinomial else (z[:, 0] >= 0).astype(int)
    expected = [str(classes[k]) for k in winners]
    assert len(set(expected)) >= 2 and predicted(model, RAW) == expected
    together = replace(model, normalise="record")
    assert predicted(together, RAW) != expected  # it does make a difference
    logits = z if multinomial else np.c_[np.zeros(300), z[:, 0]]
    frame = pd.DataFrame(RAW, columns=["a", "b", "c"])
    np.testing.assert_allclose(model.estimator().predict_proba(frame), np.exp(log_softmax(logits, axis=1)), atol=1e-12)


def test_a_model_of_zeros_predicts_the_same_class_with_features_scaled_apart():
    both = [PhaseModel(np.zeros(2), True, ("a",), (0, 1), normalise=way) for way in ("record", "features")]
    assert [model.estimator().predict(model.example()).tolist() for model in both] == [[1], [1]]


def test_probabilities_are_those_of_training_where_no_record_is_shortened():
    w = np.random.default_rng(3).normal(size=12)
    model = PhaseModel(w, True, ("a", "b", "c"), (0, 1, 2), feature_bound=1e9, multinomial=True)
    z = np.c_[RAW, np.ones(300)] @ w.reshape(3, 4).T
    frame = pd.DataFrame(RAW, columns=["a", "b", "c"])
    np.testing.assert_allclose(model.estimator().predict_proba(frame), np.exp(log_softmax(z, axis=1)), atol=1e-12)


@pytest.mark.parametrize("classes", [(0, 1), (0, 1, 2)])
def test_a_model_of_zeros_predicts_the_first_class_as_training_counts_it(classes):
    model = PhaseModel(np.zeros(2 * len(classes)), True, ("a",), classes, multinomial=True)
    assert model.estimator().predict(model.example()).tolist() == [0]
    _, wrong = SoftmaxRegression(len(classes)).evaluate(model.w, np.ones((1, 2)), np.zeros(1))
    assert not wrong.any()


def test_weights_of_another_number_of_classes_are_refused():
    with pytest.raises(ValueError, match=r"w has shape \(4,\).*\(6,\)"):
        PhaseModel(np.zeros(4), True, ("a",), (0, 1, 2), multinomial=True)


def test_the_model_that_mlflow_saves_predicts_as_ours(tmp_path):
    import mlflow.sklearn

    made = Experiment.prepare(config({"source": "digits", "labels": "digit"}), tmp_path / "silos")
    training = trained(made, tmp_path)
    model = phase_model(made, training.model)
    save_model(model, tmp_path / "model", {"model_id": "m", "model_uuid": "m", "run_id": "r"})
    loaded = mlflow.sklearn.load_model(str(tmp_path / "model"))
    raw = np.random.default_rng(4).uniform(size=(200, 64))
    X = prepare_records(raw, np.zeros(200), True, 1.0).X
    expected = (X @ training.model.reshape(10, 65).T).argmax(axis=1).tolist()
    assert loaded.predict(pd.DataFrame(raw, columns=list(model.feature_names))).tolist() == expected
    assert loaded.coef_.shape == (10, 64) and loaded.classes_.tolist() == list(range(10))


def test_the_model_that_mlflow_saves_scales_features_apart_from_the_bias(tmp_path):
    """Silos by similarity, principal components, features scaled before the bias: raw images in, classes out."""
    import mlflow.sklearn

    data = {
        "source": "digits",
        "labels": "digit",
        "split": "similarity",
        "similarity": {"silos": 3, "gamma": 0.5},
        "pca": {"dimension": 6, "constants": "simulation"},
    }
    made = config(data)
    made = made.model_copy(update={"model": made.model.model_copy(update={"normalise": "features"})})
    made = Experiment.prepare(made, tmp_path / "silos")
    model = phase_model(made, trained(made, tmp_path).model)
    assert model.normalise == "features"
    save_model(model, tmp_path / "model", {"model_id": "m", "model_uuid": "m", "run_id": "r"})
    loaded = mlflow.sklearn.load_model(str(tmp_path / "model"))
    raw = np.random.default_rng(4).uniform(size=(200, 64))
    X = prepare_records(raw, np.zeros(200), True, 1.0, 1.0, made.dataset.projection, "features").X
    expected = (X @ model.w.reshape(10, 7).T).argmax(axis=1).tolist()
    assert loaded.predict(pd.DataFrame(raw, columns=list(model.feature_names))).tolist() == expected


def test_a_users_files_of_three_classes(tmp_path):
    rng = np.random.default_rng(5)
    for name in ("north", "south", "public"):
        x = rng.normal(size=(60, 2))
        kind = np.array(["low", "mid", "high"])[np.digitize(x[:, 0], [-0.5, 0.5])]
        pd.DataFrame({"age": x[:, 0], "dose": x[:, 1], "risk": kind}).to_csv(tmp_path / f"{name}.csv", index=False)
    data = {
        "source": "files",
        "features": ["age", "dose"],
        "label": "risk",
        "classes": ["low", "mid", "high"],
        "silos": [{"name": name, "path": str(tmp_path / f"{name}.csv")} for name in ("north", "south")],
        "test": str(tmp_path / "public.csv"),
    }
    algorithm = {"name": "mbsgd", "rounds": 100, "average": "last"}
    made = Experiment.prepare(config(data, privacy={"trust": "none"}, algorithm=algorithm), tmp_path / "silos")
    training = trained(made, tmp_path)
    assert training.finish().test_error < 0.2
    frame = pd.read_csv(tmp_path / "public.csv")
    found = phase_model(made, training.model).estimator().predict(frame[["age", "dose"]])
    assert (found != frame["risk"]).mean() == pytest.approx(training.finish().test_error)
