"""A silo of records that the auditor made, asked through the real site: what it was asked, what it sent.

The auditor plays the server, and also looks over the silo's shoulder: at which weights and about which records each
sum is made. Only so the exact mean of an answer about a secret sample, or of a later local step, is known.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, cast

import numpy as np

from fedcore.accounting.events import GaussianRelease
from fedcore.algorithms.statistics.evaluated import MODEL
from fedcore.arrays import Arrays, Vector
from fedcore.audit.addresses import Sent
from fedcore.audit.answers import Sum
from fedcore.audit.reading import Reader
from fedcore.audit.scenes import unit
from fedcore.audit.subject import Subject
from fedcore.audit.transcript import KeptKeys, Transcript, watch
from fedcore.data.records import Records
from fedcore.errors import SiloError
from fedcore.federation.in_process import InProcess
from fedcore.ledger.ledger import Ledger, Row, payload_digest
from fedcore.messages import Query, Release
from fedcore.planning.evaluation import held_out
from fedcore.randomness import generator
from fedcore.silo.agreement import Agreement
from fedcore.silo.site import Site

NOTHING = 1e-12
"""An exact mean below this part of the clipping bound may be zero at the silo."""


class Sitting:
    """One synthetic silo that stays open over runs, with the auditor as the server. Raises SiloError as a site does."""

    def __init__(self, subject: Subject, records: Records, ledger: Ledger | None = None) -> None:
        self.subject, self.records = subject, records
        self.ledger = ledger if ledger is not None else KeptKeys(subject.silo)
        # Where the plan is about persons, these are persons of one row each.
        opened = replace(records, person=subject.plan.problem.person)
        self.silo = subject.open(subject.silo, opened, subject.key, self.ledger)
        self.reader = Reader(subject)
        self._site = Site([self.silo])
        self._backends: dict[str, InProcess] = {}
        self._notes: dict[str, list[Sum]] = {}
        self._first: dict[int, dict[str, np.ndarray]] = {}
        rows = np.column_stack([records.X, records.y])
        _, first, self._kind = np.unique(rows, axis=0, return_index=True, return_inverse=True)
        self._kind = self._kind.ravel()
        self._X, self._y = records.X[first], records.y[first]
        self._alike: tuple[bytes, np.ndarray] | None = None

    def still(self, run: str, limit: int | None = None) -> Transcript:
        """The plan's addresses, or the first `limit`, of a server that asks about the first model every time.

        Any server is within the guarantee, and this one makes exact sums about equal records equal.
        """
        addresses = self.subject.addresses[:limit]
        return self._transcript(run, addresses, [self.first(phase) for phase, _ in addresses])

    def far(self, run: str, limit: int | None, rng: np.random.Generator) -> Transcript:
        """The same of a server that asks about models at the edge of the domain, another each time."""
        addresses = self.subject.addresses[:limit]
        reach = 0.499 * self.subject.plan.problem.diameter
        asked = [
            {name: unit(rng, array.size) * reach if name in ("w", MODEL) else array for name, array in sent.items()}
            for sent in (self.first(phase) for phase, _ in addresses)
        ]
        return self._transcript(run, addresses, asked)

    def train(self, run: str, limit: int | None = None) -> Transcript:
        """The whole training, or its first `limit` rounds, with this silo alone: its answer is the mean of all.

        The method's own server; the moments, which no server steps follow, are asked once. A server that collects what
        each silo says of held-out records hears the same of all.
        """
        method, plan, place = cast(Any, self.subject.asking), self.subject.plan, self.subject.place
        addresses, asked, answered = [], [], []
        state = method.init(self.subject.answer.start)
        for address in islice(self.subject.addresses, limit):
            if address != (state.phase, state.round):  # a phase in which a silo answers once
                state = replace(state, phase=address[0], round=address[1])
            phase = plan.phases[state.phase - 1]
            sent = self._received(method.broadcast(state, phase))
            addresses.append(address)
            asked.append(sent)
            answered.append(self._heard(run, address, sent))
            if len(answered) < len(self.subject.addresses):
                heard = range(plan.problem.n_silos) if phase.evaluates else (place,)
                state = method.server_update(state, dict.fromkeys(heard, answered[-1][0].payload), phase)
        return self._read(run, addresses, asked, answered)

    def first(self, phase: int) -> dict[str, np.ndarray]:
        """What the silo receives in this phase while the model is the first one."""
        if phase not in self._first:
            method = cast(Any, self.subject.asking)
            state = replace(method.init(self.subject.answer.start), phase=phase, round=1)
            self._first[phase] = self._received(method.broadcast(state, self.subject.plan.phases[phase - 1]))
        return self._first[phase]

    def other(self, phase: int) -> dict[str, np.ndarray]:
        """Other arrays of the same names, within the domain; none where a query has no arrays."""
        sent = self.first(phase)
        step = np.zeros(self.subject.plan.problem.dim)
        step[0] = min(1.0, 0.25 * self.subject.plan.problem.diameter)
        return {name: 0.5 * array if array.any() else step for name, array in sent.items()}

    def again(self, run: str, addresses: Sequence[tuple[int, int]]) -> list[Sent]:
        """Asks each address as `still` did, and with other arrays; what came back. A refusal is no payload."""
        seen = []
        other = {phase: self.other(phase) for phase in {phase for phase, _ in addresses}}
        for phase, round in addresses:
            for sent in (self.first(phase), other[phase])[: 2 if other[phase] else 1]:
                try:
                    seen.append(self._sent(run, self.ask(run, (phase, round), sent)))
                except SiloError:
                    continue
        return seen

    def sent_once(self, run: str, address: tuple[int, int]) -> list[Sent]:
        """What came back for the address as `still` asks it."""
        return [self._sent(run, self.ask(run, address, self.first(address[0])))]

    def written(self, run: str) -> list[Row]:
        """The rows of the run in the silo's ledger."""
        return self.ledger.rows(run)

    def in_ledger(self, run: str) -> list[Sent]:
        """What the ledger says was sent in the run."""
        return [Sent(self.subject.silo, run, row.phase, row.round, row.payload_digest) for row in self.written(run)]

    def order(self, run: str) -> np.ndarray:
        """Which row of the records sits at each position of the silo's split for this run (n,).

        The split depends on the run's key and on row indices only. The rule is written a second time here: a change of
        it at the silo shows in exact sums of pieces.
        """
        self._open(run)
        if not isinstance(self.ledger, KeptKeys):
            raise ValueError("the order of rows is known with the auditor's own ledger only")
        facts = self.subject.plan.problem.facts[self.subject.silo]
        drawn = generator(self.ledger.keys[run], "split").permutation(facts.trained)
        if not facts.held:
            return drawn
        apart = held_out(facts.name, facts.n, facts.held).tolist()
        asked_apart = set(apart)
        trained = [row for row in range(facts.n) if row not in asked_apart]
        return np.array([*(trained[at] for at in drawn), *apart])

    def ask(self, run: str, address: tuple[int, int], sent: Arrays) -> Release:
        """The release for one query to this silo alone. Raises SiloError."""
        common = {name: array for name, array in sent.items() if name not in self._own}
        own = {name: array for name, array in sent.items() if name in self._own}
        name = self.subject.silo
        query = Query(run, self.subject.plan.digest, *address, (name,), common, {name: own} if own else {})
        (release,) = self._open(run).ask(query)
        return release

    def forget(self, run: str) -> None:
        """Lets the silo go of the run's records."""
        self._site.forget_run(run)
        self._backends.pop(run, None)

    def sent(self, transcript: Transcript) -> list[Sent]:
        """The payloads of a transcript by address."""
        name, run = self.subject.silo, transcript.run
        pairs = zip(transcript.addresses, transcript.payload, strict=True)
        return [Sent(name, run, *address, payload_digest(payload)[1]) for address, payload in pairs]

    def _sent(self, run: str, release: Release) -> Sent:
        return Sent(self.subject.silo, run, release.phase, release.round, payload_digest(release.payload)[1])

    _own: frozenset[str] = frozenset()

    def _received(self, arrays: Arrays) -> dict[str, np.ndarray]:
        """What this silo gets of a broadcast: of a matrix its own row."""
        self._own = self._own | {name for name, array in arrays.items() if array.ndim > 1}
        return {name: array if array.ndim == 1 else array[self.subject.place] for name, array in arrays.items()}

    def _open(self, run: str) -> InProcess:
        if run not in self._backends:
            plan = self.subject.plan
            agreement = Agreement(run, plan.problem, self.subject.method, self.subject.loss, plan.digest)
            self._backends[run] = InProcess(self._site, agreement)
            if plan.problem.shuffle is None:
                self._backends[run].open()
            else:  # what is audited are a silo's releases, before they are sealed
                self._site.agree(agreement)
            self._notes[run] = watch(self.silo, run)
        return self._backends[run]

    def _heard(self, run: str, address: tuple[int, int], sent: Arrays) -> tuple[Release, tuple[Sum, ...]]:
        self._open(run)
        before = len(self._notes[run])
        release = self.ask(run, address, sent)
        return release, tuple(self._notes[run][before:])

    def _transcript(self, run: str, addresses: list[tuple[int, int]], asked: list[dict[str, np.ndarray]]) -> Transcript:
        answered = [self._heard(run, address, sent) for address, sent in zip(addresses, asked, strict=True)]
        return self._read(run, addresses, asked, answered)

    def _read(
        self, run: str, addresses: list[tuple[int, int]], queries: Sequence[Arrays], answered: list[Any]
    ) -> Transcript:
        subject, reader = self.subject, self.reader
        order: Callable[[], np.ndarray] = lambda: self.order(run)  # noqa: E731
        events, exact, sigma, blank = [], [], [], []
        for address, sent, (_, sums) in zip(addresses, queries, answered, strict=True):
            phase = subject.plan.phases[address[0] - 1]
            event = phase.event(subject.silo, address[1])
            weights = reader.weights(sent)
            events.append(event)
            sigma.append(event.sigma * float(np.linalg.norm(weights)))
            means = [self._mean(event, one, order) for one in sums]
            if len(means) != len(weights):
                # An answer that was made of other sums than the method asked for has no mean that is known.
                means = [np.full(subject.dim, np.nan)] * len(weights)
            exact.append(reader.offset(sent) + weights @ np.array(means))
            # Opposite gradients cancel to the last bit at the silo, and perhaps not here.
            blank.append(any(float(np.linalg.norm(mean)) <= NOTHING * subject.clip for mean in means))
        payload = np.array([release.payload for release, _ in answered])
        return Transcript(
            run, tuple(addresses), tuple(events), tuple(queries), payload, np.array(exact), np.array(sigma),
            tuple(sums for _, sums in answered), np.array(blank),
        )  # fmt: skip

    def _mean(self, event: GaussianRelease, one: Sum, order: Callable[[], np.ndarray]) -> Vector:
        """The exact mean of one answer: what records of the piece, or of the sample, add, over the public count."""
        if self.subject.answer.silent and not self.records.X.any():
            return np.zeros(self.subject.dim)
        places = np.arange(event.start, event.stop)
        w, shifts, count = one.w, one.shifts, event.rate * len(places)
        if one.chosen is not None:
            shifts = None if shifts is None else shifts[one.chosen]
            places = places[one.chosen]
        if shifts is not None:
            rows = order()[places]
            parts = self.subject.answer.parts(w, self.records.X[rows], self.records.y[rows], shifts)
            return self.subject.answer.folded(parts.sum(0)) / count
        whole = len(places) == self.subject.n or len(self._X) == 1
        kinds = self._kind[: len(places)] if whole else self._kind[order()[places]]
        return self.subject.answer.folded(np.bincount(kinds, minlength=len(self._X)) @ self._parts(w)) / count

    def _parts(self, w: Vector) -> np.ndarray:
        """What a record of each kind adds about w; kept for the next question about the same w."""
        bits = w.tobytes()
        if self._alike is None or self._alike[0] != bits:
            self._alike = (bits, self.subject.answer.parts(w, self._X, self._y))
        return self._alike[1]


def row_order(subject: Subject, run: str) -> np.ndarray:
    """Which row of the silo's records sits at each position of its split for this run (n,), whatever they say."""
    return Sitting(subject, Records(np.zeros((subject.n, subject.answer.features)), np.ones(subject.n))).order(run)
