"""Random split of a table's records into equal silos and a test set that no silo holds."""

from __future__ import annotations

import math

import numpy as np

from fedcore.data.sources.streams import silo_names
from fedcore.draws.stream import Draws
from fedcore.errors import InputError


def equal_sizes(records: int, silos: int, test_fraction: float) -> dict[str, int]:
    """Records of each silo, by name and in order: floor((records - test records) / silos).

    Raises InputError for silos with fewer than 2 records, and for a fraction that sets fewer than 2 aside.
    """
    aside = _set_aside(records, test_fraction)
    if aside < 2:
        raise InputError(
            f"data.test_fraction = {test_fraction} sets aside {aside} of {records} records, but two at least are "
            "needed: set more aside"
        )
    each = (records - aside) // silos
    if each < 2:
        raise InputError(
            f"data.silos = {silos}: {records} records, of which data.test_fraction = {test_fraction} sets "
            f"aside {aside}, leave {each} to each silo, which needs at least 2; choose fewer silos"
        )
    return dict.fromkeys(silo_names(silos), each)


def dealt(
    records: int, sizes: dict[str, int], test_fraction: float, rng: Draws
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Ascending rows of the test set and of each silo; fewer rows than silos remain unused."""
    order = rng.permutation(records)
    aside = _set_aside(records, test_fraction)
    ends = aside + np.cumsum(list(sizes.values()))
    rows = {name: np.sort(order[end - size : end]) for (name, size), end in zip(sizes.items(), ends, strict=True)}
    return np.sort(order[:aside]), rows


def _set_aside(records: int, fraction: float) -> int:
    """Number of test records, rounded up as in scikit-learn."""
    return math.ceil(fraction * records - 1e-9)
