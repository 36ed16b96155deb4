"""Dask carries queries to the silos: one holder per worker, one call per holder and round.

A holder (`tasks.workers.holder`) is a Dask actor that keeps its silos open; Dask does not make a lost actor again, so
`DaskSites` does, at the worker of the same name, from silo disk and ledger, and asks again. Records are opened at the
worker by name and never scattered or returned.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from distributed import Client

from fedcore.arrays import Vector, pack
from fedcore.errors import InputError, SiloError
from fedcore.experiment.experiment import Experiment
from fedcore.home import LedgerFolders
from fedcore.messages import Query, Receipt, Release, packed_receipts, portions, unbundled
from fedcore.silo.account import SiloAccount
from tasks.workers.holder import HolderPool
from tasks.workers.places import Lost, Place, Places


class DaskSites:
    """The backend on Dask. `recovered` counts holders made again after a worker, or the connection to it, was lost.

    `route`: of a shuffled run, the bytes of its `Route`. `lease`: the driver's, of the run (`fedcore.silo.lease`): what
    older drivers have open at the workers is ended first. `first`: there was none.
    """

    def __init__(
        self,
        client: Client,
        experiment: Experiment,
        ledgers: LedgerFolders,
        deadline: float,
        log: Path | None = None,
        pool: HolderPool | None = None,
        route: bytes | None = None,
        lease: int = 0,
        first: bool = False,
    ) -> None:
        self._at = Places(client, deadline, experiment.run, lease)
        self._pool = pool if pool is not None else HolderPool(limit=0)
        self._run, self._lease = experiment.run, lease
        self._agreement = (experiment.agreement.to_bytes(), route, experiment.run, lease)
        self._lengths = experiment.agreement.lengths
        self._receipts: Iterable[Receipt] = ()
        self.recovered = 0
        self._ended = False  # whether the run was ended, and forgotten, at all its sites
        silos = [silo.name for silo in experiment.plan.problem.silos]
        found = self._at.workers() if first or not lease else self._at.take_over(ledgers)
        workers = found[: len(silos)]
        if not workers:
            raise InputError("cluster: the Dask scheduler has no worker that answers")
        self._places = []
        for index, worker in enumerate(workers):
            block = silos[index * len(silos) // len(workers) : (index + 1) * len(silos) // len(workers)]
            spec = experiment.site_spec(block, ledgers, log).to_bytes()
            self._places.append(Place(worker, spec, tuple(block)))

    def open(self) -> None:
        """Makes the holders and has their silos approve the run. Raises SiloError."""
        submitted = []
        for place in self._places:
            place.future, place.actor = self._pool.take(place.worker, place.spec) or (None, None)
            if place.actor is None:
                submitted.append((place, self._at.submit(place)))
        for place, address in submitted:
            self._at.await_actor(place, address)
            self._pool.add(place.worker, place.spec, place.future, place.actor)
        self._gather([(place, "approve", self._agreement) for place in self._places])

    def restore(self, run: str, receipts: Iterable[Receipt]) -> None:
        self._receipts = receipts
        for portion in portions(receipts):
            mine = [(place, [receipt for receipt in portion if receipt.silo in place.names]) for place in self._places]
            self._gather(
                [(place, "restore", (run, packed_receipts(theirs), self._lease)) for place, theirs in mine if theirs]
            )

    def ask(self, query: Query) -> list[Release]:
        """All sites are asked at once; the answers come back in the order of `query.participants`."""
        asked = set(query.participants)
        places = [place for place in self._places if not asked.isdisjoint(place.names)]
        answers = self._gather([(place, *self._question(place, "ask", query)) for place in places])
        return self._in_order(query, places, answers)

    def send(self, query: Query) -> None:
        """Has the participants send their answers to the run's shuffler; all sites are waited for. Raises SiloError."""
        asked, failures = set(query.participants), list[SiloError]()
        places = [place for place in self._places if not asked.isdisjoint(place.names)]
        self._gather([(place, "send", (query.at(place.names).to_bytes(), self._lease)) for place in places], failures)
        if failures:
            raise failures[0]

    def accounts(self, run: str) -> list[SiloAccount]:
        return self._of_all("accounts", run)

    def simulated(self, run: str, w: Vector) -> list[tuple[int, float, float]]:
        return self._of_all("simulated", run, w)

    def close_run(self, run: str) -> None:
        self._of_all("close_run", run)

    @property
    def company(self) -> tuple[Any, ...]:
        """What backends have in common whose runs can be asked together: their workers."""
        return (id(self._at.client), *(place.worker for place in self._places))

    @staticmethod
    def batched(asked: Sequence[tuple[DaskSites, str, tuple[Any, ...]]]) -> Callable[[], list[Any]]:
        """Asks what several runs ask of sites at the same workers (`company`): one message per worker goes out.

        The function that it returns waits: of each call (`ask`, `simulated`, `accounts`, `close_run`) it returns the
        answer, or what the call raises.
        """
        first = asked[0][0]
        started = []
        for at, place in enumerate(first._places):
            questions = []
            for sites, method, arguments in asked:
                theirs = sites._places[at]
                questions.append((theirs.key, *sites._question(theirs, method, *arguments)))
            started.append((place, len(questions), first._at.start(place, "each", (questions,))))

        def answers() -> list[Any]:
            try:
                found = first._at_once(started)
            except SiloError as error:  # a site is silent: for all of them
                return [SiloError(error.silo, error.code, error.sentence) for _ in asked]
            return [
                sites._answered(method, arguments, None if found is None else [each[number] for each in found])
                for number, (sites, method, arguments) in enumerate(asked)
            ]

        return answers

    def _question(self, place: Place, method: str, *arguments: Any) -> tuple[str, tuple[Any, ...]]:
        """The call of the holder at this place, with what it needs."""
        if method == "ask":
            return "answer", (arguments[0].at(place.names).to_bytes(), self._lease)
        if method == "simulated":
            return "simulated", (arguments[0], pack({"w": arguments[1]}), self._lease)
        return "end_run" if method == "close_run" else method, (*arguments, self._lease)

    def _answered(self, method: str, arguments: tuple[Any, ...], answers: Sequence[Any] | None) -> Any:
        """What the call returns for these answers of all sites, or what it raises.

        Where a site was lost (None), or refuses, the run asks by itself, and opens it again: a site that was lost while
        this run did not need it has not approved the run since. A refusal that was meant comes again.
        """
        try:
            if answers is None or any(type(answer) is tuple for answer in answers):
                return getattr(self, method)(*arguments)
            if method == "ask":
                return self._in_order(arguments[0], self._places, answers)
            self._ended = self._ended or method == "close_run"
            return None if method == "close_run" else [item for part in answers for item in part]
        except Exception as error:
            return error

    def _at_once(self, started: list[tuple[Place, int, Any]]) -> list[list[Any]] | None:
        """Of each place the answers to so many questions; None if one was lost, or says something else."""
        answers = []
        for place, count, waiting in started:
            try:
                answers.append(self._at.result(place, waiting))
            except Lost:
                return None
            if type(answers[-1]) is not list or len(answers[-1]) != count:
                return None
        return answers

    def _in_order(self, query: Query, places: Sequence[Place], answers: Sequence[Any]) -> list[Release]:
        answered: dict[str, Release] = {}
        for place, answer in zip(places, answers, strict=True):
            # Of its own silos alone: one site does not speak for another's.
            answered.update((release.silo, release) for release in self._releases(place, answer))
        missing = [name for name in query.participants if name not in answered]
        if missing:
            raise SiloError(missing[0], "no-answer", f"it gave no answer in round {query.phase}.{query.round}")
        return [answered[name] for name in query.participants]

    def close(self) -> None:
        """Ends the run at its sites. Holders go back to the pool, or are closed if there is none or they are silent."""
        for place in self._places:
            if place.actor is not None:
                try:
                    if not self._ended:
                        place.actor.forget_run(self._run).result(timeout=5)
                    self._pool.give(place.worker, place.spec, place.future, place.actor)
                except Exception:
                    with contextlib.suppress(Exception):
                        place.actor.close()  # not waited for: its site may be in the middle of a long answer
            place.actor = place.future = None

    def _releases(self, place: Place, answer: bytes) -> list[Release]:
        """The releases in a site's answer. Raises SiloError unless they are of its own silos, one each, well-formed."""
        try:
            found = unbundled(answer, *self._lengths)
        except (ValueError, TypeError, AttributeError):
            found = None
        names = [] if found is None else [release.silo for release in found]
        if found is None or not set(names) <= set(place.names) or len(set(names)) < len(names):
            raise SiloError(place.names[0], "answer", "its site sent something else than releases of its silos")
        return found

    def _of_all(self, method: str, *arguments: Any) -> list[Any]:
        parts = self._gather([(place, *self._question(place, method, *arguments)) for place in self._places])
        self._ended = self._ended or method == "close_run"
        return [item for part in parts for item in part or ()]

    def _gather(
        self, calls: list[tuple[Place, str, tuple[Any, ...]]], failures: list[SiloError] | None = None
    ) -> list[Any]:
        """Results of all calls, made at once; a site that is lost is opened again and asked again.

        `failures`: takes the errors of single sites, which are raised otherwise.
        """
        started = [self._at.start(*call) for call in calls]
        results = []
        for call, waiting in zip(calls, started, strict=True):
            try:
                results.append(self._result(call, waiting))
            except SiloError as error:
                if failures is None:
                    raise
                failures.append(error)
        return results

    def _result(self, call: tuple[Place, str, tuple[Any, ...]], waiting: Any) -> Any:
        place, losses = call[0], 0
        while True:
            try:
                return self._at.result(place, waiting)
            except Lost:
                losses += 1
            if losses == 3:
                sentence = f"its worker {place.worker}, or the connection to it, was lost three times in one round"
                raise SiloError(place.names[0], "lost", sentence)
            self._recover(place)
            waiting = self._at.start(*call)

    def _recover(self, place: Place) -> None:
        place.actor = place.future = None
        self.recovered += 1
        try:
            self._at.await_actor(place, self._at.submit(place))
            self._at.result(place, self._at.start(place, "approve", self._agreement))
            for portion in portions(receipt for receipt in self._receipts if receipt.silo in place.names):
                self._at.result(
                    place, self._at.start(place, "restore", (self._run, packed_receipts(portion), self._lease))
                )
        except Lost:
            # It may live, its connection lost, without approval or receipts: not to be asked. The caller counts.
            place.actor = None
