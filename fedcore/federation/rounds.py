"""The round loop as a generator.

A round builds the query from the state (or takes the stored one), asks the participants, and folds their releases into
the state. The caller of the generator logs, checkpoints and stops between rounds. Silos are reached through `ask`, in
whatever process they run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcore.algorithms.method import Method
from fedcore.arrays import Matrix, Vector
from fedcore.errors import DivergedError, ShufflerError, SiloError
from fedcore.federation.aggregator import noised_mean
from fedcore.messages import BOUND, Batch, Query, Releases, is_bounded
from fedcore.optim.averaging import Messages
from fedcore.planning.phase import Phase
from fedcore.planning.plan import Plan
from fedcore.randomness import participants
from fedcore.state import State

LARGEST_ANSWER = 1e150
"""Bound on an answer's norm, whose square is a float64 too."""


@dataclass(frozen=True)
class RunContext:
    """The constants of a run: its id, plan and method, and the key of the driver's draws."""

    run: str
    plan: Plan
    method: Method[Any]
    key: bytes

    def phase(self, state: State) -> Phase | None:
        """The phase of the state's next round; None at the end of the plan."""
        return self.plan.phases[state.phase - 1] if state.phase <= len(self.plan.phases) else None

    def query(self, state: State) -> Query | None:
        """The query of the state's next round; None after the plan. Raises DivergedError."""
        phase = self.phase(state)
        if phase is None:
            return None
        names, chosen = self._names, self._drawn(state.phase, state.round)
        if phase.schedule.at_most_once:
            before = {name for round in range(1, state.round) for name in self._drawn(state.phase, round)}
            chosen = tuple([name for name in chosen if name not in before])
        arrays: dict[str, np.ndarray] = {}
        own: dict[str, dict[str, np.ndarray]] = {}
        for key, array in self.method.broadcast(state, phase).items():
            _check_steps(array, state)
            if array.ndim == 1:
                arrays[key] = array
                continue
            for place in self._places(chosen):
                own.setdefault(names[place], {})[key] = array[place]
        return Query(self.run, self.plan.digest, state.phase, state.round, chosen, arrays, own)

    def fold(self, state: State, query: Query, releases: Releases) -> State:
        """The state after a round. Raises SiloError unless each participant has one release.

        Raises DivergedError if the model diverged. An answer of no numbers means divergence where silos take several
        local steps, else it raises SiloError.
        """
        at = f"{query.phase}.{query.round}"
        if releases.silos != query.participants:
            missing = next((name for name in query.participants if name not in releases.silos), query.participants[0])
            raise SiloError(missing, "no-answer", f"it gave no answer in round {at}")
        pairs = zip(releases.silos, releases.query_digests, query.digests(query.participants).values(), strict=True)
        elsewhere = (releases.phase, releases.round) != (query.phase, query.round)
        other = next((silo for silo, answered, asked in pairs if elsewhere or answered != asked), None)
        if other is not None:
            raise SiloError(other, "answer", f"it answered another query than {at}")
        phase = self.plan.phases[query.phase - 1]
        here = phase.at(query.round)
        length = self.plan.message_length(query.phase, query.round)
        if len(releases) and (sent := releases.payloads.shape[1]) != length:
            raise SiloError(releases.silos[0], "answer", f"it sent {sent} numbers in place of {length}")
        kept = _are_answers(releases.payloads)
        if not kept.all():
            if here.schedule.answers > 1:
                raise _diverged(state)
            lost = releases.silos[int(np.argmin(kept))]
            raise SiloError(lost, "answer", f"it did not send numbers of norm below {LARGEST_ANSWER:g}")
        messages = Messages.of(self._places(query.participants), releases.payloads, phase.weights)
        if here.noise.entrusted:
            messages = Messages({0: noised_mean(messages, self.plan.problem, here, query, self.key)})
            phase = phase.unweighted  # the aggregator has applied the weights
        return self._after(state, messages, phase)

    def fold_batch(self, state: State, query: Query, batch: Batch) -> State:
        """The state after a shuffled round, from a batch of messages without senders.

        Raises ShufflerError for fewer messages than the minimum, more than participants, or a message of another
        length or of no numbers; DivergedError if training diverged.
        """
        phase, shuffle = self.plan.phases[query.phase - 1], self.plan.problem.trust.shuffle
        at, most = f"round {query.phase}.{query.round}", len(query.participants)
        least = most if shuffle is None else shuffle.minimum
        if not least <= len(batch.payloads) <= most:
            raise ShufflerError("answer", f"{at}: it handed on {len(batch.payloads)} messages, not {least} to {most}")
        length = phase.question.length(self.plan.problem.objective.dim)
        if not all(payload.shape == (length,) for payload in batch.payloads) or not _are_answers(batch.payloads).all():
            sentence = f"{at}: a message is not {length} numbers of norm below {LARGEST_ANSWER:g}"
            raise ShufflerError("answer", sentence)
        # The senders are unknown, and methods that allow shuffling do not use them, so any places serve.
        return self._after(state, Messages(enumerate(batch.payloads), phase.weights), phase)

    def questions_before(self, query: Query | None) -> Iterator[tuple[str, int, int]]:
        """(silo, phase, round) of all questions before `query`, in order; None: of all."""
        end = (len(self.plan.phases) + 1, 1) if query is None else (query.phase, query.round)
        rounds = ((phase.index, round) for phase in self.plan.phases for round in range(1, phase.rounds + 1))
        return ((silo, *at) for at in takewhile(lambda at: at < end, rounds) for silo in self._drawn(*at))

    def _after(self, state: State, messages: Messages, phase: Phase) -> State:
        """The state after these messages, by place. Raises DivergedError if training diverged."""
        with np.errstate(all="ignore"):  # `_check_steps` finds overflows
            after = self.method.server_update(state, messages, phase)
        _check_steps(self.method.output(after), state)
        return after

    def _drawn(self, phase: int, round: int) -> tuple[str, ...]:
        """The silos that public randomness draws for this round; all in an evaluation."""
        planned = self.plan.phases[phase - 1]
        if planned.evaluates:
            return self._names
        if (here := planned.at(round)).schedule.in_turn:
            return (here.whose_turn(planned.turn(round)),)
        count = self.plan.problem.participation.drawn(self.key, phase, round)
        return participants(self._names, count, self.key, phase, round)

    @cached_property
    def _names(self) -> tuple[str, ...]:
        return tuple(silo.name for silo in self.plan.problem.silos)

    @cached_property
    def _place(self) -> dict[str, int]:
        return {name: place for place, name in enumerate(self._names)}

    def _places(self, silos: Sequence[str]) -> list[int]:
        return [self._place[silo] for silo in silos]


def _are_answers(payloads: Matrix | Sequence[Vector]) -> NDArray[np.bool_]:
    """Checks each payload of (answers, length) for finite numbers with a norm below `LARGEST_ANSWER`."""
    with np.errstate(all="ignore"):  # NaN and overflow fail the comparison
        if np.vdot(payloads, payloads) < LARGEST_ANSWER**2:
            return np.ones(len(payloads), dtype=np.bool_)
        return np.asarray(np.einsum("ij,ij->i", payloads, payloads) < LARGEST_ANSWER**2)


def _check_steps(array: np.ndarray, state: State) -> None:
    """Raises DivergedError for values beyond `BOUND`.

    Silos would refuse them too, but with an error about the query; and no query checks the last round's model.
    """
    if not is_bounded(array):
        raise _diverged(state)


def _diverged(state: State) -> DivergedError:
    return DivergedError(
        f"round {state.phase}.{state.round}: values are not below {BOUND:g}, training diverged; choose "
        "smaller steps (`fedcore algorithms NAME` explains the method's keys)"
    )


def rounds(
    context: RunContext, state: State, ask: Callable[[Query], Releases], stored: Query | None = None
) -> Iterator[tuple[Query, Releases, State]]:
    """Runs the plan from `state` to its end; yields (query, releases, state after) for each round.

    `stored`: the query of the first round if it exists already (a broadcast is never computed twice).
    """
    query = stored if stored is not None else context.query(state)
    while query is not None:
        releases = ask(query)
        state = context.fold(state, query, releases)
        yield query, releases, state
        query = context.query(state)
