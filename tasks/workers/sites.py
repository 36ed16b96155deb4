"""The Dask backend: one holder per worker, one call per holder and round.

A holder (`tasks.workers.holder`) is a Dask actor that keeps its silos open. Dask does not replace a lost actor.
`DaskSites` creates another at the worker of the same name, from the silos' disk and ledgers, and repeats the call. The
worker opens records by name; they are never scattered or returned.
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
from fedcore.messages import Query, Receipt, Releases, packed_receipts, portions
from fedcore.silo.account import SiloAccount
from tasks.workers.batch import answers_of, packed_calls
from tasks.workers.holder import HolderPool
from tasks.workers.places import Lost, Place, Places


class DaskSites:
    """The backend on Dask. `recovered`: holders created again after a worker, or the connection to it, was lost.

    `route`: the bytes of a shuffled run's `Route`. `lease`: the driver's lease of the run (`fedcore.silo.lease`); sites
    of older drivers at the workers are ended first. `first`: there was no older driver.
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
        self._plan = experiment.plan
        self._receipts: Iterable[Receipt] = ()
        self.recovered = 0
        self._ended = False  # True once all sites have closed and forgotten the run
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
        """Creates the holders and lets their silos approve the run. Raises SiloError."""
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

    def ask(self, query: Query) -> Releases:
        """Sends the query to all sites at once; the releases are in the order of `query.participants`."""
        participants = set(query.participants)
        places = [place for place in self._places if not participants.isdisjoint(place.names)]
        answers = self._gather([(place, *self._question(place, "ask", query)) for place in places])
        return self._in_order(query, places, answers)

    def send(self, query: Query) -> None:
        """Makes the participants send their answers to the run's shuffler; waits for all sites. Raises SiloError."""
        participants, failures = set(query.participants), list[SiloError]()
        places = [place for place in self._places if not participants.isdisjoint(place.names)]
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
    def batch_group(self) -> tuple[Any, ...]:
        """Key of the backends whose runs' calls can be batched: they share a client and its workers."""
        return (id(self._at.client), *(place.worker for place in self._places))

    @staticmethod
    def batched(calls: Sequence[tuple[DaskSites, str, tuple[Any, ...]]]) -> Callable[[], list[Any]]:
        """Sends calls of several runs to sites at the same workers (`batch_group`), as one message per worker.

        The returned function waits; its list has the answer to each call (`ask`, `simulated`, `accounts`,
        `close_run`), or the exception that it raised.
        """
        first = calls[0][0]
        started = []
        for at, place in enumerate(first._places):
            questions = []
            for sites, method, arguments in calls:
                theirs = sites._places[at]
                questions.append((theirs.key, *sites._question(theirs, method, *arguments)))
            operations = [operation for _, operation, _ in questions]
            started.append((place, operations, first._at.start(place, "each", (packed_calls(questions),))))

        def answers() -> list[Any]:
            try:
                found = first._at_once(started)
            except SiloError as error:  # a site does not answer: every call fails
                return [SiloError(error.silo, error.code, error.sentence) for _ in calls]
            return [
                sites._answered(method, arguments, None if found is None else [each[number] for each in found])
                for number, (sites, method, arguments) in enumerate(calls)
            ]

        return answers

    def _question(self, place: Place, method: str, *arguments: Any) -> tuple[str, tuple[Any, ...]]:
        """The holder's method for a call at this place, and its arguments."""
        if method == "ask":
            return "answer", (arguments[0].at(place.names).to_bytes(), self._lease)
        if method == "simulated":
            return "simulated", (arguments[0], pack({"w": arguments[1]}), self._lease)
        return "end_run" if method == "close_run" else method, (*arguments, self._lease)

    def _answered(self, method: str, arguments: tuple[Any, ...], answers: Sequence[Any] | None) -> Any:
        """The call's result from these answers of all sites, or the exception that it raises.

        If a site was lost (`answers` is None) or refuses, the run repeats the call by itself, and opens the site again.
        A site that was lost while this run did not need it has not approved the run since. A real refusal is repeated.
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

    def _at_once(self, started: list[tuple[Place, list[str], Any]]) -> list[list[Any]] | None:
        """The list of answers of each place; None if a place was lost or sent something else."""
        answers = []
        for place, operations, waiting in started:
            try:
                answers.append(answers_of(self._at.result(place, waiting), operations))
            except (Lost, ValueError):
                return None
        return answers

    def _in_order(self, query: Query, places: Sequence[Place], answers: Sequence[Any]) -> Releases:
        # `_releases` accepts a site's own silos only: no site answers for another's.
        parts = [self._releases(query, place, answer) for place, answer in zip(places, answers, strict=True)]
        answered = {silo for part in parts for silo in part.silos}
        missing = [name for name in query.participants if name not in answered]
        if missing:
            raise SiloError(missing[0], "no-answer", f"it gave no answer in round {query.phase}.{query.round}")
        return Releases.joined(query, parts)

    def close(self) -> None:
        """Ends the run at its sites and returns holders to the pool; without one, or without an answer, closes them."""
        for place in self._places:
            if place.actor is not None:
                try:
                    if not self._ended:
                        place.actor.forget_run(self._run).result(timeout=5)
                    self._pool.give(place.worker, place.spec, place.future, place.actor)
                except Exception:
                    with contextlib.suppress(Exception):
                        place.actor.close()  # without waiting: its site may be busy with a long answer
            place.actor = place.future = None

    def _releases(self, query: Query, place: Place, answer: bytes) -> Releases:
        """The releases in a site's answer. Raises SiloError unless they are well-formed, one each of its own silos."""
        try:
            found = Releases.from_bytes(answer, self._plan.message_length(query.phase, query.round))
        except (ValueError, TypeError, AttributeError):
            found = None
        names = () if found is None else found.silos
        if found is None or not set(names) <= set(place.names) or len(set(names)) < len(names):
            raise SiloError(place.names[0], "answer", "its site sent something else than releases of its silos")
        if len(found) and (found.phase, found.round) != (query.phase, query.round):
            raise SiloError(found.silos[0], "answer", f"it answered another query than {query.phase}.{query.round}")
        return found

    def _of_all(self, method: str, *arguments: Any) -> list[Any]:
        parts = self._gather([(place, *self._question(place, method, *arguments)) for place in self._places])
        self._ended = self._ended or method == "close_run"
        return [item for part in parts for item in part or ()]

    def _gather(
        self, calls: list[tuple[Place, str, tuple[Any, ...]]], failures: list[SiloError] | None = None
    ) -> list[Any]:
        """Results of all calls, sent at once; a lost site is opened again and its call repeated.

        `failures`: receives the errors of single sites, which are raised otherwise.
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
            # The holder may live, but without approval or receipts, so it must not be called. The caller counts losses.
            place.actor = None
