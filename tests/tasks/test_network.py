"""A network from a config to the model that MLflow serves: start, metrics, checkpoint, result, estimator."""

import json
import math
import subprocess
import sys
from pathlib import Path

import mlflow.sklearn
import numpy as np
import pandas as pd
import pytest
from scipy.special import log_softmax, softmax

from fedcore.audit.audited_silo import AuditedSilo
from fedcore.audit.instruments.sums import exact_sums
from fedcore.data.constants.pca import Projection
from fedcore.data.records import prepare_records
from fedcore.data.silo_file import open_records
from fedcore.errors import InputError
from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.experiment import Experiment, make_plan
from fedcore.experiment.problem import training_loss
from fedcore.experiment.served.phase_model import PhaseModel, phase_model
from fedcore.home import LedgerFolders
from fedcore.models import OneHiddenLayer
from tasks.mlflow.models import save_model
from tasks.run_store import RunStore
from tasks.training import Training
from tests.patience import HANGS
from tests.registers import registered

SYNTHETIC = {"source": "synthetic", "silos": 3, "records": 40, "features": 3, "test_records": 200, "classes": 4}
DIGITS = {"source": "digits", "labels": "digit"}


def config(data, hidden=6, **sections):
    values = {
        "data": data,
        "model": {"loss": {"name": "softmax"}, "hidden": hidden, "clip": 1, "diameter": 30, "ridge": 0.001},
        "privacy": {"epsilon": 8},
        "algorithm": {"name": "mbsgd", "rounds": 6},
    }
    return ExperimentConfig.model_validate(values | sections)


def trained(made, folder, stop_after=None):
    """A training that ran in this process, to its end or for some rounds, with a durable store."""
    registered(made, LedgerFolders.below(folder))
    training = Training(made, made.in_process(LedgerFolders.below(folder)), RunStore(folder / "run.sqlite"), None)
    training.start()
    done = 0
    while training.phase is not None and done != stop_after:
        training.advance()
        done += 1
    return training


def outputs(w, X, hidden, classes):
    """z2 of each record (n, classes), with weights cut apart by counting."""
    d = X.shape[1]
    W1 = w[: hidden * d].reshape(hidden, d)
    W2 = w[hidden * d :].reshape(classes, hidden + 1)
    return np.clip(X @ W1.T, 0, None) @ W2[:, :hidden].T + W2[:, hidden]


# The start


def test_the_start_is_uniform_public_and_one_for_all_methods(tmp_path):
    made = Experiment.prepare(config(DIGITS, hidden=40), tmp_path)
    w, cut = made.start(), 40 * 65
    assert len(w) == made.plan.problem.objective.dim == cut + 10 * 41
    first, second = w[:cut] * math.sqrt(65), w[cut:] * math.sqrt(40)
    for layer in (first, second):
        assert np.abs(layer).max() <= 1 and np.abs(layer).max() > 0.98
        assert abs(layer.mean()) < 4 / math.sqrt(3 * len(layer)) and layer.var() == pytest.approx(1 / 3, rel=0.1)
    assert len(set(w)) == len(w)
    changes = {"algorithm": {"name": "one-pass-mbsgd", "rounds": 5}, "privacy": {"trust": "none"}, "repetition": 3}
    other = config(DIGITS, 40, **changes)
    np.testing.assert_array_equal(Experiment.prepare(other, tmp_path).start(), w)
    assert (Experiment.prepare(config(DIGITS, 40, seed=1), tmp_path).start() != w).all()


def test_other_models_start_at_the_centre(tmp_path):
    model = {"loss": {"name": "softmax"}}
    np.testing.assert_array_equal(Experiment.prepare(config(DIGITS, model=model), tmp_path).start(), np.zeros(650))
    made = Experiment.prepare(config({"source": "digits"}, model={}), tmp_path)
    np.testing.assert_array_equal(made.start(), np.zeros(65))


def test_a_start_outside_of_the_domain_is_refused_before_anything_is_asked(tmp_path):
    inside = np.linalg.norm(Experiment.prepare(config(SYNTHETIC), tmp_path).start())
    small = {"loss": {"name": "softmax"}, "hidden": 6, "clip": 1, "diameter": 1.99 * inside}
    for refused in (make_plan, lambda made: Experiment.prepare(made, tmp_path)):
        with pytest.raises(InputError, match=r"model\.diameter = .* starts at weights of norm .* choose more than"):
            refused(config(SYNTHETIC, model=small))
    make_plan(config(SYNTHETIC, model=small | {"diameter": 2.01 * inside}))


def test_a_network_is_what_silos_agree_to_and_audits_can_read():
    made = config(SYNTHETIC)
    assert training_loss(made, None) == OneHiddenLayer(4, 6)
    audited = AuditedSilo(make_plan(made), made.algorithm, OneHiddenLayer(4, 6), "silo-000", b"k" * 32)
    assert audited.answer.features == 4 and exact_sums(audited, np.random.default_rng(0)).passed


def test_the_smoothness_of_a_plan_is_infinite_and_its_width_that_of_the_paper():
    made = config(SYNTHETIC | {"features": 60, "classes": 10}, hidden=200)
    problem = make_plan(made).problem
    assert (problem.objective.dim, problem.objective.smoothness, problem.objective.clip) == (14210, math.inf, 1.0)


# Runs


@pytest.mark.parametrize(
    ("data", "privacy", "algorithm"),
    [
        (DIGITS, {"epsilon": 8}, {"name": "mbsgd", "rounds": 6}),
        (SYNTHETIC, {"epsilon": 8, "noise": "guarded", "ledger": "sqlite"}, {"name": "mbsgd", "rounds": 3}),
        (SYNTHETIC, {"epsilon": 8}, {"name": "localized-mbsgd", "rounds": [3, 2], "lam": 0.1, "max_phases": 3}),
        (SYNTHETIC, {"epsilon": 8}, {"name": "one-pass-mbsgd", "rounds": 5}),
        (SYNTHETIC, {"epsilon": 8}, {"name": "mbsgd", "rounds": 3, "batch": 10}),
        (DIGITS | {"pca": {"dimension": 9}}, {"epsilon": 8}, {"name": "mbsgd", "rounds": 4}),
        (SYNTHETIC | {"classes": 2}, {"trust": "none"}, {"name": "mbsgd", "rounds": 6}),
    ],
)
def test_a_run_reports_what_a_recomputation_finds(tmp_path, data, privacy, algorithm, request):
    if privacy.get("noise") == "guarded":
        request.getfixturevalue("policies")
    made = Experiment.prepare(config(data, privacy=privacy, algorithm=algorithm), tmp_path / "silos")
    classes, width = len(made.config.data.label_values), made.dataset.dim
    assert make_plan(made.config).digest == made.plan.digest
    training = trained(made, tmp_path)
    result, w = training.finish(), training.model
    training.backend.close()
    assert w.shape == (6 * width + classes * 7,) and (w != made.start()).any()
    z, y = outputs(w, made.dataset.test.X, 6, classes), made.dataset.test.y.astype(int)
    assert result.test_error == pytest.approx((z.argmax(axis=1) != y).mean())
    assert result.test_loss == pytest.approx(-log_softmax(z, axis=1)[np.arange(len(y)), y].mean(), rel=1e-12)
    assert result.weights_shape == ([6, width], [classes, 7])
    assert result.epsilon_accounted is None or 7.9 < result.epsilon_accounted <= 8
    json.dumps(result.as_json(), allow_nan=False)
    if made.config.simulation_metrics:
        held = [open_records(source) for source in made.dataset.sources]
        wrong = [outputs(w, r.X, 6, classes).argmax(axis=1) != r.y for r in held]
        assert result.simulation["train_error"] == pytest.approx(np.concatenate(wrong).mean())


def test_without_noise_a_network_learns_what_no_linear_model_can(tmp_path):
    """Labels by whether two features have the same sign: softmax regression guesses, eight units do not."""
    rng = np.random.default_rng(5)
    for name in ("north", "south", "public"):
        x = rng.uniform(-1, 1, size=(200, 2))
        pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "same": (x.prod(axis=1) > 0).astype(int)}).to_csv(
            tmp_path / f"{name}.csv", index=False
        )
    data = {
        "source": "files",
        "features": ["a", "b"],
        "label": "same",
        "classes": [0, 1],
        "silos": [{"name": name, "path": str(tmp_path / f"{name}.csv")} for name in ("north", "south")],
        "test": str(tmp_path / "public.csv"),
    }
    algorithm = {"name": "mbsgd", "rounds": 300, "step": 3, "average": "last"}
    model = {"loss": {"name": "softmax"}, "clip": 10, "diameter": 100}
    errors = []
    for more in ({}, {"hidden": 8}):
        made = config(data, model=model | more, privacy={"trust": "none"}, algorithm=algorithm)
        folder = tmp_path / str(len(more))
        folder.mkdir()
        errors.append(trained(Experiment.prepare(made, tmp_path / "silos"), folder).finish().test_error)
    assert errors[0] > 0.3 and errors[1] < 0.1


def test_a_resumed_run_ends_with_the_same_bits(tmp_path):
    made = Experiment.prepare(config(SYNTHETIC), tmp_path / "silos")
    (tmp_path / "whole").mkdir()
    (tmp_path / "parts").mkdir()
    whole = trained(made, tmp_path / "whole").finish()
    trained(made, tmp_path / "parts", stop_after=3)._checkpoint()
    assert trained(made, tmp_path / "parts").finish().weights_sha256 == whole.weights_sha256


# The estimator

RAW = np.random.default_rng(1).normal(size=(300, 3)) * 5


@pytest.mark.parametrize("classes", [("no", "yes"), (0, 1, 2), ("a", 3, "c", "d")])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("projected", [True, False])
def test_the_estimator_has_the_classes_and_probabilities_of_training(classes, bias, projected):
    projection = Projection.fit([RAW[:50] / 4.0], 2) if projected else None
    width, count = (2 if projected else 3) + bias, len(classes)
    w = 3 * np.random.default_rng(2).normal(size=5 * width + count * 6)
    model = PhaseModel(w, bias, ("a", "b", "c"), classes, 4.0, 2.0, projection, multinomial=True, hidden=5)
    X = prepare_records(RAW, np.zeros(300), bias, 2.0, 4.0, projection).X
    w[-count * 6 :].reshape(count, 6)[:, -1] -= outputs(w, X, 5, count).mean(axis=0)  # or one class could win all
    z = outputs(w, X, 5, count)
    expected = [str(classes[k]) for k in z.argmax(axis=1)]
    assert len(set(expected)) >= 2
    frame, estimator = pd.DataFrame(RAW, columns=["a", "b", "c"]), model.estimator()
    assert [str(label) for label in estimator.predict(frame)] == expected
    np.testing.assert_allclose(estimator.predict_proba(frame), softmax(z, axis=1), rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("classes", [(0, 1), (0, 1, 2)])
def test_equal_outputs_predict_the_first_class_as_training_counts_it(classes):
    model = PhaseModel(np.zeros(4 * 2 + len(classes) * 5), True, ("a",), classes, multinomial=True, hidden=4)
    assert model.estimator().predict(model.example()).tolist() == [0]
    _, wrong = OneHiddenLayer(len(classes), 4).evaluate(model.w, np.ones((1, 2)), np.zeros(1))
    assert not wrong.any()


def test_weights_of_another_size_are_refused():
    with pytest.raises(ValueError, match=r"w has shape \(4,\).*\(23,\)"):
        PhaseModel(np.zeros(4), True, ("a",), (0, 1, 2), multinomial=True, hidden=4)


@pytest.mark.parametrize("pca", [None, {"dimension": 9}])
def test_the_model_that_mlflow_saves_predicts_as_ours(tmp_path, pca):
    algorithm = {"name": "mbsgd", "rounds": 20}
    made = Experiment.prepare(config(DIGITS | {"pca": pca}, algorithm=algorithm), tmp_path / "silos")
    training = trained(made, tmp_path)
    model = phase_model(made, training.model)
    save_model(model, tmp_path / "model", {"model_id": "m", "model_uuid": "m", "run_id": "r"})
    loaded = mlflow.sklearn.load_model(str(tmp_path / "model"))
    raw = np.random.default_rng(4).uniform(size=(200, 64))
    X = prepare_records(raw, np.zeros(200), True, 1.0, model.divide_by, model.projection).X
    expected = outputs(training.model, X, 6, 10).argmax(axis=1).tolist()
    assert len(set(expected)) > 1
    assert loaded.predict(pd.DataFrame(raw, columns=list(model.feature_names))).tolist() == expected


@pytest.mark.slow
@pytest.mark.minutes
def test_mlflow_models_predict_serves_a_network(tmp_path):
    w = 3 * np.random.default_rng(4).normal(size=5 * 3 + 3 * 6)
    model = PhaseModel(w, True, ("age", "dose"), ("low", "mid", "high"), 4.0, 2.0, multinomial=True, hidden=5)
    save_model(model, tmp_path / "model", {"model_id": "m", "model_uuid": "m", "run_id": "r"})
    raw = np.random.default_rng(3).normal(size=(40, 2)) * 5
    given, answer = tmp_path / "input.json", tmp_path / "output.json"
    given.write_text(json.dumps({"dataframe_split": {"columns": ["age", "dose"], "data": raw.tolist()}}))
    subprocess.run(
        [
            sys.executable,
            "-m",
            "mlflow",
            "models",
            "predict",
            "-m",
            str(tmp_path / "model"),
            "-i",
            str(given),
            "-t",
            "json",
            "-o",
            str(answer),
            "--env-manager",
            "local",
        ],
        check=True,
        timeout=HANGS,
        cwd=Path(__file__).parents[2],
        capture_output=True,
    )
    z = outputs(w, prepare_records(raw, np.zeros(40), True, 2.0, 4.0).X, 5, 3)
    expected = [model.classes[k] for k in z.argmax(axis=1)]
    assert len(set(expected)) >= 2
    assert json.loads(answer.read_text())["predictions"] == expected


@pytest.mark.parametrize("classes", [None, ("low", "mid", "high"), (0, 1)], ids=str)
def test_a_network_that_scikit_learn_has_not_predicts_what_its_weights_say(tmp_path, classes):
    """Softplus units, and a real label in its own units: 10 to 90 is -1 to 1 in training."""
    rng, outputs_ = np.random.default_rng(4), len(classes or "1")
    w, raw = rng.standard_normal(5 * 4 + outputs_ * 6), 3 * rng.standard_normal((200, 3))
    model = PhaseModel(
        w,
        True,
        ("a", "b", "c"),
        classes,
        4.0,
        2.0,
        multinomial=classes is not None,
        hidden=5,
        activation="softplus",
        label_range=(10.0, 90.0) if classes is None else None,
    )
    X = np.hstack([raw / 4.0, np.ones((200, 1))])
    X *= np.minimum(1.0, 2.0 / np.linalg.norm(X, axis=1))[:, None]
    W1, W2 = w[:20].reshape(5, 4), w[20:].reshape(outputs_, 6)
    z = np.log1p(np.exp(X @ W1.T)) @ W2[:, :5].T + W2[:, 5]
    save_model(model, tmp_path / "model", {"model_id": "m", "model_uuid": "m", "run_id": "r"})
    for made in (model.estimator(), mlflow.sklearn.load_model(str(tmp_path / "model"))):
        found = made.predict(raw)
        if classes is None:
            np.testing.assert_allclose(found, 50.0 + 40.0 * z[:, 0], rtol=1e-12)
        else:
            assert found.tolist() == [classes[at] for at in z.argmax(axis=1)]
            p = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
            np.testing.assert_allclose(made.predict_proba(raw), p, rtol=1e-12)
