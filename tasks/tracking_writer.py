"""Import path at which models saved by version 0.2 find the step that prepares their records."""

from __future__ import annotations

from fedcore.experiment.served.raw_records import scaled_records

__all__ = ["scaled_records"]
