"""The argument `scale=` of `train` as keys of a config, and a warning where columns need it.

Every constant is public: written by the caller, computed from the public test records, or released by the silos with
noise and a charge. Nothing here reads a private record.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

import numpy as np

from fedcore.data.checks.column_sizes import differing_sizes, public_columns
from fedcore.data.constants.public_scales import LEAST_RECORDS, varies
from fedcore.errors import InputError, ModelWarning

RELEASED_SHARE = 0.2
"""Share of epsilon that `scale="released"` spends on the release of means and squares."""
LIMIT = 1.5
"""Standard deviations at which `scale="test"` and "released" clip. The longest possible record is scaled to
`model.feature_bound`, so a wide limit makes usual records short. Breast cancer (4 silos, epsilon 2, mbsgd, 6 seeds)
has a mean test error of 0.115 at 3, 0.071 at 1.5, 0.089 at 1."""

_KNOWN = (
    "scale= is 'test' (means and deviations of the test records), ranges of the columns, as {'age': (20, 90), ..}, or "
    "'released' (means and deviations that silos release with noise, as a part of epsilon)"
)


def scaled(data: Mapping[str, Any], scale: Any, epsilon: Any) -> tuple[dict[str, Any], Any]:
    """The data section with the columns of `scale`, and the epsilon left for training.

    Raises InputError for an unknown scale, and for one that conflicts with the data section.
    """
    features, test = data["features"], data["test"]
    named = isinstance(features, Sequence) and all(isinstance(each, str) for each in features)
    if scale is None:
        return dict(data), epsilon
    if isinstance(scale, str) and scale not in ("test", "released"):
        raise InputError(f"scale = {scale!r} is not known; {_KNOWN}")
    # A mapping with a text at `constants` is a section; for a column of that name it would be a pair.
    section_given = isinstance(scale, Mapping) and isinstance(scale.get("constants"), str)
    if isinstance(scale, str) or section_given:
        if scale == "test" and test is None:
            raise InputError("scale='test' needs test=, public records that no silo holds; or give ranges of columns")
        if named and test is None:
            raise InputError(f"scale={scale!r} needs the columns' ranges: from test=, or written into features=")
        section: dict[str, Any] = {"constants": "public", "path": test, "limit": LIMIT}
        if scale == "released":
            section = {"constants": "released", "limit": LIMIT}
            if isinstance(epsilon, Real) and not isinstance(epsilon, bool):
                section["epsilon"], epsilon = RELEASED_SHARE * float(epsilon), (1 - RELEASED_SHARE) * float(epsilon)
        described = _of_test(test, features) if named else features
        section = dict(scale) if isinstance(scale, Mapping) else section
        return {**data, "features": described, "scaling": section}, epsilon
    if not named:
        raise InputError("scale= and features= both describe the columns; write their ranges into features=")
    return {**data, "features": _of_ranges(scale, features)}, epsilon


def warn_of_sizes(data: Any, stacklevel: int) -> None:
    """Warns if columns of the public test file differ much in size without scaling."""
    if (sizes := differing_sizes(data)) is not None:
        right = "scale='test' brings all to one scale, by the test records"
        warnings.warn(f"{sizes}; {right}", ModelWarning, stacklevel=stacklevel + 1)


def _of_test(test: str, names: Sequence[str]) -> dict[str, Any]:
    """A schema from public test records: each column's range, or centre if constant."""
    X = public_columns(test, names)
    if len(X) < LEAST_RECORDS:
        raise InputError(f"test: {len(X)} records are too few to scale by; wanted are {LEAST_RECORDS}, or give ranges")
    found: dict[str, Any] = {}
    for name, column in zip(names, X.T, strict=True):
        centre, scale = float(column.mean()), float(column.std())
        if not np.isfinite(column).all() or not np.isfinite(scale):
            raise InputError(f"test: column {name!r} has missing or infinite values; no scale follows from it")
        # As scikit-learn's StandardScaler: a constant column is centred and stays in its own units.
        ends = {"range": [float(column.min()), float(column.max())]}
        found[name] = ends if varies(centre, scale) else {"centre": centre, "scale": 1.0}
    return found


def _of_ranges(scale: Any, names: Sequence[str]) -> dict[str, Any]:
    """A schema from the caller's ranges, given by the names of columns or in their order."""
    if isinstance(scale, Mapping):
        if missing := [name for name in names if name not in scale]:
            raise InputError(f"scale= has no range of column {missing[0]!r}; give one for each, (smallest, largest)")
        if more := [name for name in scale if name not in names]:
            raise InputError(f"scale= has a range of {more[0]!r}, which is no column")
        ranges = [scale[name] for name in names]
    elif isinstance(scale, Sequence | np.ndarray):
        ranges = list(scale)
        if len(ranges) != len(names):
            raise InputError(f"scale= has {len(ranges)} ranges for {len(names)} columns")
    else:
        raise InputError(f"scale= is of type {type(scale).__name__}; {_KNOWN}")
    return {name: {"range": _ends(name, ends)} for name, ends in zip(names, ranges, strict=True)}


def _ends(name: str, ends: Any) -> list[float]:
    try:
        low, high = ends
        return [float(low), float(high)]
    except (TypeError, ValueError, OverflowError):
        raise InputError(f"scale= of column {name!r} is no range; write (smallest, largest)") from None
