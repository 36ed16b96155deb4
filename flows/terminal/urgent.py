"""Warnings on standard error before a run, a sweep or a schedule starts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from flows.terminal.console import Terminal

if TYPE_CHECKING:
    from fedcore.experiment.config import ExperimentConfig


def warn(cells: Sequence[ExperimentConfig]) -> None:
    """Prints each warning of the cells once, for instance of tiny silos."""
    from fedcore.experiment.experiment import make_plan
    from fedcore.experiment.outlook import urgent

    kinds = {cell.model_dump_json(include={"data", "model", "privacy"}): cell for cell in cells}
    sentences = dict.fromkeys(sentence for cell in kinds.values() for sentence in urgent(cell, make_plan(cell)))
    for sentence in sentences:
        text = f"warning: {sentence}."
        Terminal(stderr=True).print(text, style="yellow", highlight=False, markup=False, soft_wrap=True)
