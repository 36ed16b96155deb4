"""Test that the noise is centred at the exact sum: residuals have mean zero.

A record that is not clipped, counted twice, or left out moves the released sums away from the auditor's.
"""

from __future__ import annotations

import numpy as np

from fedcore.audit.cells import least, normal
from fedcore.audit.finding import Finding
from fedcore.audit.instruments.variance import along
from fedcore.audit.releases import SCENES, Releases


def bias(releases: Releases, false_alarm: float) -> Finding:
    """Tests the mean of residuals by coordinate, data set, phase and round, and along the exact sum.

    Means of standard normals are normal: exact. statistic: the least corrected p-value; threshold: the least that
    passes.
    """
    residuals = releases.residuals

    def by(label: np.ndarray, of: np.ndarray = residuals) -> np.ndarray:
        return np.array([of[label == one].sum(axis=0) / np.sqrt((label == one).sum()) for one in np.unique(label)])

    families = {
        "coordinate": normal(residuals.sum(axis=0) / np.sqrt(releases.count)),
        "data set and coordinate": normal(by(releases.scene)),
        "phase and coordinate": normal(by(releases.phase)),
        "mean of a round": normal(by(releases.place).mean(axis=1) * np.sqrt(residuals.shape[1])),
    }
    if releases.ahead and releases.exact.any():
        dots = along(releases)
        families["direction of the exact sum"] = normal(np.array([dots.sum() / np.sqrt(len(dots))]))
    names = {"data set and coordinate": SCENES}
    return least("exact mean", families, false_alarm, "releases are centred at the exact sums", names)
