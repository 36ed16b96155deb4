"""Generated silos before they are files: raw records, and public records beside them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Table:
    """Raw records: `features` float64 or uint8 (n, d), `labels` (n,) int64 classes, or float64.

    `more`: further label columns by name, int64 (n,). They belong to the same records, so a silo has one account for
    all of its labels.
    """

    features: NDArray[Any]
    labels: NDArray[Any]
    more: Mapping[str, NDArray[np.int64]] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Generated:
    """Silos by name, in order, and the public test set, with the names of their columns.

    `public`: further records that no silo holds, for public constants; None if none were set aside.
    """

    features: tuple[str, ...]
    label: str
    silos: dict[str, Table]
    test: Table
    public: Table | None = None
