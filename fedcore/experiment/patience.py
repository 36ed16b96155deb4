"""Patience: a sweep's rule to choose a step by training losses, and the ladders of cells that it goes down.

Murata and Suzuki, "DIFF2: Differential Private Optimization via Gradient Differences for Nonconvex Distributed
Learning", ICML 2023, the experiments' learning-rate rule (spec diff2 6). The losses are those of raw records.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import Field

from fedcore.arrays import canonical_json
from fedcore.errors import InputError
from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.result import RunResult
from fedcore.hyperparameters import Count, Real, Section


@dataclass(frozen=True)
class Verdict:
    """Verdict that abandons a run after `round` of training (from 1); `reason`: a sentence without the round."""

    round: int
    reason: str
    diverged: bool = False
    """The model's values are not finite any more, which ends a run under every rule."""

    @property
    def sentence(self) -> str:
        return f"abandoned after round {self.round}: {self.reason}"


class PatienceConfig(Section):
    """A rule that tries the values of one key from the largest down, and takes the first whose run survives."""

    key: str = Field("algorithm.step", pattern=r"^algorithm\.[A-Za-z0-9_]+$")
    """The chosen key: a number of the method, with several values in the sweep."""
    every: Count = Field(20, ge=1)
    """Rounds of training between two looks at the training loss."""
    factor: Real = Field(1.05, ge=1)
    """A loss above this multiple of the run's least so far counts towards `limit`."""
    limit: Count = Field(5, ge=1)
    """Number of such losses, without a new least one in between, that abandons the run."""

    @property
    def name(self) -> str:
        """The key within the method."""
        return self.key.partition(".")[2]

    @property
    def statement(self) -> str:
        """The notice on every result that was chosen by this rule."""
        return f"{self.key} CHOSEN BY UNPROTECTED TRAINING LOSSES (simulation/): no epsilon covers the choice"

    def with_statement(self, result: RunResult) -> RunResult:
        """The result of a chosen run, with `statement` added to its `noise`."""
        if self.statement in result.noise:
            return result
        return result.model_copy(update={"noise": f"{result.noise}; {self.statement}"})

    def is_due(self, round: int) -> bool:
        """True if the rule looks at the training loss after this round of training."""
        return round % self.every == 0

    def verdict(self, losses: Iterable[tuple[int, float]]) -> Verdict | None:
        """The verdict on a run with these training losses, (round, loss) in order; None: it goes on."""
        spell = Spell(self)
        return next((found for round, loss in losses if (found := spell.look(round, loss)) is not None), None)


class Spell:
    """A rule's state with one run: its least loss so far, and the losses that counted since."""

    def __init__(self, rule: PatienceConfig) -> None:
        self._rule = rule
        self._least, self._spent = math.inf, 0

    def look(self, round: int, loss: float) -> Verdict | None:
        """Takes the next loss; returns the verdict if it ends the run. Not only NaN ends it, as in the paper: so does
        infinity."""
        rule = self._rule
        if not math.isfinite(loss):
            return Verdict(round, "the training loss is no number")
        if loss < self._least:
            self._least, self._spent = loss, 0
        elif loss > rule.factor * self._least:
            self._spent += 1
            if self._spent >= rule.limit:
                looks = f"{self._spent} look{'s' * (self._spent > 1)}"
                above = f"above {rule.factor:g} times that at {looks}, {loss:.4g} last"
                return Verdict(round, f"since its least, {self._least:.4g}, the training loss was {above}")
        return None


@dataclass(frozen=True)
class Ladder:
    """Cells that differ in the rule's key alone, the largest value first. `apart`: their keys that differ from other
    ladders'."""

    values: tuple[float, ...]
    cells: tuple[ExperimentConfig, ...]
    apart: dict[str, Any]


def ladders(cells: Sequence[ExperimentConfig], rule: PatienceConfig, source: str = "sweep") -> tuple[Ladder, ...]:
    """The ladders, in the order of their first cells. Raises InputError for a cell that cannot be in one."""
    rungs: dict[str, list[tuple[float, ExperimentConfig]]] = {}
    alike: dict[str, dict[str, Any]] = {}
    for cell in cells:
        value = _value(cell, rule, source)
        _check_shown(cell, source)
        rest = cell.model_dump(mode="json")
        rest["algorithm"].pop(rule.name, None)
        text = canonical_json(rest)
        rungs.setdefault(text, []).append((value, cell))
        alike[text] = dict(_flat(rest))
    apart = _differing(list(alike.values()))
    found = []
    for mine, differs in zip(rungs.values(), apart, strict=True):
        mine.sort(key=lambda rung: -rung[0])
        found.append(Ladder(tuple(value for value, _ in mine), tuple(cell for _, cell in mine), differs))
    return tuple(found)


def _value(cell: ExperimentConfig, rule: PatienceConfig, source: str) -> float:
    method = cell.algorithm
    if rule.name not in getattr(type(method), "__pydantic_fields__", {}):
        raise InputError(f"{source}: patience.key = {rule.key}: {method.name} has no such key")
    value = getattr(method, rule.name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError(
            f"{source}: patience.key = {rule.key} is {value!r} in a cell of {method.name}; the values that patience "
            "goes down are numbers"
        )
    return float(value)


def _check_shown(cell: ExperimentConfig, source: str) -> None:
    """Raises InputError unless the cell's silos show their training losses."""
    if cell.simulation_metrics:
        return
    needs = f"{source}: patience judges by training losses of raw records (simulation/), "
    if cell.privacy.noise == "guarded":
        raise InputError(f"{needs}which privacy.noise = guarded protects: try steps with `fedcore tune`")
    if cell.tracking.simulation_metrics is None:
        raise InputError(
            f"{needs}which silos' own files show only where tracking.simulation_metrics = true says that they may, "
            "outside of every epsilon"
        )
    raise InputError(f"{needs}and tracking.simulation_metrics = false: set it to true, or leave out patience")


def _flat(values: dict[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _differing(listed: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """For each of `listed`, its values at the keys that all have and in which some differ."""
    shared = [key for key in listed[0] if all(key in each for each in listed)] if listed else []
    differ = [key for key in shared if any(each[key] != listed[0][key] for each in listed)]
    return [{key: each[key] for key in differ} for each in listed]
