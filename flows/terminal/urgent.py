"""What is said before anything begins, on standard error, by all commands that begin something."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from flows.terminal.console import Terminal

if TYPE_CHECKING:
    from fedcore.experiment.config import ExperimentConfig


def warn(cells: Sequence[ExperimentConfig]) -> None:
    """Says of each once what is hardly meant: a test file in which a column fits nowhere, silos of few records."""
    from fedcore.experiment.experiment import make_plan
    from fedcore.experiment.outlook import urgent

    kinds = {cell.model_dump_json(include={"data", "model", "privacy"}): cell for cell in cells}
    for sentence in dict.fromkeys(said for cell in kinds.values() for said in urgent(cell, make_plan(cell))):
        said = f"warning: {sentence}."
        Terminal(stderr=True).print(said, style="yellow", highlight=False, markup=False, soft_wrap=True)
