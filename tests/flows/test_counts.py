"""A Poisson regression on files of counts, from the config to the served model."""

import hashlib

import mlflow.sklearn
import numpy as np
import pandas as pd
import pytest
import yaml
from mlflow import MlflowClient
from sklearn.metrics import mean_absolute_error, root_mean_squared_error

import fedcore
from fedcore.data.file_sources import file_sources
from fedcore.data.inspection import inspected
from fedcore.data.silo_file import open_records
from fedcore.errors import InputError, SiloError
from fedcore.experiment.config import ExperimentConfig
from fedcore.home import Home
from tests.flows.driving import run

SIZES = {"ash": 400, "birch": 250, "test": 500}
WEIGHTS = (0.9, -1.4, 0.7)


def table(name):
    """Ages, doses and counts whose mean depends on them."""
    rng = np.random.default_rng([SIZES[name], 7])
    age, dose = rng.uniform(20, 100, SIZES[name]), rng.uniform(2, 8, SIZES[name])
    mean = np.exp(WEIGHTS[0] * (age - 60) / 40 + WEIGHTS[1] * (dose - 5) / 3 + WEIGHTS[2])
    return pd.DataFrame({"age": age, "dose": dose, "visits": rng.poisson(mean)})


@pytest.fixture
def home(tmp_path):
    return Home(tmp_path / "home").make()


@pytest.fixture
def files(tmp_path):
    for name in SIZES:
        table(name).to_csv(tmp_path / f"{name}.csv", index=False)
    return tmp_path


def config(files, schema=True, **sections):
    ranges = {"age": {"range": [20, 100]}, "dose": {"range": [2, 8]}}
    return ExperimentConfig.model_validate(
        {
            "name": "counts",
            "data": {
                "source": "files",
                "label": "visits",
                "classes": None,
                "silos": [{"name": name, "path": str(files / f"{name}.csv")} for name in ("ash", "birch")],
                "test": str(files / "test.csv"),
                "features": ranges if schema else ["age", "dose"],
            },
            "model": {"loss": {"name": "poisson"}, "clip": 4.0, "diameter": 8.0},
            "algorithm": {"name": "mbsgd", "rounds": 40, "step": 0.5, "average": "last"},
            "privacy": {"epsilon": 4},
            "cluster": {"backend": "in-process"},
            "tracking": {"mlflow": True},
            **sections,
        }
    )


def predictors(frame, w):
    """z of each record by hand: columns mapped to -1 to 1, a one beside them, divided by the longest norm."""
    X = np.column_stack([(frame["age"] - 60) / 40, (frame["dose"] - 5) / 3, np.ones(len(frame))])
    return X / np.sqrt(3.0) @ w


def test_a_run_measures_the_mean_and_serves_it(home, files):
    made = config(files)
    result = run(home, made)
    client = MlflowClient(tracking_uri=home.mlflow_uri)
    (experiment,) = client.search_experiments(filter_string="name = 'counts'")
    saved, *_ = client.search_logged_models([experiment.experiment_id])  # the phase's and the run's are one model
    served, test = mlflow.sklearn.load_model(saved.artifact_location), table("test")
    w = served[-1].coef_
    assert hashlib.sha256(w.tobytes()).hexdigest() == result.weights_sha256
    z = predictors(test, w)
    np.testing.assert_allclose(served.predict(test[["dose", "age"]]), np.exp(z), rtol=1e-9)
    assert result.test_rmse == pytest.approx(root_mean_squared_error(test["visits"], np.exp(z)), rel=1e-9)
    assert result.test_mae == pytest.approx(mean_absolute_error(test["visits"], np.exp(z)), rel=1e-9)
    assert result.test_rmse < 0.8 * result.mean_rmse < 0.8 * root_mean_squared_error(test["visits"], z)
    assert result.test_error is None and result.test_auc is None


def test_a_training_in_a_script_predicts_means_and_keeps_them_in_its_file(files, tmp_path):
    path = tmp_path / "counts.yaml"
    made = config(files).model_dump(mode="json", include={"data", "model", "algorithm", "privacy"})
    path.write_text(yaml.safe_dump(made))
    found, test = fedcore.train(path), table("test")
    mean = np.exp(predictors(test, found.weights))
    np.testing.assert_allclose(found.predict(test[["age", "dose"]]), mean, rtol=1e-9)
    assert found.measures["test_rmse"] == pytest.approx(root_mean_squared_error(test["visits"], mean), rel=1e-9)
    assert found.shortfall is None
    with pytest.raises(AttributeError, match="a model of loss 'poisson' has no predict_proba"):
        _ = found.predict_proba
    found.save(tmp_path / "model.json")
    read = fedcore.Trained.load(tmp_path / "model.json")
    np.testing.assert_array_equal(read.predict(test[["age", "dose"]]), found.predict(test[["age", "dose"]]))


def test_held_out_evaluation_is_refused_before_any_question(home, files):
    with pytest.raises(InputError, match=r"counts classes, and loss 'poisson' takes counts 0, 1, 2, ..."):
        run(home, config(files, evaluation={"every": "end"}))


@pytest.mark.parametrize("label", ["-1", "2.5"])
@pytest.mark.parametrize("name", ["ash", "test"])
def test_without_a_schema_a_label_that_is_no_count_is_refused(home, files, name, label):
    with (files / f"{name}.csv").open("a") as file:
        file.write(f"50,5,{label}\n")
    with pytest.raises(
        (InputError, SiloError), match=r"holds other values than counts 0, 1, 2, ..., as the loss takes"
    ):
        run(home, config(files, schema=False))


def test_with_a_schema_a_record_whose_label_is_no_count_is_all_zeros(files):
    """The record moves no model, like a label outside of the classes; `fedcore check` lists cells that do not fit."""
    with (files / "ash.csv").open("a") as file:
        file.write("50,5,-1\n50,5,2.5\n50,5,7\n50,5,many\n")
    (source, _) = file_sources(config(files).data, config(files).model)
    records = open_records(source)
    assert records.X[-4:].any(axis=1).tolist() == [False, False, True, False]
    assert records.y[-4:].tolist() == [0.0, 0.0, 7.0, 0.0]
    (fault,) = inspected(source).faults
    assert fault.startswith("label 'visits': 3 of 404 cells do not fit (for instance '-1', '2.5', 'many')")
    assert fault.endswith("the loss takes counts 0, 1, 2, ...")
