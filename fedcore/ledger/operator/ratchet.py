"""A silo's clock that cannot be set back: it never shows less than the latest reading in the register.

Policies expire by this clock. A clock may be wrong for a moment, so a reading more than a day after the latest one is
noted but not confirmed. From then on a time more than an hour before the noted one is refused; synchronisation may set
a clock back by less. The silo's operator decides which time is right (`fedcore budget clock`), and the register records
the decision.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from fedcore.errors import SiloError
from fedcore.ledger.operator.accounts import Account, time_text
from fedcore.ledger.operator.register import Draft, Register

TOLERANCE = timedelta(hours=1)


class Ratchet:
    """The time at a registered silo, by its own `clock` and never from a message.

    `expired`: tests if the policy has ended at a moment. The first reading at which it has is recorded at once; other
    readings are recorded with approvals (`fedcore.ledger.operator.registered`). Raises SiloError while the clock is
    behind a noted reading.
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
                f"its clock says {time_text(now)} and has said {time_text(account.ahead)}: nothing new is answered "
                f"until its operator says which is right, by `fedcore budget clock {self._silo}`",
            )
        recorded = account.latest if account.ahead is None else max(account.latest, account.ahead)
        moment = self._latest = max(now, recorded, self._latest)
        if self._expired(moment) and not self._expired(recorded):
            self.keep(moment)
        return moment

    def keep(self, moment: datetime) -> None:
        """Records a reading in the register."""
        self._register.append([Draft("seen", self._silo, "", {"at": moment.astimezone(UTC).isoformat()})])


def _account(register: Register, silo: str) -> Account:
    found = register.accounts.find(silo)
    if found is None:
        register.refresh()
        found = register.accounts.find(silo)
    if found is None:
        raise SiloError(silo, "register", "it is not in its register")
    return found
