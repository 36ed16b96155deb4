"""One synthetic silo behind the real site, with the auditor as its server.

The auditor also watches inside the silo: the weights and the records of each exact sum. Without them the exact mean of
an answer about a secret sample, or of a later local step, would be unknown.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, cast

import numpy as np

from fedcore.arrays import Arrays, Vector, pack
from fedcore.audit.addresses import Sent
from fedcore.audit.answers import Sum
from fedcore.audit.audited_silo import AuditedSilo
from fedcore.audit.exact_means import ExactMeans
from fedcore.audit.queries import Queries
from fedcore.audit.reading import Reader
from fedcore.audit.transcript import RecordedKeys, Transcript, watch
from fedcore.data.records import Records
from fedcore.errors import SiloError
from fedcore.federation.in_process import InProcess
from fedcore.ledger.ledger import Ledger, Row, payload_digest
from fedcore.ledger.memory import MemoryLedger
from fedcore.messages import Query, Release
from fedcore.optim.averaging import Messages
from fedcore.planning.evaluation import guarded_held_out
from fedcore.randomness import generator
from fedcore.silo.account import SiloAccount
from fedcore.silo.agreement import Agreement
from fedcore.silo.keys import SecretKeys
from fedcore.silo.private_silo import PrivateSilo
from fedcore.silo.question import RoundQuestion
from fedcore.silo.site import Site

NOTHING = 1e-12
"""Part of the clipping bound below which an exact mean may be zero at the silo."""


class AuditSession:
    """One synthetic silo that stays open over runs, with the auditor as the server.

    Raises SiloError as a site does.
    `lease`: lease number of all runs, as one of several successive drivers has it. `beside`: further silos of the plan
    at the same site, by name with their records; they receive the same questions. `of`: another session; this one
    continues that session's silo, perhaps under another plan.
    """

    ledger: Ledger
    silo: PrivateSilo
    _site: Site

    def __init__(
        self,
        audited: AuditedSilo,
        records: Records,
        ledger: Ledger | None = None,
        lease: int = 0,
        beside: Mapping[str, Records] = MappingProxyType({}),
        of: AuditSession | None = None,
    ) -> None:
        self.audited, self.records, self.lease = audited, records, lease
        self.reader, self.queries = Reader(audited), Queries(audited)
        self._names = (audited.silo, *beside)
        if of is not None:
            self.ledger, self.silo, self._site = of.ledger, of.silo, of._site
        else:
            self.ledger = ledger if ledger is not None else RecordedKeys(audited.silo)
            # In a plan about persons, each record is a person of its own.
            opened = replace(records, person=audited.plan.problem.trust.person)
            self.silo = audited.open(audited.silo, opened, SecretKeys(audited.key), self.ledger)
            others = [
                audited.open(
                    name, replace(theirs, person=opened.person), SecretKeys(audited.key[::-1]), MemoryLedger(name)
                )
                for name, theirs in beside.items()
            ]
            self._site = Site([self.silo, *others])
        self._backends: dict[str, InProcess] = {}
        self._notes: dict[str, list[Sum]] = {}
        self._means = ExactMeans(audited, records)

    def still(self, run: str, limit: int | None = None) -> Transcript:
        """Asks the plan's addresses, or the first `limit`, always about the first model.

        Any server is within the guarantee; this one makes exact sums about equal records equal.
        """
        addresses = self.audited.addresses[:limit]
        return self._transcript(run, addresses, [self.queries.first(address) for address in addresses])

    def far(self, run: str, limit: int | None, rng: np.random.Generator) -> Transcript:
        """Asks the same addresses about models at the edge of the domain, another one each time."""
        addresses = self.audited.addresses[:limit]
        return self._transcript(run, addresses, [self.queries.far(address, rng) for address in addresses])

    def train(self, run: str, limit: int | None = None) -> Transcript:
        """Runs the whole training, or its first `limit` rounds; this silo's answer is the mean of all.

        The server is the method's own. The moments, which no server step follows, are asked once. A server that
        collects every silo's answer about held-out records receives this silo's answer for each of them. Rounds of
        other kinds are asked too, but only those of the audited kind count and are read.
        """
        method, plan, place = cast(Any, self.audited.run_method), self.audited.plan, self.audited.place
        addresses, questions, answered, beside = [], [], [], []
        state, read = method.init(self.audited.answer.start), dict.fromkeys(self.audited.addresses[:limit])
        for address in self.audited.walked:
            if address != (state.phase, state.round):  # a phase in which a silo answers once
                state = replace(state, phase=address[0], round=address[1])
            phase = plan.phases[state.phase - 1]
            sent = self.queries.received(method.broadcast(state, phase))
            answer = self._answer(run, address, sent)
            if address in read and not self._is_zero_step(sent, answer[0]):
                addresses.append(address)
                questions.append(sent)
                answered.append(answer)
            else:
                beside.append(self._sent(run, answer[0]))
            read.pop(address, None)
            if not read:
                break
            silos = range(plan.problem.n_silos) if phase.evaluates else (place,)
            messages = Messages(dict.fromkeys(silos, answer[0].payload), phase.weights)
            state = method.server_update(state, messages, phase)
        return self._read(run, addresses, questions, answered, beside)

    def payload(self, run: str, address: tuple[int, int], sent: Arrays) -> bytes | None:
        """Digest of the payload that answers this query; None for a refusal."""
        try:
            return self._sent(run, self.ask(run, address, sent)).payload_digest
        except SiloError:
            return None

    def sent_once(self, run: str, address: tuple[int, int]) -> list[Sent]:
        """The payload of the address for the question that `still` asks."""
        return [self._sent(run, self.ask(run, address, self.queries.first(address)))]

    def losses(self, run: str, w: Vector) -> Any:
        """Exact losses of a model, which only a simulated silo shows. Raises SiloError."""
        self._open(run)
        return self._site.simulated(run, pack({"w": w}), self.lease)

    def written(self, run: str) -> list[Row]:
        """The rows of the run in the silo's ledger."""
        return self.ledger.rows(run)

    def in_ledger(self, run: str) -> list[Sent]:
        """The payloads that the silo's ledger records for the run."""
        return [Sent(self.audited.silo, run, row.phase, row.round, row.payload_digest) for row in self.written(run)]

    def order(self, run: str) -> np.ndarray:
        """Row of the records at each position of the silo's split for this run (n,).

        The split depends on the run's key and on row indices only. This second implementation shows a change of the
        rule at the silo in the exact sums of shards.
        """
        self._open(run)
        if not isinstance(self.ledger, RecordedKeys):
            raise ValueError("the order of rows is known with the auditor's own ledger only")
        facts = self.audited.plan.problem.facts[self.audited.silo]
        drawn = generator(self.ledger.keys[run], "split").permutation(facts.trained)
        if not facts.held:
            return drawn
        held_out = guarded_held_out(facts.name, facts.n, facts.held).tolist()
        held_rows = set(held_out)
        trained = [row for row in range(facts.n) if row not in held_rows]
        return np.array([*(trained[at] for at in drawn), *held_out])

    def ask(self, run: str, address: tuple[int, int], sent: Arrays) -> Release:
        """The release for one query to this silo and to those beside it. Raises SiloError."""
        common = {name: array for name, array in sent.items() if name not in self.queries.own}
        own = {name: array for name, array in sent.items() if name in self.queries.own}
        every = dict.fromkeys(self._names, own) if own else {}
        query = Query(run, self.audited.plan.digest, *address, self._names, common, every)
        return next(release for release in self._open(run).ask(query) if release.silo == self.audited.silo)

    def answer(self, run: str, address: tuple[int, int]) -> tuple[Release, tuple[Sum, ...]]:
        """The release for the address as `still` asks it, and notes of its exact sums."""
        return self._answer(run, address, self.queries.first(address))

    def noise(self, run: str, address: tuple[int, int], width: int, draws: int) -> Iterator[Vector]:
        """Yields the noise of `draws` sums of zeros (width,), over the planned sigma.

        The silo's view of a round adds it.
        No record is released: a sum of zeros has none, and no row is written to the ledger.
        """
        self._open(run)
        phase, event = self.audited.at(address), self.audited.event(address)
        for draw in range(draws):
            question = RoundQuestion(run, *address, {}, draw.to_bytes(32, "little"))
            view = self.silo._view(question, phase)
            shard = view._shard
            if shard.grid is not None:
                view._shard = replace(shard, grid=replace(shard.grid, dim=width))
            yield view._released(np.zeros(width), view._next_context(), 1.0) / event.sigma

    def approved(self, run: str) -> None:
        """Lets the silo approve, and so charge, the run unless it has done so."""
        self._open(run)

    def key(self, run: str) -> bytes:
        """The run's key, which fixes its split, samples and noise."""
        self._open(run)
        return self.silo._runs[run].key

    def close(self, run: str) -> None:
        """Ends the run for good, as a driver does at the end of a training."""
        self._open(run)
        self._site.close_run(run)

    def account(self, run: str) -> SiloAccount:
        """The account of the run that the site reports at its end."""
        self._open(run)
        (account,) = self._site.accounts(run)
        return account

    def forget(self, run: str) -> None:
        """Lets the silo release the run's records from memory."""
        self._site.forget_run(run)
        self._backends.pop(run, None)

    def sent(self, transcript: Transcript) -> list[Sent]:
        """The payloads of a transcript by address."""
        name, run = self.audited.silo, transcript.run
        pairs = zip(transcript.addresses, transcript.payload, strict=True)
        seen = [Sent(name, run, *address, payload_digest(payload)[1]) for address, payload in pairs]
        return [*seen, *transcript.beside]

    def _sent(self, run: str, release: Release) -> Sent:
        return Sent(self.audited.silo, run, release.phase, release.round, payload_digest(release.payload)[1])

    def _is_zero_step(self, sent: Arrays, release: Release) -> bool:
        """True if the question is about a step of length zero and the answer is zeros, as it should be."""
        return self.reader.unit(sent) == 0.0 and not release.payload.any()

    def _open(self, run: str) -> InProcess:
        if run not in self._backends:
            plan = self.audited.plan
            agreement = Agreement(run, plan.problem, self.audited.method, self.audited.loss, plan.digest)
            self._backends[run] = InProcess(self._site, agreement, lease=self.lease)
            if plan.problem.trust.shuffle is None:
                self._backends[run].open()
            else:  # the audit reads releases before they are sealed
                self._site.agree(agreement)
            self._notes[run] = watch(self.silo, run)
        return self._backends[run]

    def _answer(self, run: str, address: tuple[int, int], sent: Arrays) -> tuple[Release, tuple[Sum, ...]]:
        self._open(run)
        before = len(self._notes[run])
        release = self.ask(run, address, sent)
        return release, tuple(self._notes[run][before:])

    def _transcript(
        self, run: str, addresses: list[tuple[int, int]], questions: list[dict[str, np.ndarray]]
    ) -> Transcript:
        answered = [self._answer(run, address, sent) for address, sent in zip(addresses, questions, strict=True)]
        return self._read(run, addresses, questions, answered)

    def _read(
        self,
        run: str,
        addresses: list[tuple[int, int]],
        queries: Sequence[Arrays],
        answered: list[Any],
        beside: Sequence[Sent] = (),
    ) -> Transcript:
        audited, reader = self.audited, self.reader
        order: Callable[[], np.ndarray] = lambda: self.order(run)  # noqa: E731
        events, exact, sigma, blank, units = [], [], [], [], []
        for address, sent, (_, sums) in zip(addresses, queries, answered, strict=True):
            event, unit = audited.event(address), reader.unit(sent)
            weights = reader.weights(sent)
            events.append(event)
            units.append(unit)
            sigma.append(event.sigma * unit * float(np.linalg.norm(weights)) if unit > 0.0 else math.nan)
            means = [self._means.of(event, one, order) for one in sums]
            if len(means) != len(weights) or not reader.fits(sent, sums):
                # The mean of an answer from other sums than the method asked for is unknown.
                means = [np.full(audited.dim, np.nan)] * len(weights)
            exact.append(reader.offset(sent) + weights @ np.array(means))
            # Opposite gradients cancel to the last bit at the silo, and perhaps not here.
            blank.append(any(float(np.linalg.norm(mean)) <= NOTHING * audited.clip * unit for mean in means))
        payload, shape = [release.payload for release, _ in answered], (len(answered), audited.dim)
        return Transcript(
            run,
            tuple(addresses),
            tuple(events),
            tuple(queries),
            np.reshape(payload, shape),
            np.reshape(exact, shape),
            np.array(sigma),
            tuple(sums for _, sums in answered),
            np.array(blank, dtype=bool),
            np.array(units),
            tuple(beside),
        )


def row_order(audited: AuditedSilo, run: str) -> np.ndarray:
    """Row of the silo's records at each position of its split for this run (n,), for any records."""
    return AuditSession(audited, Records(np.zeros((audited.n, audited.answer.features)), np.ones(audited.n))).order(run)
