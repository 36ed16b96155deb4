"""Advice on a first method for a config, from public facts: methods' errors at similar noise.

Rows. A row's weight falls with the ratio of its noise to the config's (`Facts.noise`). It is smaller where one has all
silos in every round and the other has not. Rows of networks do not count for convex losses, nor the reverse. Where
noise is less than in all rows, the rows with the least noise count; well above all rows, nothing is advised.

Method. The advice is the plainest of the methods that are lowest, or not significantly above the lowest, in nearly all
rows by weight. If there is none, it is the method with the lowest mean excess over the lowest error of each row.
`WIDTH`, `TIED` and the mean were chosen on the table itself, by advising on each data set from the others, without
other runs.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fedcore.advice.table import LOSS, Facts, Row
from fedcore.configfile.reading import validated
from fedcore.directed_rounding import shown_down, shown_up
from fedcore.errors import InputError
from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.experiment import make_plan

WIDTH = 1.0
"""Standard deviation of a row's weight, a bell curve in the natural logarithm of the noise: a factor of 2.7."""
OTHER_PARTICIPATION = 0.3
"""Factor on the weight of a row with all silos in a round for a config with some of them, or the reverse."""
TIED = 0.9
"""Part of the rows' weight in which a method must be lowest, or tied with the lowest, to be advised as the plainest."""
LEAST = 0.1
"""Least weight of a row that counts: e^2.1 or 8.5 times more or less noise."""
BEYOND = "beyond the limits"
"""Reason to leave out a method whose settings in a row need more rounds or messages than allowed."""
HOPELESS = 0.3
"""Noise from which on no method of the table is much better than answering the most frequent class."""
REACH = 1.5
"""Largest ratio of a row's noise to the facts', or its inverse, within which a row describes such silos. With more
noise nothing is advised; with less, or between more distant rows, the advice is extrapolated."""


@dataclass(frozen=True)
class Advice:
    """The advised method, its settings, and the evidence.

    `rows`: those in which the method is affordable, with their weights, the largest first; `settings` are the first's.
    `above`: mean over the rows of its error less the lowest; `others`: the same of the other methods, the best first.
    `tied`: part of the rows' weight in which it is lowest or not significantly above the lowest. `left_out`: the other
    methods of nearby rows, with the reason. `facts`, `rounds`, `floats`: the arguments of `advise`.
    """

    method: str
    settings: Mapping[str, Any]
    above: float
    tied: float
    others: Mapping[str, float]
    rows: tuple[tuple[Row, float], ...]
    left_out: Mapping[str, str]
    facts: Facts
    rounds: int | None
    floats: float | None

    @property
    def nearest_noise(self) -> float:
        """The rows' noise with the least ratio to that of the facts."""
        return min((row.facts.noise for row, _ in self.rows), key=self._ratio)

    @property
    def away(self) -> float:
        """The ratio of the nearest row's noise to that of the facts, or its inverse: at least 1."""
        return self._ratio(self.nearest_noise)

    @property
    def limited(self) -> bool:
        """True if rounds or numbers sent were limited."""
        return self.rounds is not None or self.floats is not None

    def _ratio(self, noise: float) -> float:
        return max(noise / self.facts.noise, self.facts.noise / noise)


def advise(
    facts: Facts,
    table: Sequence[Row],
    rounds: int | None = None,
    floats: float | None = None,
    besides: Collection[str] = (),
) -> Advice:
    """The table's advice for these facts. Rows name the plainest methods first.

    `rounds`, `floats`: the most rounds and numbers sent; `besides`: methods that do not apply. Raises InputError if no
    row has similar noise, or no method keeps to the limits.
    """
    near = weighted(table, facts)
    if not near:
        noises = [row.facts.noise for row in table if row.facts.convex == facts.convex]
        kind, instead = "convex losses", ""
        if not facts.convex:
            kind, instead = "networks", ", or a linear model (model.hidden: null)"
        raise InputError(
            f"the table has no row of {kind} with as much noise as here ({shown_up(facts.noise, 3)}; at most "
            f"{shown_down(max(noises, default=0.0), 3)}): more records in each silo, more silos or a larger epsilon "
            "are needed"
            f"{instead}"
        )
    regrets, tied, behind = dict[str, float](), dict[str, float](), dict[str, list[tuple[Row, float]]]()
    left_out = dict[str, str]()
    everything = sum(weight for _, weight in near)
    for method in dict.fromkeys(method for row, _ in near for method in row.errors):
        known = [(row, weight) for row, weight in near if method in row.errors]
        mine = [(row, weight) for row, weight in known if row.affordable(method, facts, rounds, floats)]
        if method in besides:
            left_out[method] = "does not go with this config"
        elif sum(weight for _, weight in known) < 0.5 * everything:
            left_out[method] = "not compared in most of these rows"
        elif not mine:
            left_out[method] = BEYOND
        else:
            total = sum(weight for _, weight in mine)
            behind[method] = mine
            regrets[method] = sum(weight * row.above(method) for row, weight in mine) / total
            tied[method] = sum(weight for row, weight in mine if method in row.tied) / total
    if not regrets:
        dear = [(row, each) for row, _ in near for each in row.errors if left_out[each] == BEYOND]
        if not dear:
            raise InputError("no method of the table applies")
        raise InputError(f"no method of the table keeps to the limits: {_least(dear, facts, rounds, floats)}")
    lowest = min(regrets, key=lambda each: regrets[each])
    method = next((each for each in regrets if tied[each] >= TIED), lowest)
    others = sorted((each for each in regrets if each != method), key=lambda each: regrets[each])
    rows = tuple(behind[method])
    return Advice(
        method,
        rows[0][0].settings[method],
        regrets[method],
        tied[method],
        {each: regrets[each] for each in others},
        rows,
        left_out,
        facts,
        rounds,
        floats,
    )


def _least(dear: Sequence[tuple[Row, str]], facts: Facts, rounds: int | None, floats: float | None) -> str:
    """Names the least rounds, or numbers sent, that one of these methods needs."""
    needs = []
    if rounds is not None:
        needs.append(f"{min(row.rounds[method] for row, method in dear)} rounds")
    if floats is not None:
        needs.append(f"{min(row.sent(method, facts) for row, method in dear):,.0f} numbers sent")
    return f"afford at least {' and '.join(needs)}"


def applied(
    config: ExperimentConfig, table: Sequence[Row], rounds: int | None = None, floats: float | None = None
) -> tuple[Advice, ExperimentConfig]:
    """The advice for a config, and the config with the advised method, which can be planned for it.

    Raises InputError as `advise` does.
    """
    facts, besides, reason = Facts.of(config), set[str](), ""
    while True:
        try:
            advice = advise(facts, table, rounds, floats, besides)
        except InputError as error:
            raise InputError(f"{error}; {reason}" if reason else str(error)) from None
        try:
            advice = replace(advice, settings=_of_loss(config, advice.settings))
            made = with_method(config, advice.settings)
            plan = make_plan(made)
        except InputError as error:
            besides.add(advice.method)
            reason = f"{advice.method} does not go with this config: {error}"
            continue
        if advice.method == "diff2" and plan.phases[0].settings["period"] == 1:
            besides.add(advice.method)
            reason = "diff2 would restart in every round here, which is mbsgd"
            continue
        if rounds is not None and plan.rounds > rounds:
            besides.add(advice.method)
            continue
        return advice, made


def with_method(config: ExperimentConfig, settings: Mapping[str, Any]) -> ExperimentConfig:
    """The config with a method's settings, by section, in place of its own.

    Raises InputError where the two do not fit.
    """
    values = config.model_dump(mode="json")
    for section, chosen in settings.items():
        values[section] = chosen if section == "algorithm" else {**values[section], **chosen}
    return validated(ExperimentConfig, values, "advised")


def _of_loss(config: ExperimentConfig, settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """Settings without `model` if the config has a clipping bound and another loss than the rows.

    A bound on the gradients of one loss does not suit another's.
    """
    other = config.model.loss.name != LOSS[config.model.convex] and config.model.clip is not None
    return {name: chosen for name, chosen in settings.items() if not (other and name == "model")}


def nearest(table: Sequence[Row], facts: Facts) -> dict[str, Mapping[str, Any]]:
    """By method, its settings in the most similar row that has the method."""
    found: dict[str, Mapping[str, Any]] = {}
    for row, _ in weighted(table, facts):
        for method, settings in row.settings.items():
            found.setdefault(method, settings)
    return found


def weighted(table: Sequence[Row], facts: Facts) -> list[tuple[Row, float]]:
    """The rows that count with weights, the largest first; none for noise well above all."""
    alike = [row for row in table if row.facts.convex == facts.convex]
    noises = [row.facts.noise for row in alike]
    if not noises or facts.noise > REACH * max(noises):
        return []
    noise = max(facts.noise, min(noises))
    found = [(row, weight) for row in alike if (weight := _weight(row, noise, facts.all_silos)) > LEAST]
    return sorted(found, key=lambda each: -each[1])


def _weight(row: Row, noise: float, all_silos: bool) -> float:
    """Weight of a row, from 0 to 1."""
    away = math.log(row.facts.noise / noise) / WIDTH
    return math.exp(-0.5 * away**2) * (1.0 if row.facts.all_silos == all_silos else OTHER_PARTICIPATION)
