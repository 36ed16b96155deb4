"""Models in MLflow's scikit-learn flavour, written from one template for all models that differ only in weights.

MLflow itself saves the first model of a kind, with random weights. Its folder, and a map of the arrays in it, become
the template. Every other model is a copy of the template's files with its own arrays and ids. A sweep saves thousands
of models, and imports scikit-learn and MLflow only for the first.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import zipfile
from collections.abc import Mapping
from dataclasses import fields, replace
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

from fedcore.experiment.served import phase_model, raw_records
from fedcore.experiment.served.phase_model import PhaseModel
from fedcore.experiment.served.raw_records import scaled_records
from fedcore.models import network_classifier
from tasks.mlflow.database import quieten

if TYPE_CHECKING:
    from mlflow.models import ModelSignature
    from pandas import DataFrame

MODEL = "model"
SAVED, DESCRIPTION, ARRAYS = "model.skops", "MLmodel", "arrays.json"
IDS = ("model_id", "model_uuid", "run_id", "artifact_path")
PACKAGES = ("scikit-learn", "numpy", "skops")
PREDICTORS = (
    *(f"fedcore.models.network_predictor.Network{kind}" for kind in ("Predictor", "Classifier")),
    "fedcore.models.mean_regression.MeanRegression",
)
_MADE = re.compile(r"^utc_time_created: .*$", re.MULTILINE)
_SIZE = re.compile(r"^model_size_bytes: .*$", re.MULTILINE)


class ModelTemplates:
    """Model templates below a folder, which may be deleted at any time; those of other versions stay unused."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: dict[str, _Template | None] = {}

    def save(self, model: PhaseModel, place: Path, ids: Mapping[str, str]) -> None:
        """Writes the model to the new folder `place`. `ids`: values for all of `IDS`."""
        kind = kind_of(model)
        if kind not in self._known:
            self._known[kind] = self._template(kind, model)
        template = self._known[kind]
        if template is None:
            save_model(model, place, ids)
        else:
            template.write(model, place, ids)

    def _template(self, kind: str, model: PhaseModel) -> _Template | None:
        """The stored template, or a new one; None if a model's arrays cannot be distinguished in its file."""
        folder = self._folder / kind
        if not (folder / ARRAYS).exists():
            self._folder.mkdir(parents=True, exist_ok=True)
            with TemporaryDirectory(dir=self._folder) as making:
                place = Path(making, MODEL)
                drawn = replace(model, w=np.random.default_rng(0).standard_normal(model.w.shape))
                save_model(drawn, place, {name: _blank(name) for name in IDS})
                (place / ARRAYS).write_text(json.dumps(_places(place / SAVED, drawn.fitted())))
                try:
                    os.rename(place, folder)
                except OSError:  # another process was faster
                    if not (folder / ARRAYS).exists():
                        raise
        places = json.loads((folder / ARRAYS).read_text())
        return None if places is None else _Template(folder, places)


class _Template:
    """A saved model in memory. `places`: by member of its file, the name of the array in it."""

    def __init__(self, folder: Path, places: dict[str, str]) -> None:
        self._places = places
        self._texts = {path.name: path.read_bytes() for path in folder.iterdir() if path.name not in (SAVED, ARRAYS)}
        self._description = self._texts.pop(DESCRIPTION).decode()
        with zipfile.ZipFile(folder / SAVED) as saved:
            self._members = [(info, saved.read(info)) for info in saved.infolist()]

    def write(self, model: PhaseModel, place: Path, ids: Mapping[str, str]) -> None:
        place.mkdir(parents=True)
        fitted = model.fitted()
        with zipfile.ZipFile(place / SAVED, "w") as saved:
            for info, data in self._members:
                name = self._places.get(info.filename)
                saved.writestr(info, data if name is None else _as_npy(fitted[name]))
        for file, text in self._texts.items():
            (place / file).write_bytes(text)
        described = self._description
        for name in IDS:
            described = described.replace(_blank(name), "'" + ids[name].replace("'", "''") + "'")
        now = datetime.now(UTC).replace(tzinfo=None)
        described = _MADE.sub(f"utc_time_created: '{now}'", described)
        size = sum(path.stat().st_size for path in place.iterdir())
        (place / DESCRIPTION).write_text(_SIZE.sub(f"model_size_bytes: {size}", described))


def kind_of(model: PhaseModel) -> str:
    """Digest of everything that a saved model depends on except weights and ids: its fields, versions and code."""
    parts: list[Any] = [_versions(), _code()]
    for field in fields(model):
        value = getattr(model, field.name)
        if field.name == "projection" and value is not None:
            parts.append(value.digest)
        elif field.name != "w":
            parts.append((field.name, value))
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:24]


@cache
def _versions() -> list[str]:
    """Versions of MLflow and of the packages of a model, cached: each look-up takes a third of a model's time."""
    return [version(name) for name in ("mlflow", *PACKAGES)]


@cache
def _code() -> str:
    """SHA-256 over the code that makes estimators, and this file."""
    total = hashlib.sha256()
    for file in (__file__, phase_model.__file__, raw_records.__file__, network_classifier.__file__):
        total.update(Path(file).read_bytes())
    return total.hexdigest()


def _blank(name: str) -> str:
    return f"FEDCORE-{name.upper()}-HERE"


def _as_npy(array: np.ndarray) -> bytes:
    data = io.BytesIO()
    np.lib.format.write_array(data, array, allow_pickle=False)
    return data.getvalue()


def _places(saved: Path, fitted: Mapping[str, np.ndarray]) -> dict[str, str] | None:
    """The array's name for each member of the file; None unless each array is there exactly once."""
    found: dict[str, str] = {}
    with zipfile.ZipFile(saved) as members:
        for member in members.namelist():
            if member.endswith(".npy"):
                data = members.read(member)
                found.update((member, name) for name, array in fitted.items() if data == _as_npy(array))
    return found if sorted(found.values()) == sorted(fitted) else None


def save_model(model: PhaseModel, place: Path, identity: Mapping[str, str]) -> None:
    """Writes the model as a folder in MLflow's scikit-learn flavour, with signature and made-up example."""
    quieten()
    import mlflow.sklearn
    from mlflow.models import Model

    estimator, example = model.estimator(), model.example()
    mlflow.sklearn.save_model(
        estimator,
        place,
        mlflow_model=Model(**dict[str, Any](identity)),
        signature=_signature(model, example, estimator.predict(example)),
        input_example=example,
        pip_requirements=_requirements(),
        skops_trusted_types=[f"{scaled_records.__module__}.{scaled_records.__name__}", *PREDICTORS],
    )


def _signature(model: PhaseModel, example: DataFrame, predicted: Any) -> ModelSignature:
    """The model's signature; with a schema, a column accepts any cell, also an empty one or text among numbers."""
    from mlflow.models import ModelSignature, infer_signature
    from mlflow.types.schema import AnyType, ColSpec, Schema

    if model.schema is None:
        return infer_signature(example, predicted)
    outputs = infer_signature(model_output=predicted).outputs
    return ModelSignature(Schema([ColSpec(AnyType(), column.name) for column in model.schema]), outputs)


@cache
def _requirements() -> list[str]:
    """A model's packages with versions; MLflow would take seconds to infer them.

    MLflow looks up each package again for each model, so dependencies of these are not listed.
    """
    return [f"{name}=={version(name)}" for name in PACKAGES]
