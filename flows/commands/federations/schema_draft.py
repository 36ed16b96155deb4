"""The first draft of a silo's schema and policy, which its operator edits."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from fedcore.bounded_file import read_within
from fedcore.configfile.reading import read_yaml, validated
from fedcore.data.cells import Refusal
from fedcore.data.columns import header
from fedcore.data.federations.preparation import Preparation
from fedcore.errors import InputError
from flows.commands.conf import CONF


def drafted(data: Path, label: str | None) -> dict[str, Any]:
    """Plain values of a schema that names the file's columns. Raises InputError for a file that cannot be used."""
    try:
        columns = header(str(data), data.suffix.lower()[1:])
    except Refusal as refusal:
        raise InputError(f"file {data} {refusal.sentence}") from None
    label = list(columns)[-1] if label is None else label
    if label not in columns:
        raise InputError(f"--label {label}: {data} has no such column; it has {', '.join(columns)}")
    return {"features": [name for name in columns if name != label], "label": label, "classes": [0, 1]}


def schema_text(path: Path, label: str | None) -> str:
    """The text of the federation's schema in a file. Raises InputError if it does not fit."""
    found = validated(Preparation, read_yaml(path, ()), str(path))
    if label is not None and label != found.label:
        raise InputError(f"--label {label}: the label of {path} is {found.label}; leave it out")
    return read_within(path, 2**20).decode()


def policy_text() -> str:
    """The example of a policy, with a comment for every key, in force for a year from today."""
    text = (CONF / "policy" / "hospital.yaml").read_text()
    expires = (datetime.now(UTC) + timedelta(days=365)).date().isoformat()
    return (
        "\n".join(f"expires: {expires}" if line.startswith("expires:") else line for line in text.splitlines()) + "\n"
    )
