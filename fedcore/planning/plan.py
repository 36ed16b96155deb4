"""The plan of a run: every phase, every silo's share, and the privacy event of every round.

A plan is a pure function of public facts. The driver makes the plan to run it. Each silo makes it again from the agreed
config and answers accordingly. Their digests must be equal.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

from fedcore.accounting.composition import spent
from fedcore.accounting.events import GaussianRelease
from fedcore.accounting.filters import Charge
from fedcore.accounting.honest_sampling import honest_sampling
from fedcore.accounting.whole_silo import whole_silo_epsilon
from fedcore.arrays import FLOAT_BYTES, canonical_json, digest
from fedcore.planning.invariants import check_ranges
from fedcore.planning.participation import Binomial
from fedcore.planning.phase import Phase
from fedcore.planning.plain_values import plain_phase, plain_problem
from fedcore.planning.problem import Problem
from fedcore.planning.shuffled import noise_without, phase_epsilon
from fedcore.planning.theorems.complexity import Complexity


@dataclass(frozen=True)
class Plan:
    """All phases of a run and their worst-case cost to each silo, which answers in every round."""

    problem: Problem
    phases: tuple[Phase, ...]
    complexity: Complexity | None = None
    """Rounds and gradients that the method's theorem needs; None for a method without a theorem."""

    def __post_init__(self) -> None:
        """Raises InputError for phases about records outside their range (`invariants.check_ranges`)."""
        check_ranges(self.problem, self.phases)

    @property
    def rounds(self) -> int:
        return sum(phase.rounds for phase in self.phases)

    @property
    def training_rounds(self) -> int:
        """Number of rounds that move the model."""
        return sum(phase.rounds for phase in self.phases if not phase.evaluates)

    @property
    def most_answers(self) -> int:
        """The largest number of answers that a silo may give."""
        return sum(phase.most_answers for phase in self.phases)

    def message_length(self, phase: int, round: int) -> int:
        """Count of the numbers that a silo sends in this round of this phase, which the plan has."""
        return self.phases[phase - 1].at(round).question.sent(self.problem.objective.dim)

    def has(self, phase: int, round: int) -> bool:
        """True if the plan has this round of this phase; both count from 1."""
        return 1 <= phase <= len(self.phases) and 1 <= round <= self.phases[phase - 1].rounds

    def position(self, phase: int, round: int) -> int:
        """Number of rounds up to and including this one, from 1."""
        return sum(p.rounds for p in self.phases[: phase - 1]) + round

    def until(self, phase: int, round: int) -> Plan:
        """The plan up to and including this round of this phase (from 1)."""
        last = self.phases[phase - 1]
        last = replace(last, schedule=replace(last.schedule, rounds=round))
        return replace(self, phases=(*self.phases[: phase - 1], last))

    def silo_epsilon(self, silo: str) -> float:
        """Accounted epsilon of the whole run at `silo`, by composition of all its events, at its own delta."""
        return self._epsilons[self.kind_of(silo)]

    @cached_property
    def _epsilons(self) -> dict[tuple[Any, ...], float]:
        """Accounted epsilon by kind of silo: silos whose shares differ only in their name spend the same."""
        kinds = {self.kind_of(silo.name): silo.name for silo in self.problem.silos}
        sizes, budget = self.problem.sizes, self.problem.budget
        return {kind: spent(self.charged_events(silo), budget.delta(sizes[silo])) for kind, silo in kinds.items()}

    def whole_silo_epsilon(self, silo: str) -> float:
        """Epsilon of the whole run for replacing all of a silo's records, at the delta of that target.

        Raises ValueError if the budget has no such target.
        """
        target = self.problem.budget.whole_silo
        if target is None:
            raise ValueError("this plan has no target for whole silos")
        return whole_silo_epsilon(self.silo_events(silo), target.delta)

    @cached_property
    def epsilon_whole_silo(self) -> float | None:
        """The largest `whole_silo_epsilon` of any silo; None without such a target."""
        if self.problem.budget.whole_silo is None:
            return None
        kinds = {self.kind_of(silo.name): silo.name for silo in self.problem.silos}
        return max(self.whole_silo_epsilon(silo) for silo in kinds.values())

    def charge(self, silo: str) -> Charge:
        """The full charge of the run at `silo`, at its own delta. Raises ValueError as `Charge.of`."""
        kind = self.kind_of(silo)
        if kind not in self._charges:
            delta = self.problem.budget.delta(self.problem.sizes[silo])
            self._charges[kind] = Charge.of(self.charged_events(silo), delta)
        return self._charges[kind]

    @cached_property
    def _charges(self) -> dict[tuple[Any, ...], Charge]:
        return {}

    def kind_of(self, silo: str) -> tuple[Any, ...]:
        """Key that is equal for silos of equal cost: shares without the name, and size, which may set delta."""
        if silo not in self._kinds:
            kinds = [kind for phase in self.phases for kind in phase.kinds]
            shares = [kind.by_silo[silo] for kind in kinds]
            own = [
                (s.n, s.start, s.batch, s.sigma, s.epsilon_accounted, s.epsilon_paper, s.delta, s.rate) for s in shares
            ]
            turns = (kind.turns_of(silo) for kind in kinds if kind.schedule.in_turn)
            self._kinds[silo] = self.problem.sizes[silo], *own, *turns
        return self._kinds[silo]

    @cached_property
    def _kinds(self) -> dict[str, tuple[Any, ...]]:
        return {}

    def silo_events(self, silo: str) -> list[GaussianRelease]:
        return [event for phase in self.phases for event in phase.events(silo)]

    def charged_events(self, silo: str) -> list[GaussianRelease]:
        """Events with the cost of `silo_events` for each record (`Phase.charged`), for accounts by position."""
        if silo not in self._charged:
            self._charged[silo] = [event for phase in self.phases for event in phase.charged(silo)]
        return list(self._charged[silo])

    @cached_property
    def _charged(self) -> dict[str, list[GaussianRelease]]:
        return {}

    def silo_honest_sampling(self, silo: str, before: Iterable[GaussianRelease] = ()) -> float:
        """Epsilon at `silo` if participants are drawn as planned; never above `silo_epsilon`.

        `before`: releases of the silo about all of its records in any case. A phase in which it answers once at most is
        charged in full; the others are about shards of their own. Raises ValueError where they are not.
        """
        n = self.problem.sizes[silo]
        share, delta = self.problem.participation.expected / self.problem.n_silos, self.problem.budget.delta(n)
        before = list(before)
        drawn = [phase for phase in self.phases if not (phase.schedule.at_most_once or phase.evaluates)]
        shards = sorted((event.start, event.stop) for phase in drawn for event in phase.events(silo))
        if any(first[1] > second[0] for first, second in pairwise(shards)):
            raise ValueError(f"phases of this plan share records of silo {silo}")
        sure = [
            *before,
            *(event for phase in self.phases if phase.schedule.at_most_once for event in phase.events(silo)),
        ]
        # Every evaluation uses all held-out records, and no other phase uses them.
        held = [event for phase in self.phases if phase.evaluates for event in phase.events(silo)]
        worst = spent([*before, *held], delta) if held else 0.0
        for phase in drawn:
            event, rounds = phase.event(silo, 1), 1 if phase.schedule.fresh_blocks else phase.rounds
            certain = [replace(other, start=event.start, stop=event.stop) for other in sure]
            worst = max(worst, honest_sampling(event, rounds, share, delta, certain))
        return worst

    @cached_property
    def epsilon_accounted(self) -> float:
        """Largest accounted epsilon of any silo."""
        return max(self.silo_epsilon(silo.name) for silo in self.problem.silos)

    @cached_property
    def epsilon_shuffled(self) -> float | None:
        """Largest epsilon of any silo towards those who see only shuffled batches.

        Each batch has the planned minimum of messages. Never above `epsilon_accounted`, which remains where shuffling
        gains nothing. None without a shuffler, or without noise. Phases are about shards of their own: a record pays
        for one of them.
        """
        problem = self.problem
        if problem.trust.shuffle is None or not problem.budget.private:
            return None
        shards = sorted({(event.start, event.stop) for event in self.silo_events(problem.silos[0].name)})
        if any(first[1] > second[0] for first, second in pairwise(shards)):
            return self.epsilon_accounted
        found = max(phase_epsilon(problem, phase, silo.name) for phase in self.phases for silo in problem.silos)
        return min(found, self.epsilon_accounted)

    @property
    def theorem(self) -> dict[str, Any] | None:
        """`complexity` as plain values."""
        return None if self.complexity is None else asdict(self.complexity)

    @property
    def epsilon_paper(self) -> float:
        """Epsilon that the published formula claims for this noise: the largest phase, as shards are disjoint."""
        return max(phase.epsilon_paper for phase in self.phases if not phase.evaluates)

    def as_json(self) -> dict[str, Any]:
        """The plan as plain JSON values: `phases`, `totals`, `problem`; infinite numbers as null.

        Bytes count the numbers, without addresses and digests. `gradient_evaluations` are expectations where silos
        sample. Gradients, floats and bytes are expectations where the number of participants is drawn, or a warm start
        uses each silo once. `participants`: their number. If it is drawn: its law, its mean, and M and M' of the
        theorems.
        """
        budget, participants = self.problem.budget, self.problem.participation.expected
        floats = [phase.floats(participants, self.problem.objective.dim) for phase in self.phases]
        up, down = sum(up for up, _ in floats), sum(down for _, down in floats)
        return _finite(
            {
                "phases": [plain_phase(phase, self.problem.objective.dim) for phase in self.phases],
                "totals": {
                    "phases": len(self.phases),
                    "rounds": self.rounds,
                    "silos": self.problem.n_silos,
                    "participants": self._participants,
                    "unit": self.problem.unit,
                    "epsilon_target": budget.epsilon,
                    "epsilon_accounted": self.epsilon_accounted,
                    "epsilon_paper": self.epsilon_paper,
                    **self._of_shuffler,
                    "delta": self.problem.delta,
                    **self._whole_silo,
                    "calibration": budget.shown_calibration,
                    "floats_up": up,
                    "floats_down": down,
                    "bytes_up": FLOAT_BYTES * up,
                    "bytes_down": FLOAT_BYTES * down,
                    "gradient_evaluations": sum(phase.gradient_evaluations(participants) for phase in self.phases),
                    "theorem": self.theorem,
                },
                "problem": plain_problem(self.problem),
            }
        )

    @property
    def _participants(self) -> int | dict[str, Any]:
        given, law = self.problem.participants, self.problem.participation
        if isinstance(given, int):
            return given
        return {
            "law": asdict(given) if isinstance(given, Binomial) else given,
            "expected": law.expected,
            "M": law.harmonic,
            "M_prime": law.second_harmonic,
        }

    @property
    def _whole_silo(self) -> dict[str, Any]:
        target = self.problem.budget.whole_silo
        if target is None:
            return {}
        return {
            "epsilon_whole_silo_target": target.epsilon,
            "epsilon_whole_silo": self.epsilon_whole_silo,
            "delta_whole_silo": target.delta,
        }

    @property
    def _of_shuffler(self) -> dict[str, Any]:
        """`totals` that only a plan with a shuffler has."""
        if self.problem.trust.shuffle is None:
            return {}
        gained = noise_without(self.problem, self.phases)
        return {
            "epsilon_shuffled": self.epsilon_shuffled,
            "shuffler_minimum": self.problem.trust.shuffle.minimum,
            "noise_from": None if gained is None else "shuffler" if gained > 1 + 1e-6 else "local",
            "noise_without_shuffler": gained,
        }

    @cached_property
    def digest(self) -> str:
        """SHA-256 (hex) of problem and phases as canonical JSON. Numbers that follow from them are left out."""
        return digest(canonical_json(_agreed([self.problem, self.phases])).encode()).hex()


def _agreed(value: Any) -> Any:
    """Dataclasses as dictionaries without derived fields; `asdict` would copy each number of each silo."""
    if is_dataclass(value):
        return {
            field.name: _agreed(getattr(value, field.name))
            for field in fields(value)
            if "derived" not in field.metadata
        }
    return [_agreed(each) for each in value] if isinstance(value, tuple | list) else value


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
