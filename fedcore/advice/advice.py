"""Which method to start with, from public facts alone, by what methods came to where noise was as large.

A row counts by how near its noise is to the config's (`Facts.noise`), and less if fewer silos are in a round there and
not here, or the other way round; rows of networks say nothing of convex losses. Where noise is less than in all rows,
those with the least count; where it is well above all rows, nothing is advised. The advised method is the plainest of
those that are the lowest, or not told apart from it, in nearly all rows by weight; where there is none, the one of the
lowest mean over the rows of its error less the lowest of the row. The width, the part and the mean were chosen on the
table itself, each data set advised on by the others: no run of another was looked at.
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
"""Of the weight of a row, a bell curve, in natural logarithms of the noise: 2.7 times as much."""
OTHER_PARTICIPATION = 0.3
"""Factor on the weight of a row with all silos in a round for a config with some of them, or the reverse."""
TIED = 0.9
"""Part of the weight of the rows in which a method is the lowest or tied with it, for it to be advised as the plainest.
"""
LEAST = 0.1
"""Weight of a row, for it to count: e^2.1 or 8.5 times more or less noise."""
BEYOND = "beyond the limits"
"""Why a method is left out that one cannot afford with the settings of a row."""
HOPELESS = 0.3
"""Noise from which on no method of the table does much better than answering the most frequent class."""
REACH = 1.5
"""Times the noise of a row, or the inverse, up to which it is about such silos. With more noise nothing is advised;
with less, or between rows that are further away, the advice is extrapolated."""


@dataclass(frozen=True)
class Advice:
    """The method, settings to start from, and the rows behind it, in which it is affordable, the weightiest first with
    their weights. The settings are those of the first. `facts`, `rounds`, `floats`: what it was asked for.

    `above`: mean over the rows of its error less the lowest. `others`: the same of the other methods, the best first.
    `tied`: part of the weight of the rows in which it is the lowest or not told apart from the lowest. `left_out`:
    the other methods of nearby rows, and why each was not considered.
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
        """Of the rows, the noise with the least ratio to that of the facts."""
        return min((row.facts.noise for row, _ in self.rows), key=self._ratio)

    @property
    def away(self) -> float:
        """The ratio of the nearest row's noise to that of the facts, or its inverse: at least 1."""
        return self._ratio(self.nearest_noise)

    @property
    def limited(self) -> bool:
        """Whether rounds or numbers sent were."""
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
    """What the table says for these facts. `rounds`, `floats`: what one can afford; `besides`: methods that do not
    apply. Rows name the plainest methods first. Raises InputError where the table has nothing like it, or nothing that
    one can afford."""
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
    """The least that one of these methods of rows needs of what is limited."""
    needs = []
    if rounds is not None:
        needs.append(f"{min(row.rounds[method] for row, method in dear)} rounds")
    if floats is not None:
        needs.append(f"{min(row.sent(method, facts) for row, method in dear):,.0f} numbers sent")
    return f"afford at least {' and '.join(needs)}"


def applied(
    config: ExperimentConfig, table: Sequence[Row], rounds: int | None = None, floats: float | None = None
) -> tuple[Advice, ExperimentConfig]:
    """The advice for a config, and the config with the advised method; a method that cannot be planned for it is not
    advised. Raises InputError as `advise` does."""
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
    """The config with a method's settings (by section), and its own of all other keys. Raises InputError where they do
    not go with it."""
    values = config.model_dump(mode="json")
    for section, its in settings.items():
        values[section] = its if section == "algorithm" else {**values[section], **its}
    return validated(ExperimentConfig, values, "advised")


def _of_loss(config: ExperimentConfig, settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """Settings without those of the model where it has a clipping bound and another loss than the rows: a bound on the
    gradients of one says nothing of another's."""
    other = config.model.loss.name != LOSS[config.model.convex] and config.model.clip is not None
    return {name: its for name, its in settings.items() if not (other and name == "model")}


def nearest(table: Sequence[Row], facts: Facts) -> dict[str, Mapping[str, Any]]:
    """Of each method its settings in the row that is most like the facts, of those that have it."""
    found: dict[str, Mapping[str, Any]] = {}
    for row, _ in weighted(table, facts):
        for method, settings in row.settings.items():
            found.setdefault(method, settings)
    return found


def weighted(table: Sequence[Row], facts: Facts) -> list[tuple[Row, float]]:
    """The rows that count, the weightiest first, with their weights; none where noise is beyond the reach of all."""
    alike = [row for row in table if row.facts.convex == facts.convex]
    noises = [row.facts.noise for row in alike]
    if not noises or facts.noise > REACH * max(noises):
        return []
    noise = max(facts.noise, min(noises))
    found = [(row, weight) for row in alike if (weight := _weight(row, noise, facts.all_silos)) > LEAST]
    return sorted(found, key=lambda each: -each[1])


def _weight(row: Row, noise: float, all_silos: bool) -> float:
    """From 0 to 1."""
    away = math.log(row.facts.noise / noise) / WIDTH
    return math.exp(-0.5 * away**2) * (1.0 if row.facts.all_silos == all_silos else OTHER_PARTICIPATION)
