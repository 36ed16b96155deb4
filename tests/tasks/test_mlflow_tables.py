"""Rows in MLflow's tables equal those of MLflow's own client; databases of other schemas are refused."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from fedcore.data.constants.pca import Projection
from fedcore.data.schema import Column
from fedcore.experiment.served.phase_model import PhaseModel
from tasks.mlflow.database import make_template, open_database
from tasks.mlflow.models import MODEL, ModelTemplates, save_model
from tasks.mlflow.tables import SCHEMA, MlflowTables, OtherSchema, Point
from tasks.tracking.run_writer import DatasetInput, View
from tasks.tracking.tracker import Tracker
from tasks.tracking_stores import tracking_store
from tests.patience import HANGS

UNLIKE = {
    "run_uuid",
    "run_id",
    "artifact_uri",
    "model_id",
    "artifact_location",
    "source",
    "storage_location",
    "input_uuid",
    "source_id",
    "destination_id",
    "source_run_id",
    "dataset_uuid",
}
"""Columns of ids and of places that are made of ids."""
MADE_NOW = {f"{when}{unit}" for when in ("creation_time", "last_updated_time") for unit in ("", "stamp_ms")} | {
    "last_update_time"
}
IDS = dict.fromkeys(("model_id", "model_uuid", "run_id", "artifact_path"), "x")
VIEW = View("all", "all", ())
DATA = DatasetInput("four hospitals", "0123456789abcdef", {"silos": 4, "records": 740}, ("age", "sex"))
TAGS = {"fedcore.kind": "experiment", "note": "a b"}
PARAMS = {"seed": "3", "algorithm.step": "0.5"}


def rows(path: Path) -> dict[str, list[dict]]:
    """By table what a person put there: ids and the time of writing left out."""
    found = {}
    with closing(sqlite3.connect(path)) as db:
        db.row_factory = sqlite3.Row
        for (table,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            kept = [
                {key: row[key] for key in row.keys() if key not in UNLIKE | MADE_NOW}  # noqa: SIM118
                for row in db.execute(f"SELECT * FROM {table}")
            ]
            if table == "experiment_tags":  # a view has the time of writing in it
                kept = [row for row in kept if "View" not in row["key"]]
            if kept:
                found[table] = sorted(kept, key=repr)
    return found


def by_client(path: Path, artifacts: Path) -> None:
    """One run with its model, as MLflow's client makes it."""
    from mlflow import MlflowClient
    from mlflow.entities import Dataset, InputTag, LoggedModelOutput, Metric, Param, RunTag
    from mlflow.entities import DatasetInput as DatasetLog

    client = MlflowClient(tracking_uri=f"sqlite:///{path}", registry_uri=f"sqlite:///{path}")
    tag = {"mlflow.experimentKind": "custom_model_development"}
    experiment = client.create_experiment("tests", artifact_location=artifacts.as_uri(), tags=tag)
    run = client.create_run(experiment, start_time=1000, tags=TAGS, run_name="one").info.run_id
    metrics = [Metric("loss", 0.5, 10, 1), Metric("loss", float("nan"), 20, 2), Metric("error", 0.25, 20, 2)]
    params = [Param(*each) for each in PARAMS.items()]
    client.log_batch(run, metrics, params, [RunTag("link", "page")], synchronous=True)
    columns = [{"type": "double", "name": name, "required": True} for name in ("age", "sex")]
    texts = ['{"tags": {}}', json.dumps({"mlflow_colspec": columns}), '{"silos": 4, "records": 740}']
    data = Dataset("four hospitals", "0123456789abcdef", "code", *texts)
    client.log_inputs(run, [DatasetLog(data, [InputTag("mlflow.data.context", "training")])])
    model = client.create_logged_model(experiment, "model", run, {"privacy": "2"})
    client.log_outputs(run, [LoggedModelOutput(model.model_id, step=0)])
    client.finalize_logged_model(model.model_id, "READY")
    client.create_registered_model("digits")
    client.create_model_version("digits", model.artifact_location, run, {"privacy": "2"}, model_id=model.model_id)
    client.set_registered_model_alias("digits", "latest-private", "1")
    client.set_terminated(run, "FINISHED", 2000)


def by_tables(path: Path, artifacts: Path) -> None:
    tables = MlflowTables(path)
    with tables.transaction():
        experiment = tables.experiments.of("tests", artifacts, VIEW)
        run = tables.create_run(experiment, "one", TAGS, 1000)
        points = [Point("loss", 0.5, 1, 10), Point("loss", float("nan"), 2, 20), Point("error", 0.25, 2, 20)]
        tables.add(run, PARAMS, {"link": "page"}, points)
        for _ in range(2):
            tables.experiments.add_input(experiment, run, DATA)
        model = tables.models.new(experiment)
        tables.models.add(experiment, run, "model", model, {"privacy": "2"})
        tables.models.register("digits", run, model, {"privacy": "2"}, "latest-private")
        tables.set_status(run, "FINISHED", 2000)
    tables.close()


def test_rows_are_those_that_the_client_writes(tmp_path):
    stores = {}
    for name, write in (("client", by_client), ("tables", by_tables)):
        path = tmp_path / name / "mlflow.db"
        open_database(f"sqlite:///{path}", tmp_path / "artifacts").close()
        write(path, tmp_path / "artifacts")
        stores[name] = rows(path)
    assert stores["tables"].keys() == stores["client"].keys()
    for table, expected in stores["client"].items():
        assert stores["tables"][table] == expected, table


def test_the_schema_is_that_of_the_installed_mlflow():
    with closing(sqlite3.connect(make_template())) as db:
        assert db.execute("SELECT version_num FROM alembic_version").fetchall() == [(SCHEMA,)]


def test_a_database_of_another_schema_is_refused_and_not_written(tmp_path):
    path = tmp_path / "mlflow.db"
    open_database(f"sqlite:///{path}", tmp_path).close()
    with sqlite3.connect(path) as db:
        db.execute("UPDATE alembic_version SET version_num = '0123456789ab'")
    with pytest.raises(OtherSchema, match="MLflow's schema 0123456789ab"):
        open_database(f"sqlite:///{path}", tmp_path)
    tracker = Tracker(tracking_store(f"sqlite:///{path}", tmp_path / "artifacts"))
    tracker.begin("run", "tests", "run", {}, {})
    assert not tracker.close(HANGS)
    assert "MLflow's schema 0123456789ab" in str(tracker.problem)
    with sqlite3.connect(path) as db:
        assert db.execute("SELECT COUNT(*) FROM runs").fetchone() == (0,)


@pytest.mark.parametrize("key", ["a key with a ?", "k" * 251, ""])
def test_a_key_that_mlflow_refuses_is_refused_and_nothing_is_written(tmp_path, key):
    tables = open_database(f"sqlite:///{tmp_path / 'mlflow.db'}", tmp_path)
    experiment = tables.experiments.of("tests", tmp_path, VIEW)
    run = tables.create_run(experiment, "one", {}, 0)
    with pytest.raises(ValueError, match="no name of a parameter"), tables.transaction():
        tables.add(run, {"seed": "1"}, points=[Point(key, 1.0, 1, 1)])
    assert tables.runs({})[0].params == set()


def test_artifacts_elsewhere_are_refused(tmp_path):
    tables = open_database(f"sqlite:///{tmp_path / 'mlflow.db'}", tmp_path)
    with sqlite3.connect(tmp_path / "mlflow.db") as db:
        db.execute("UPDATE experiments SET artifact_location = 's3://bucket/x' WHERE experiment_id = 0")
    run = tables.create_run(0, "one", {}, 0)
    with pytest.raises(ValueError, match="s3://bucket"):
        tables.artifacts(run)


PROJECTION = Projection.fit([np.random.default_rng(5).normal(size=(50, 3))], 2)
COLUMNS = (
    Column(name="x", range=(-2, 2), missing=()),
    Column(name="y", centre=0, scale=2),
    Column(name="z", categories=(0, 1)),
)
KINDS = {
    "two classes": {"classes": ("no", "yes")},
    "no bias": {"classes": (0, 1), "bias": False},
    "features": {"classes": (0, 1), "normalise": "features"},
    "real label": {"classes": None},
    "projection": {"classes": (0, 1), "projection": PROJECTION},
    "three classes": {"classes": (0, 1, 2), "multinomial": True},
    "softmax of two": {"classes": (0, 1), "multinomial": True},
    "schema": {"classes": (0, 1), "schema": COLUMNS},
    "real label with a range": {"classes": None, "schema": COLUMNS, "label_range": (10.0, 90.0)},
    "counts": {"classes": None, "link": "log"},
    "counts with a schema": {"classes": None, "schema": COLUMNS, "link": "log"},
    "network": {"classes": ("a", "b", "c"), "multinomial": True, "hidden": 4},
    "network of two": {"classes": (0, 1), "multinomial": True, "hidden": 4},
    "softplus network": {"classes": ("a", "b", "c"), "multinomial": True, "hidden": 4, "activation": "softplus"},
    "network of a real label": {"classes": None, "hidden": 4, "label_range": (10.0, 90.0)},
}


def of_kind(kind: str, w: np.ndarray | None = None) -> PhaseModel:
    """A model of this kind, of weights `w`, or drawn ones."""
    values = {"bias": True, "feature_names": ("x", "y", "z"), "divide_by": 4.0, "feature_bound": 0.5} | KINDS[kind]
    features = (6 if "schema" in values else 2 if "projection" in values else 3) + values["bias"]
    classes = len(values["classes"]) if values.get("multinomial") else 1
    hidden = values.get("hidden")
    length = classes * features if hidden is None else hidden * features + classes * (hidden + 1)
    return PhaseModel(w=np.random.default_rng(len(kind)).normal(size=length) if w is None else w, **values)


@pytest.mark.parametrize("kind", list(KINDS))
def test_a_model_from_a_template_is_the_one_that_mlflow_saves(tmp_path, kind):
    import mlflow.sklearn
    import yaml

    model, templates = of_kind(kind), ModelTemplates(tmp_path / "templates")
    ids = {"model_id": "m-12", "model_uuid": "m-12", "run_id": "00123", "artifact_path": "file:///a%20b/it's"}
    templates.save(model, tmp_path / "templated", ids)
    save_model(model, tmp_path / "saved", ids)
    ours, theirs = (mlflow.sklearn.load_model(str(tmp_path / name)) for name in ("templated", "saved"))
    raw = np.random.default_rng(1).normal(size=(300, 3)) * 3
    np.testing.assert_array_equal(ours.predict(raw), theirs.predict(raw))
    if hasattr(theirs, "predict_proba"):
        np.testing.assert_array_equal(ours.predict_proba(raw), theirs.predict_proba(raw))
    files = {path.name for path in (tmp_path / "saved").iterdir()}
    assert {path.name for path in (tmp_path / "templated").iterdir()} == files
    described = [yaml.safe_load((tmp_path / name / "MLmodel").read_text()) for name in ("templated", "saved")]
    for each in described:
        assert each.pop("utc_time_created").startswith("20")
        assert each.pop("model_size_bytes") > 1000
    assert described[0] == described[1]
    for name in files - {"MLmodel", "model.skops"}:
        assert (tmp_path / "templated" / name).read_bytes() == (tmp_path / "saved" / name).read_bytes()


def test_a_template_serves_all_models_of_its_kind_and_no_other(tmp_path):
    import mlflow.sklearn

    templates, raw = ModelTemplates(tmp_path / "templates"), np.random.default_rng(2).normal(size=(200, 3)) * 3
    for number in range(3):
        model = of_kind("two classes", np.random.default_rng(number).normal(size=4))
        templates.save(model, tmp_path / str(number), IDS)
        loaded = mlflow.sklearn.load_model(str(tmp_path / str(number)))
        assert loaded.predict(raw).tolist() == model.estimator().predict(raw).tolist()
    assert len(list((tmp_path / "templates").iterdir())) == 1
    templates.save(of_kind("no bias"), tmp_path / "other", IDS)
    assert len(list((tmp_path / "templates").iterdir())) == 2
    assert json.loads(next((tmp_path / "templates").glob("*/arrays.json")).read_text())


def test_a_model_of_zeros_needs_no_template_of_its_own(tmp_path):
    """Templates have random weights, because equal arrays could not be distinguished in a file."""
    import mlflow.sklearn

    model = of_kind("three classes", np.zeros(12))
    ModelTemplates(tmp_path / "templates").save(model, tmp_path / MODEL, IDS)
    assert np.all(mlflow.sklearn.load_model(str(tmp_path / MODEL)).coef_ == 0)
