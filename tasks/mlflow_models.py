"""Models in MLflow: saved in its scikit-learn flavour, logged once per run, registered once."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from tasks.tracking_writer import PhaseModel, scaled_records

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import LoggedModel

MODEL = "model"


def log_model(
    client: MlflowClient, experiment: str, run: str, fresh: bool, model: PhaseModel, tags: Mapping[str, str]
) -> LoggedModel:
    """The model of a run (both by MLflow's ids), made unless it is there already. `fresh`: MLflow need not be asked."""
    from mlflow.entities import LoggedModelOutput

    logged, outputs = None, None
    if not fresh:
        condition = f"source_run_id = '{run}' AND name = '{MODEL}'"
        logged = next(iter(client.search_logged_models([experiment], condition)), None)
    if logged is None:
        logged = client.create_logged_model(experiment, MODEL, run, dict(tags))
    elif str(logged.status) == "READY":
        return logged
    else:
        outputs = client.get_run(run).outputs
    with TemporaryDirectory() as folder:
        place = Path(folder, MODEL)
        identity = {"model_id": logged.model_id, "model_uuid": logged.model_id, "run_id": run}
        save_model(model, place, identity | {"artifact_path": logged.artifact_location})
        client.log_model_artifacts(logged.model_id, str(place))
    if not outputs or all(output.model_id != logged.model_id for output in outputs.model_outputs):
        client.log_outputs(run, [LoggedModelOutput(logged.model_id, step=0)])
    return client.finalize_logged_model(logged.model_id, "READY")


def register(client: MlflowClient, run: str, logged: LoggedModel, name: str, tags: Mapping[str, str]) -> None:
    """Makes the run's model a version of the registered model `name`, unless it is one."""
    if any(found.name == name for found in client.search_model_versions(f"run_id = '{run}'")):
        return
    if not client.search_registered_models(f"name = '{name}'"):
        try:
            client.create_registered_model(name)
        except Exception as error:
            if getattr(error, "error_code", None) != "RESOURCE_ALREADY_EXISTS":
                raise
    # The location, not models:/<id>: MLflow would look that up in whatever store the environment names.
    client.create_model_version(
        name, logged.artifact_location, run, dict(tags), model_id=logged.model_id, await_creation_for=0
    )


def save_model(model: PhaseModel, place: Path, identity: Mapping[str, str]) -> None:
    """Writes the model as a folder in MLflow's scikit-learn flavour, with signature and made-up example."""
    import mlflow.sklearn
    from mlflow.models import Model, infer_signature

    estimator, example = model.estimator(), model.example()
    mlflow.sklearn.save_model(
        estimator,
        place,
        mlflow_model=Model(**dict[str, Any](identity)),
        signature=infer_signature(example, estimator.predict(example)),
        input_example=example,
        pip_requirements=_requirements(),
        skops_trusted_types=[f"{scaled_records.__module__}.{scaled_records.__name__}"],
    )


@cache
def _requirements() -> list[str]:
    """What a model needs, with versions: MLflow would infer it, which takes seconds.

    It looks up each of them again for each model, so packages that these bring along are not named.
    """
    return [f"{name}=={version(name)}" for name in ("scikit-learn", "numpy", "skops")]
