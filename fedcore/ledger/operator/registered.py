"""The ledger of a registered silo: its charges are those of the account, over all versions of the silo's data.

Order of an approval: the register reserves the full charge and waits for the disk; the ledger approves; the register
confirms; only then an answer may be given. A process that dies in between leaves a reservation. The next one confirms
it if the ledger has the run, and cancels it otherwise, since no answer was given. A closing goes to the ledger first.
So the register never has less than was sent, and no round writes to it.

Two faults are found here that opening the ledger alone does not find. A ledger that was restored with its anchor lacks
the head that the register knows. A register that was restored alone has less than ledgers and anchors prove.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedcore.accounting.filters import Cap, Charge
from fedcore.errors import SiloError
from fedcore.ledger.anchor import Anchor, Totals
from fedcore.ledger.caps import Caps, caps_json
from fedcore.ledger.locked import alone
from fedcore.ledger.operator.account_lock import check_key, hold_account
from fedcore.ledger.operator.accounts import Account, Version, head_of
from fedcore.ledger.operator.register import Draft, Register
from fedcore.ledger.reconciliation import of_order
from fedcore.ledger.refusals import admit, closed_before
from fedcore.ledger.sqlite import SqliteLedger
from fedcore.ledger.state import Link
from fedcore.planning.problem import unit_of


class RegisteredLedger(SqliteLedger):
    """The ledger of a registered `version`, held with the silo's account; `charges` and `runs` are the account's.

    `clock`: the silo's own; the register records its time with each reservation. Raises SiloError as `SqliteLedger`,
    and where register, ledger and the anchors of the account's other ledgers do not fit each other.
    """

    def __init__(self, register: Register, silo: str, version: str, clock: Callable[[], datetime]) -> None:
        self._register, self._clock = register, clock
        self._ready = False
        self._release_account = weakref.finalize(self, os.close, hold_account(register, silo))
        try:
            register.refresh()
            found = register.accounts.find(silo)
            if found is None or version not in found.versions:
                raise SiloError(silo, "register", f"data version {version[:12]} is not in its register")
            mine = found.versions[version]
            check_key(register, silo, mine)
            self._check_others(silo, found, mine)
            super().__init__(silo, Path(mine.ledger), Path(mine.anchor))
        except BaseException:
            self._release_account()
            raise
        try:
            self._fit()
            self._ready = True
        except BaseException:
            self.close()
            raise

    def charges(self) -> dict[str, Charge]:
        """Charges of this version's runs by name, from the register, and all others that count for this version.

        Names of other versions' runs hold a null character, which no run of this version has.
        """
        own = self._mine
        found = {run: each.charge for run, each in own.runs.items()}
        for version in self._account.sharing(self.version):
            prefix = f"{version.name}\0"
            if version is not own:
                found |= {prefix + run: each.charge for run, each in version.runs.items()}
            found |= {f"{prefix}\0{number}": charge for number, charge in enumerate(version.lost)}
        return found

    @property
    def runs(self) -> int:
        return sum(version.count for version in self._account.sharing(self.version))

    @property
    def disjoint(self) -> bool:
        account = self._account
        return sum(1 for _ in account.sharing(self.version)) < len(account.versions)

    @alone
    def open_run(
        self,
        run: str,
        plan: str,
        key: bytes,
        charge: Charge,
        cap: Cap | None,
        person: str | None = None,
        lease: int = 0,
        policy: Cap | None = None,
    ) -> bytes:
        if not self.is_run(run):
            reserved = self._mine.runs.get(run)
            caps = [each for each in (policy, cap) if each is not None]
            charge = charge.at(self.caps.under(caps))
            if reserved is None:
                self._check_unit(run, person)
                admit(self.silo, run, cap, self.charges().values(), charge, self.caps.under(caps))
                body = {"run": run, "plan": plan, "charge": charge.json, "person": person, "at": self._now()}
                change = self.caps.change(caps, sum(version.count for version in self._account.versions.values()))
                self._note("reserved", body, *([] if change is None else [Draft("cap", self.silo, "", change)]))
            elif reserved.state != "reserved" or reserved.plan != plan or reserved.charge != charge:
                raise closed_before(self.silo, run)
        found = super().open_run(run, plan, key, charge, None, person, lease)
        if self._mine.runs[run].state == "reserved":
            self._note("confirmed", {"run": run, "head": head_of(self._at)})
        return found

    @property
    def caps(self) -> Caps:
        """Caps of the account, over all versions."""
        return self._account.caps

    @property
    def order(self) -> float | None:
        """Order of the register's caps. The anchor stores it too, so that losses after a restore are known at it."""
        return super().order if self.caps.order is None else self.caps.order

    def _order(self, caps: Sequence[Cap]) -> tuple[float | None, dict[str, Any] | None]:
        return self.caps.order, None  # the register records the caps, and has them already

    @alone
    def close_run(self, run: str, mu_squared: float, lease: int | None = None) -> None:
        super().close_run(run, mu_squared, lease)
        self._settle(run)

    @alone
    def close(self) -> None:
        if self._ready and not self._closed and self._fault is None:
            # Not needed for any charge: the head reveals a later restore of ledger and anchor to an earlier moment.
            with suppress(SiloError):
                if self._mine.head != self._at:
                    self._note("head", {"head": head_of(self._at)})
        super().close()
        self._release_account()

    _elsewhere = ""  # a register refuses the same records under another name

    def _check_unit(self, run: str, person: str | None) -> None:
        super()._check_unit(run, person)
        held = self._account.person(self.version)
        if held is not None and held[0] != person:
            units = f"{unit_of(held[0])}, for good, and run {run} asks for a charge for {unit_of(person)}"
            raise SiloError(self.silo, "unit", f"its account is charged for {units}")

    @property
    def _account(self) -> Account:
        found = self._register.accounts.find(self.silo)
        if found is None:  # a failed read or write has cleared it
            self._register.refresh()
            found = self._register.accounts.find(self.silo)
        if found is None:
            raise SiloError(self.silo, "register", "it is not in its register")
        return found

    @property
    def _mine(self) -> Version:
        return self._account.versions[self.version]

    def _note(self, kind: str, body: dict[str, Any], *before: Draft) -> None:
        self._register.append([*before, Draft(kind, self.silo, self.version, body)])

    def _now(self) -> str:
        return self._clock().astimezone(UTC).isoformat()

    def _settle(self, run: str) -> None:
        if self._mine.runs[run].state == "open" and self.is_closed(run):
            charge = super().charges()[run]
            self._note("settled", {"run": run, "charge": charge.json, "head": head_of(self._at)})

    def _check_others(self, silo: str, account: Account, mine: Version) -> None:
        """Raises SiloError if the anchor of another ledger of the account is gone or knows more than the register."""
        for other in account.sharing(mine.name):
            if other is mine or other.given_up:
                continue
            check_key(self._register, silo, other)
            mark = Anchor.read(silo, Path(other.anchor)).mark
            if mark is None or other.behind(mark):
                fault = f"the anchor of its ledger {other.ledger} is damaged, or has seen more than the register"
                raise _lost(silo, fault)

    def _fit(self) -> None:
        """Brings the register up to date with the ledger.

        Raises SiloError where the ledger lacks an entry that the register knows, or has a run that it does not know.
        """
        mine, own = self._mine, super().charges()
        if mine.given_up:
            raise SiloError(self.silo, "ledger-lost", f"its ledger {mine.ledger} was given up for good")
        if mine.head is not None and not self.has(mine.head):
            raise _lost(self.silo, f"its ledger {self._path} is an older copy, with its anchor, than the register saw")
        for run in filter(self.is_run, own):
            known = mine.runs.get(run)
            if known is None or known.state == "lost" or not covers(known.charge, own[run]):
                raise _lost(self.silo, f"run {run} is in its ledger, and the register does not know of it as it is")
        if self._anchor.mark is None or self._anchor.mark.sequence < self._at.sequence:
            # Entries committed when a process died. A closing must reach the anchor before the register settles it, or
            # the anchor seems to have seen more.
            self._write_anchor(durable=True)
        drafts = []
        for run, each in mine.runs.items():
            if not self.is_run(run) and each.state in ("open", "closed"):
                raise _lost(self.silo, f"run {run} is in the register and not in its ledger {self._path}")
            if each.state == "reserved":
                kind = "confirmed" if self.is_run(run) else "cancelled"
                drafts.append(Draft(kind, self.silo, self.version, {"run": run, "head": head_of(self._at)}))
            if each.state in ("reserved", "open") and self.is_run(run) and self.is_closed(run):
                body = {"run": run, "charge": own[run].json, "head": head_of(self._at)}
                drafts.append(Draft("settled", self.silo, self.version, body))
        # Reconciliations that were committed when their processes died.
        taken = losses(self, mine, self.order)
        if taken:
            here = sum(1 for run, each in mine.runs.items() if each.state != "reserved" or self.is_run(run))
            taken[-1].body["runs"] = max(0, self._known().runs - here - mine.lost_runs)
        self._register.append([*unclaimed(self.silo, self.order, bool(taken)), *drafts, *taken])


def covers(known: Charge, charge: Charge) -> bool:
    """True if `known` is at least `charge` in every measure, also by divergence where both are of one order."""
    pairs = zip(Totals.of([known])[:3], Totals.of([charge])[:3], strict=True)
    if not all(there <= here for here, there in pairs):
        return False
    first, second = known.divergence, charge.divergence
    return first is None or second is None or first.order != second.order or second.rho <= first.rho


def losses(ledger: SqliteLedger, version: Version, order: float | None) -> list[Draft]:
    """Entries for the reconciliations of a ledger that the register does not know; `order`: the account's."""
    return [
        loss_of(ledger.silo, version.name, link, of_order(charge, order))
        for link, charge in ledger.losses()
        if link not in version.reconciled
    ]


def loss_of(silo: str, version: str, link: Link, charge: Charge, runs: int = 0, names: Sequence[str] = ()) -> Draft:
    """The register's entry for a reconciliation at `link`: its `charge` beyond that of the known runs `names`.

    `runs`: how many other runs the ledger lost.
    """
    body = {"charge": charge.json, "runs": runs, "names": list(names), "head": head_of(link)}
    return Draft("lost", silo, version, body)


def unclaimed(silo: str, order: float | None, learnt: bool) -> list[Draft]:
    """The entry that ends the claim of the account's caps; none before the first cap.

    Needed only if the register `learnt` of charges that no cap in it admitted.
    """
    return [Draft("cap", silo, "", caps_json(order, ()))] if learnt and order is not None else []


def _lost(silo: str, fault: str) -> SiloError:
    return SiloError(
        silo,
        "ledger-lost",
        f"{fault}; nothing is answered until `fedcore budget reconcile {silo}` has charged what was open",
    )
