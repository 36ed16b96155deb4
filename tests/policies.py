"""Policies of guarded silos, as their operators' files. Values are written here by hand: no model of the product."""

from __future__ import annotations

from pathlib import Path

import yaml

ALL = {
    "methods": [
        "localized-mbsgd",
        "localized-accelerated",
        "one-pass-mbsgd",
        "mbsgd",
        "localized-subgradient",
        "accelerated-mbsgd",
        "one-pass-accelerated-mbsgd",
        "mb-subgradient",
        "scaffold",
        "fedavg",
        "fedprox",
        "fedsgd",
        "diff2",
        "diff2-bvr",
        "noised-newton",
        "dp-fcrn",
        "second-moments",
        "column-moments",
        "largest-eigenvalue",
        "evaluation",
    ],
    "losses": [
        "logistic",
        "squared",
        "huber",
        "hinge",
        "absolute",
        "quantile",
        "softmax",
        "network",
        "moreau",
        "convolution",
        "convolution-sampled",
    ],
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
