"""A backend whose silos answer through a shuffler: the driver sends them the query, and collects one anonymous batch.

The driver stores only the fold of each batch: no single answer, no digest of one, no silo's name beside either.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol

from fedcore.arrays import Vector
from fedcore.bounded_file import read_within
from fedcore.errors import InputError, ShufflerError, SiloError
from fedcore.federation.in_process import Backend
from fedcore.ledger.anchor import write_whole
from fedcore.limits import LARGEST_KEY
from fedcore.messages import Batch, Query, Receipt, Releases
from fedcore.planning.plan import Plan
from fedcore.shuffling.forms import Address, Opening, Request, SealedBatch
from fedcore.shuffling.sealing import ServerKey, sealed_length
from fedcore.shuffling.shuffler import FEW, UNKNOWN
from fedcore.silo.account import SiloAccount
from tasks.shuffling.calls import Mailbox

ATTEMPTS = 10
"""Times that a round is opened: a shuffler that was killed has lost the messages that waited."""


class SendingSites(Backend, Protocol):
    """Sites that have the route to the run's shuffler."""

    def send(self, query: Query) -> None:
        """Makes the participants send their answers to the shuffler. Raises SiloError."""
        ...


class Shuffled:
    """The sites of a shuffled run, and its shuffler. `deadline`: seconds to wait for a round's messages.

    `done`: called by `close`.
    """

    def __init__(
        self,
        sites: SendingSites,
        mailbox: Mailbox,
        key: ServerKey,
        plan: Plan,
        run: str,
        deadline: float,
        done: Callable[[], object] | None = None,
    ) -> None:
        self._sites, self._mailbox, self._key = sites, mailbox, key
        self._plan, self._run, self._deadline, self._done = plan, run, deadline, done

    def open(self) -> None:
        self._sites.open()

    def restore(self, run: str, receipts: Iterable[Receipt]) -> None:
        self._sites.restore(run, receipts)

    def ask(self, query: Query) -> Releases:
        """Raises SiloError: the sites of a shuffled run send the driver no releases."""
        return self._sites.ask(query)

    def batch(self, query: Query) -> Batch:
        """The round's answers in the shuffler's order: always the same committed batch, however often this is called.

        Queries the silos unless the batch is already committed. If no batch of the minimum size results, raises
        ShufflerError, or a silo's SiloError.
        """
        at = Address(self._run, query.phase, query.round)
        shuffle = self._plan.problem.trust.shuffle
        least = len(query.participants) if shuffle is None else shuffle.minimum
        length = self._plan.phases[query.phase - 1].question.length(self._plan.problem.objective.dim)
        opening = Opening(
            at,
            query.participants,
            least,
            self._deadline,
            sealed_length(length),
            _shared_digest(query).hex(),
            self._key.public.hex(),
            self._key.owner,
        )
        for _ in range(ATTEMPTS):
            failure: SiloError | None = None
            if self._mailbox.open(opening):
                try:
                    self._sites.send(query)
                except SiloError as error:
                    failure = error
            needed = least == len(query.participants)
            if failure is not None and needed and failure.code != UNKNOWN:
                raise failure
            sealed = self._collected(Request(at, self._key.owner), failure)
            if sealed is not None:
                return self._unsealed(query, sealed, length)
        raise ShufflerError(UNKNOWN, f"{at}: its messages were lost {ATTEMPTS} times; see its log, then resume")

    def _collected(self, request: Request, failure: SiloError | None) -> SealedBatch | None:
        """The batch; None if the shuffler has lost the round."""
        while True:
            try:
                found = self._mailbox.batch(request)
            except ShufflerError as error:
                if error.code == UNKNOWN:
                    return None
                if error.code == FEW and failure is not None:
                    raise ShufflerError(FEW, f"{error.sentence}; {failure}") from None
                raise
            if found is not None:
                return found

    def _unsealed(self, query: Query, sealed: SealedBatch, length: int) -> Batch:
        digest = _shared_digest(query)
        payloads: list[Vector] = []
        for message in sealed.messages:
            with contextlib.suppress(ValueError):
                payloads.append(self._key.unsealed(message, digest, length))
        lost = len(sealed.messages) - len(payloads)
        if lost:
            raise ShufflerError(
                "answer",
                f"{sealed.at}: {lost} of its {len(sealed.messages)} messages were not sealed to this run's key as "
                "answers to this question; somebody else may have sent them",
            )
        return Batch.of(payloads)

    def accounts(self, run: str) -> list[SiloAccount]:
        return self._sites.accounts(run)

    def simulated(self, run: str, w: Vector) -> list[tuple[int, float, float]]:
        return self._sites.simulated(run, w)

    def close_run(self, run: str) -> None:
        self._sites.close_run(run)
        with contextlib.suppress(ShufflerError):  # its batches are sealed and permuted, and the run is complete
            self._mailbox.end(Request(Address(run, 1, 1), self._key.owner, ends=True))

    def close(self) -> None:
        try:
            self._sites.close()
        finally:
            if self._done is not None:
                self._done()


def _shared_digest(query: Query) -> bytes:
    """The digest of a participant's question: methods that may be shuffled put the same question to all."""
    return query.digests(query.participants[:1])[query.participants[0]]


def stored_key(path: Path) -> ServerKey:
    """The run's key pair from its file, which the first call creates, readable by its owner only. Raises InputError."""
    try:
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, ServerKey.new().private)
        return ServerKey(read_within(path, LARGEST_KEY))
    except OSError as error:
        fault = error.strerror or "it cannot be written"
    except ValueError as error:
        fault = str(error)
    raise InputError(f"{path}: the run's key for its shuffler cannot be used: {fault}")
