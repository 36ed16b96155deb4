"""What public facts alone say of a training before it starts."""

from __future__ import annotations

import math
from typing import Any

from fedcore.data.dataset import schema_of
from fedcore.data.schema import Tabular, longest
from fedcore.experiment.config import ExperimentConfig


def schema_facts(config: ExperimentConfig) -> dict[str, Any] | None:
    """Numbers of columns and of their features, the largest norm of a record, and by what all records are scaled.

    The norm counts the bias where it is scaled with the features. None without a schema.
    """
    data, model = config.data, config.model
    described = schema_of(data) if isinstance(data, Tabular) else None
    if described is None:
        return None
    norm = longest(described)
    if model.bias and model.normalise == "record":
        norm = math.hypot(norm, 1.0)
    return {
        "columns": len(described),
        "features": sum(len(column.names) for column in described),
        "longest": norm,
        "scale": model.feature_bound / norm,
    }
