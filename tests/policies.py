"""Policies of guarded silos, as their operators' files: names of the registries, values by hand."""

from __future__ import annotations

from pathlib import Path

import yaml

from fedcore.algorithms import METHODS
from fedcore.losses import LOSSES

ALL = {
    "methods": [*METHODS, "evaluation"],
    "losses": [*LOSSES, "softmax", "network", "moreau", "convolution", "convolution-sampled"],
    "cap": {"epsilon": 1000.0, "delta": 1e-3},
    "runs": 1000,
    "expires": "9999-12-31",
}
"""Allows whatever a test may ask for."""


def write_policy(folder: Path, silo: str = "default", **changes: object) -> Path:
    """Writes `<silo>.yaml` in the folder of policies: ALL, with other values for some keys. Returns its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{silo}.yaml"
    path.write_text(yaml.safe_dump(ALL | changes))
    return path
