"""The file of a saved training: JSON of plain values, checked on reading, without code."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from fedcore import __version__
from fedcore.arrays import plain_json
from fedcore.bounded_file import read_within
from fedcore.data.constants.pca import Projection
from fedcore.data.constants.whitening import Whitening
from fedcore.data.schema import Schema
from fedcore.errors import InputError
from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.result import SECRET, stamp
from fedcore.experiment.served.phase_model import PhaseModel, link_of
from fedcore.models.activations import Activation
from fedcore.models.model_config import Normalise
from fedcore.planning.plan import Plan
from fedcore.silo.account import SiloAccount

FORMAT = 2
"""Version of the file's form; a change of the file's content raises it."""
LARGEST = 1 << 28
"""Most bytes of a file to be read."""


class _Projection(BaseModel):
    model_config = ConfigDict(extra="forbid")

    mean: list[float]
    components: list[list[float]]
    divide_by: float


class _Model(BaseModel):
    """The fields of a `PhaseModel`, weights and projection as lists; the loss has its link."""

    model_config = ConfigDict(extra="forbid")

    w: list[float]
    bias: bool
    feature_names: tuple[str, ...]
    classes: tuple[str | int, ...] | None
    divide_by: float
    feature_bound: float
    projection: _Projection | None
    multinomial: bool
    hidden: int | None
    normalise: Normalise
    schema_: Schema | None
    whitening: Whitening | None
    label_range: tuple[float, float] | None
    activation: Activation


class _Saved(BaseModel):
    model_config = ConfigDict(extra="forbid")

    format: int
    fedcore: str
    config: ExperimentConfig
    plan: Plan
    statistics: Plan | None
    model: _Model
    rounds: dict[str, list[float | int | None]]
    measures: dict[str, Any]
    accounts: list[SiloAccount]
    secret: bool = False


_FORM = TypeAdapter(_Saved)


def write(path: Path, trained: Mapping[str, Any]) -> None:
    """Writes the fields of a `Trained`. Raises InputError where the file cannot be written."""
    made: PhaseModel = trained["model"]
    model = {field.name: getattr(made, field.name) for field in fields(made)}
    del model["link"]  # follows from the config's loss
    projection = model["projection"]
    model["w"] = made.w.tolist()
    if projection is not None:
        model["projection"] = {
            "mean": projection.mean.tolist(),
            "components": projection.components.tolist(),
            "divide_by": projection.divide_by,
        }
    model["schema_"] = model.pop("schema")
    table = trained["rounds"].reset_index()
    content = {
        "format": FORMAT,
        "fedcore": __version__,
        "config": trained["config"],
        "plan": trained["plan"],
        "statistics": trained["statistics"],
        "model": model,
        "rounds": {name: [None if each != each else each for each in table[name].tolist()] for name in table.columns},
        "measures": dict(trained["measures"]),
        "accounts": list(trained["accounts"]),
        "secret": SECRET in trained["noise"],
    }
    try:
        with NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
            try:
                file.write(plain_json(content))
                file.close()
                os.replace(file.name, path)
            except BaseException:
                os.unlink(file.name)
                raise
    except OSError as error:
        raise InputError(f"{path} cannot be written ({error.strerror})") from None


def read(path: Path) -> dict[str, Any]:
    """The fields of a `Trained`, from a file of `write`. Raises InputError for any other file."""
    import pandas as pd

    try:
        data = read_within(path, LARGEST)
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror})") from None
    found = _checked(path, data)
    model = found.model
    given = model.projection
    try:
        projection = None
        if given is not None:
            projection = Projection(_finite(given.mean), _finite(given.components), given.divide_by)
        plain = {name: getattr(model, name) for name in _Model.model_fields.keys() - {"w", "projection", "schema_"}}
        link = link_of(found.config)
        made = PhaseModel(w=_finite(model.w), projection=projection, schema=model.schema_, link=link, **plain)
        table = pd.DataFrame(found.rounds).set_index("round")
    except (ValueError, TypeError, KeyError):
        raise InputError(f"{path}: its model is not whole; save it again") from None
    return {
        "config": found.config,
        "plan": found.plan,
        "model": made,
        "rounds": table,
        "measures": found.measures,
        "accounts": tuple(found.accounts),
        "noise": stamp(found.config, found.secret),
        "statistics": found.statistics,
    }


def _finite(values: Any) -> npt.NDArray[np.float64]:
    found = np.array(values, dtype=np.float64)
    if not np.isfinite(found).all():
        raise ValueError("numbers that are not finite")
    return found


def _checked(path: Path, data: bytes) -> _Saved:
    """The file's checked values. Raises InputError, quoting none, for another version or form."""
    try:
        content = json.loads(data)
        version = (content["format"], str(content["fedcore"])[:20])
    except (ValueError, TypeError, KeyError, RecursionError):
        raise InputError(f"{path} is no file of a model that fedcore saved") from None
    if version[0] != FORMAT:
        raise InputError(f"{path} was saved by fedcore {version[1]!r} in another form; load it with that version")
    try:
        return _FORM.validate_json(data)
    except (ValidationError, ValueError, InputError):
        other = "" if version[1] == __version__ else f", which version {version[1]!r} has saved; load it with that one"
        raise InputError(f"{path} holds values that fedcore {__version__} does not know{other}") from None
