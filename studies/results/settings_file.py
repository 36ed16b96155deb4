"""File of published settings, chosen on simulated silos, by figure, method and place."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from fedcore.bounded_file import read_within
from fedcore.errors import InputError
from fedcore.hyperparameters import Section
from studies.figures.chosen import Choice
from tasks.result_file import write_atomically


class Settings(Section):
    """Chosen settings of a method at a place of a figure, both by key."""

    figure: str
    method: str
    place: dict[str, float]
    settings: dict[str, Any]


_ALL = TypeAdapter(tuple[Settings, ...])


def settings_of(figure: str, chosen: Iterable[Choice]) -> list[Settings]:
    """The choices of a figure as entries of the file."""
    return [
        Settings(figure=figure, method=each.method, place=dict(each.place), settings=dict(each.settings))
        for each in chosen
    ]


def read_settings(path: Path) -> tuple[Settings, ...]:
    """The settings in a file. Raises InputError for a file that is missing, too large, or of another form."""
    try:
        return _ALL.validate_json(read_within(path))
    except FileNotFoundError:
        raise InputError(f"settings {path} do not exist") from None
    except (OSError, ValidationError):
        raise InputError(f"settings {path} cannot be read; check them out again") from None


def write_settings(path: Path, settings: Iterable[Settings]) -> None:
    """Writes the file, one choice on a line."""
    lines = ",\n".join(json.dumps(each.model_dump(mode="json")) for each in settings)
    write_atomically(path, f"[{lines}]\n".encode())
