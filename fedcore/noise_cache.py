"""Cache of calibrated noise on disk, which saves repeated searches over privacy loss distributions.

A stored number is only a guess: its reader has the accountant check it. So an old, damaged or forged file costs time,
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
    """One small file per calibration below `folder`, which may be deleted at any time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @classmethod
    def current(cls) -> NoiseFolder | None:
        """The cache in this process's home; None before the home exists."""
        home = Home.current()
        return cls(home.sigmas) if home.root.is_dir() else None

    def get(self, question: dict[str, Any]) -> float | None:
        """The sigma stored for this question; None if no readable file has it."""
        try:
            stored = json.loads(read_within(self._path(question)))
            return float(stored["sigma"]) if stored["question"] == question else None
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def put(self, question: dict[str, Any], sigma: float) -> None:
        """Stores a sigma atomically; ignores a folder that cannot be written."""
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
