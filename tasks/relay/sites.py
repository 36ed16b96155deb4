"""A backend whose silos are services elsewhere: calls go to a relay in envelopes, and answers come back the same way.

The relay is not trusted. An answer counts if its silo signed it, sealed it to the coordinator, and named the question.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from fedcore.arrays import Vector
from fedcore.errors import RelayError, SiloError
from fedcore.identity.inbox import Inbox
from fedcore.identity.keys import Identity, PublicIdentity
from fedcore.messages import Query, Receipt, Releases
from fedcore.planning.plan import Plan
from fedcore.remote.forms import Call, Operation, accounts_of
from fedcore.silo.account import SiloAccount
from fedcore.silo.agreement import Agreement
from tasks.relay.calls import Post, RemoteCalls


@dataclass(frozen=True)
class Skip:
    """Leave to go on without silos that have not answered after `deadline` seconds, if `minimum` silos have."""

    deadline: float
    minimum: int


class RemoteSites:
    """The silos of a run in a federation. `silos`: their public keys by name. `lease`: the driver's.

    `deadline`: seconds within which each silo answers; None: it is waited for. `skip`: in place of an error after the
    deadline. `waits`, `keys`: as for `RemoteCalls`.
    """

    def __init__(
        self,
        post: Post,
        inbox: Inbox,
        identity: Identity,
        federation: str,
        silos: Mapping[str, PublicIdentity],
        agreement: Agreement,
        plan: Plan,
        lease: int,
        deadline: float | None = None,
        waits: Callable[[Mapping[str, str]], None] = lambda names: None,
        skip: Skip | None = None,
        keys: Callable[[], Mapping[str, PublicIdentity]] = dict,
    ) -> None:
        self._post, self._agreement, self._plan, self._lease = post, agreement, plan, lease
        self._deadline, self._skip = deadline if skip is None else skip.deadline, skip
        self.silos = tuple(silos)
        approval = self._call("approve", agreement.to_bytes())
        self._calls = RemoteCalls(post, inbox, identity, federation, silos, approval, waits, keys)
        self._ended = False

    def open(self) -> None:
        """Makes all silos approve the run. Raises SiloError."""
        self._of_all("approve", self._least, self._agreement.to_bytes())

    def restore(self, run: str, receipts: Iterable[Receipt]) -> None:
        """Nothing: a service's ledger is durable."""

    def ask(self, query: Query) -> Releases:
        """Returns one release per participant, in the query's order. Raises SiloError."""
        return self._asked(query, None)

    def gather(self, query: Query) -> Releases:
        """As `ask`, of those participants that were not skipped."""
        return self._asked(query, self._least)

    def _asked(self, query: Query, least: int | None) -> Releases:
        calls = {name: self._call("answer", query.at((name,)).to_bytes()) for name in query.participants}
        deadline = None if least is None and self._skip is not None else self._deadline
        answers = self._calls.answers(calls, deadline, least)
        parts = [self._releases(query, name, answer) for name, answer in answers.items()]
        return Releases.joined(query.among(answers), parts)

    def accounts(self, run: str) -> list[SiloAccount]:
        """Accounts of the run, of each silo that was not skipped. Raises SiloError."""
        found = []
        for name, data in self._of_all("accounts", self._none).items():
            try:
                listed = accounts_of(data)
                if [account.silo for account in listed] != [name]:
                    raise ValueError
            except ValueError:
                raise SiloError(name, "answer", "it sent something else than its account") from None
            found += listed
        return found

    def simulated(self, run: str, w: Vector) -> list[tuple[int, float, float]]:
        """Raises SiloError: a silo of real records computes nothing without noise."""
        raise SiloError(self.silos[0], "simulation", "a silo service computes no metrics without noise")

    def close_run(self, run: str) -> None:
        self._of_all("close_run", self._none)
        self._ended = True

    def close(self) -> None:
        """Lets the silos forget a run that has not ended; waits for none of them."""
        with contextlib.suppress(RelayError):
            if not self._ended:
                self._calls.leave({name: self._call("forget_run") for name in self.silos})
            self._post.flush()

    def _call(self, operation: Operation, *parts: bytes) -> Call:
        return Call(operation, self._agreement.run, self._lease, parts)

    @property
    def _least(self) -> int | None:
        """Number of answers without which no round goes on; None: those of all."""
        return None if self._skip is None else self._skip.minimum

    @property
    def _none(self) -> int | None:
        """As `_least`, for calls at the end of a run: any number will do where silos may be skipped."""
        return None if self._skip is None else 0

    def _of_all(self, operation: Operation, least: int | None, *parts: bytes) -> dict[str, bytes]:
        calls = {name: self._call(operation, *parts) for name in self.silos}
        return self._calls.answers(calls, self._deadline, least)

    def _releases(self, query: Query, name: str, data: bytes) -> Releases:
        """The silo's one release. Raises SiloError unless it is well-formed, and its own."""
        try:
            found = Releases.from_bytes(data, self._plan.message_length(query.phase, query.round))
        except ValueError:
            found = None
        if found is None or found.silos != (name,) or (found.phase, found.round) != (query.phase, query.round):
            raise SiloError(name, "answer", f"it sent something else than its release of {query.phase}.{query.round}")
        return found
