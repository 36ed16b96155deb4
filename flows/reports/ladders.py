"""Table of the ladders of a sweep with patience: chosen values, and the state of the others."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from fedcore.directed_rounding import in_full
from fedcore.experiment.patience import PatienceConfig
from flows.ladders import LadderState, Rung
from flows.reports.table import plain_table


def ladder_table(ladders: Sequence[LadderState], rule: PatienceConfig) -> Table:
    """Table with a row per ladder; its caption describes the rule of choice."""
    shown = plain_table(f"{rule.key}: the largest value that survives")
    shown.caption_justify = "left"
    for head in ("ladder", "chosen", "abandoned (round)", "open", "not tried"):
        shown.add_column(head, justify="left", overflow="fold")
    for ladder in ladders:
        by = {
            state: [rung for rung in ladder.rungs if rung.state == state]
            for state in ("abandoned", "open", "not tried")
        }
        shown.add_row(
            ", ".join(f"{key.rpartition('.')[2]} {value}" for key, value in ladder.apart.items()) or "all",
            "none" if ladder.chosen is None else in_full(ladder.chosen.value),
            ", ".join(f"{in_full(rung.value)} ({rung.round}{_how(rung)})" for rung in by["abandoned"]),
            *(", ".join(in_full(rung.value) for rung in by[state]) for state in ("open", "not tried")),
        )
    shown.caption = (
        f"{rule.statement}. A look every {rule.every} rounds; after {rule.limit} above {rule.factor:g} times the least "
        "loss, with no new least between, a value is abandoned. What abandoned runs released is charged."
    )
    return shown


def without_a_survivor(ladders: Sequence[LadderState]) -> str | None:
    """Sentence on decided ladders of which no value survived; None if there are none."""
    lost = [ladder for ladder in ladders if ladder.decided and ladder.chosen is None]
    if not lost:
        return None
    last = lost[0].rungs[-1]
    return (
        f"of {len(lost)} of {len(ladders)} ladders no value of {lost[0].key} survived; the first: "
        f"{in_full(last.value)} was "
        f"abandoned after round {last.round}, {last.reason}: give smaller ones"
    )


def _how(rung: Rung) -> str:
    return ", diverged" if rung.diverged else ""
