"""A silo's clock that cannot be set back: what its register has kept of it is the least that it says.

Policies expire by it. A reading of more than a day after the latest one is not kept by itself, since a clock may be
wrong for a moment; it is noted. From then on a clock that is back before it (by more than an hour, which
synchronisation may take it back) says nothing: the silo's operator knows which of the two was right, and says so
(`fedcore budget clock`), which is an entry.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from fedcore.errors import SiloError
from fedcore.ledger.operator.accounts import Account, said_time
from fedcore.ledger.operator.register import Draft, Register

TOLERANCE = timedelta(hours=1)


class Ratchet:
    """Says what time it is at a registered silo, by its own `clock`; never from a message.

    `expired`: whether a policy has ended at a moment. The first reading at which it has is written down at once; others
    go along with approvals (`fedcore.ledger.operator.registered`). Raises SiloError while the clock is behind what was
    noted.
    """

    def __init__(
        self, register: Register, silo: str, clock: Callable[[], datetime], expired: Callable[[datetime], bool]
    ) -> None:
        self._register, self._silo, self._clock, self._expired = register, silo, clock, expired
        self._latest = _account(register, silo).latest

    def __call__(self) -> datetime:
        now, account = self._clock().astimezone(UTC), _account(self._register, self._silo)
        if account.ahead is not None and now < account.ahead - TOLERANCE:
            raise SiloError(
                self._silo,
                "clock",
                f"its clock says {said_time(now)} and has said {said_time(account.ahead)}: nothing new is answered "
                f"until its operator says which is right, by `fedcore budget clock {self._silo}`",
            )
        kept = account.latest if account.ahead is None else max(account.latest, account.ahead)
        moment = self._latest = max(now, kept, self._latest)
        if self._expired(moment) and not self._expired(kept):
            self.keep(moment)
        return moment

    def keep(self, moment: datetime) -> None:
        """Writes a reading down."""
        self._register.append([Draft("seen", self._silo, "", {"at": moment.astimezone(UTC).isoformat()})])


def _account(register: Register, silo: str) -> Account:
    found = register.accounts.find(silo)
    if found is None:
        register.refresh()
        found = register.accounts.find(silo)
    if found is None:
        raise SiloError(silo, "register", "it is not in its register")
    return found
