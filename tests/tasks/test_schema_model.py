"""The served model of a table with a schema: raw cells in, the classes and numbers of training out."""

import json
import os
import subprocess
import sys
import warnings

import numpy as np
import pandas as pd
import pytest

from fedcore.data.constants.whitening import Whitening
from fedcore.data.schema import Column
from fedcore.data.silo_file import SiloSource, open_records
from fedcore.experiment.served.phase_model import PhaseModel
from tasks.mlflow.models import IDS, save_model

SCHEMA = (
    Column(name="age", range=(20, 80)),
    Column(name="chol", range=(100, 400), missing=(0, "?")),
    Column(name="kind", categories=("a", 2)),
)
ROWS = [("30", "?", "a"), ("99", "250", "2"), ("55", "0", "z"), ("abc", "", ""), ("41.5", "320", "2.0")] * 8


def training_records(folder, bias, **changes):
    path = folder / "n.csv"
    path.write_text("age,chol,kind,y\n" + "".join(f"{','.join(row)},1\n" for row in ROWS))
    names = tuple(column.name for column in SCHEMA)
    return open_records(
        SiloSource("n", str(path), "csv", names, "y", None, bias, 0.5, 1.0, "v", schema=SCHEMA, **changes)
    )


def typed(cell):
    """The cell as a user's DataFrame has it: a number, None, or text."""
    try:
        return float(cell)
    except ValueError:
        return None if cell == "" else cell


WHITENING = Whitening.of(("age", "chol"), 1.5, np.array([[1.3, -0.8], [-0.8, 1.3]]))


@pytest.mark.parametrize("whitening", [None, WHITENING])
@pytest.mark.parametrize("normalise", ["record", "features"])
@pytest.mark.parametrize("as_text", [True, False])
@pytest.mark.parametrize("classes", [("no", "yes"), ("u", "v", "w"), None])
def test_raw_cells_are_prepared_as_in_training(tmp_path, classes, as_text, normalise, whitening):
    X = training_records(tmp_path, True, normalise=normalise, whitening=whitening).X
    assert whitening is None or not np.array_equal(X, training_records(tmp_path, True, normalise=normalise).X)
    outputs = len(classes) if classes is not None and len(classes) > 2 else 1
    W = np.random.default_rng(3).normal(size=(outputs, X.shape[1]))
    W[:, -1] = 0.0  # a large bias would make one class of all
    model = PhaseModel(
        W.ravel(),
        True,
        ("age", "chol", "kind"),
        classes,
        feature_bound=0.5,
        normalise=normalise,
        multinomial=outputs > 1,
        schema=SCHEMA,
        whitening=whitening,
        label_range=(10.0, 60.0) if classes is None else None,
    )
    z = X @ W.T
    frame = pd.DataFrame(ROWS, columns=["age", "chol", "kind"])
    frame = frame if as_text else frame.map(typed)
    frame = frame[["kind", "age", "chol"]]  # by name, in whatever order
    predicted = model.estimator().predict(frame)
    if classes is None:
        np.testing.assert_allclose(predicted, 35.0 + 25.0 * z[:, 0], rtol=1e-12)
        return
    which = z.argmax(axis=1) if outputs > 1 else (z[:, 0] >= 0).astype(int)
    assert predicted.tolist() == [classes[k] for k in which]
    assert len(set(which)) > 1


def test_the_example_is_made_of_the_schema_and_fits_it():
    model = PhaseModel(np.zeros(6), False, ("age", "chol", "kind"), (0, 1), schema=SCHEMA)
    assert model.example().to_dict("records") == [{"age": 50.0, "chol": 250.0, "kind": "a"}]
    assert model.estimator().predict(model.example()).tolist() == [1]
    with pytest.raises(ValueError, match=r"w has shape \(3,\)"):
        PhaseModel(np.zeros(3), False, ("age", "chol", "kind"), (0, 1), schema=SCHEMA)


@pytest.mark.slow
@pytest.mark.minutes
def test_mlflow_models_predict_takes_a_csv_file_with_holes_and_texts(tmp_path):
    X = training_records(tmp_path, True).X
    w = np.random.default_rng(5).normal(size=X.shape[1])
    w[-1] = 0.0
    model = PhaseModel(w, True, ("age", "chol", "kind"), ("no", "yes"), feature_bound=0.5, schema=SCHEMA)
    save_model(model, tmp_path / "model", dict.fromkeys(IDS, "m-1"))
    given, answer = tmp_path / "in.csv", tmp_path / "out.json"
    given.write_text("age,chol,kind\n" + "".join(f"{','.join(row)}\n" for row in ROWS))
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
            "csv",
            "-o",
            str(answer),
            "--env-manager",
            "local",
        ],
        check=True,
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
    )
    expected = [("no", "yes")[int(z >= 0)] for z in X @ w]
    assert json.loads(answer.read_text())["predictions"] == expected and len(set(expected)) == 2


def test_a_model_with_a_schema_is_saved_without_a_warning(tmp_path):
    """Categories that are whole numbers made MLflow warn that they cannot be missing."""
    schema = (Column(name="kind", categories=(1, 2), missing=()), Column(name="home", categories=(True, False)))
    model = PhaseModel(np.arange(8.0), True, ("kind", "home"), (0, 1), schema=schema)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        save_model(model, tmp_path / "model", dict.fromkeys(IDS, "m-1"))
    assert not [warning for warning in caught if "integer column" in str(warning.message)]


def test_models_of_earlier_versions_find_the_step_that_prepares_their_records():
    """They name the place where it was when they were saved."""
    import tasks.phase_model
    import tasks.tracking_writer
    from fedcore.experiment.served.raw_records import scaled_records

    assert tasks.phase_model.scaled_records is tasks.tracking_writer.scaled_records is scaled_records
