"""Noise that was found before, on disk: a search over privacy loss distributions need not be made twice.

A kept number is a guess. Whoever takes it has the accountant check it, so an old, damaged or forged file costs time,
never privacy.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from fedcore.bounded_file import read_within
from fedcore.home import Home
from fedcore.process.private_files import make_private


class NoiseFolder:
    """One small file per question below `folder`, which is made when it is needed and may be deleted at any time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @classmethod
    def current(cls) -> NoiseFolder | None:
        """That of the home of this process; None before there is a home."""
        home = Home.current()
        return cls(home.sigmas) if home.root.is_dir() else None

    def get(self, question: dict[str, Any]) -> float | None:
        """The sigma kept for this question; None if there is none that can be read."""
        try:
            kept = json.loads(read_within(self._path(question)))
            return float(kept["sigma"]) if kept["question"] == question else None
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def put(self, question: dict[str, Any], sigma: float) -> None:
        """Keeps it, whole or not at all; a folder that cannot be written is no error."""
        try:
            make_private(self._folder)
            with tempfile.NamedTemporaryFile("w", dir=self._folder, delete=False) as file:
                json.dump({"question": question, "sigma": sigma}, file)
            os.replace(file.name, self._path(question))
        except OSError:
            return

    def _path(self, question: dict[str, Any]) -> Path:
        text = json.dumps(question, sort_keys=True)
        return self._folder / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.json"
