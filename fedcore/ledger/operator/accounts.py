"""Accounts in memory, built from the register's verified entries: one per silo, over all versions of its data.

Two versions share the account unless the operator declared, when the later one was registered, that its persons are in
no earlier one. For a run on a version, the charges of that version and of all that share with it count. Their sum is at
least the charge of any one person.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from fedcore.accounting.filters import Charge
from fedcore.ledger.anchor import Mark, Totals
from fedcore.ledger.caps import Caps
from fedcore.ledger.state import Link

DAY = timedelta(days=1)
KINDS = (
    "silo",
    "version",
    "records",
    "moved",
    "taken",
    "reserved",
    "confirmed",
    "cancelled",
    "settled",
    "lost",
    "given up",
    "head",
    "seen",
    "clock",
    "cap",
)


class RegisterEntry(NamedTuple):
    """One entry of the register without its MAC. `body` is JSON; `version` is empty for an entry about the silo."""

    sequence: int
    kind: str
    silo: str
    version: str
    body: str


@dataclass
class Reserved:
    """A run's charge. `state`: reserved, open, closed or lost.

    Reserved: the ledger may not have the run yet, and no answer was given. Lost: the ledger no longer has the run.
    """

    charge: Charge
    plan: str
    state: str
    person: str | None = None


@dataclass
class Version:
    """A version of a silo's data: its ledger and anchor, the digest of the ledger's key, and all charges.

    `digests`: pairs (content, records) of its records, oldest first; `records`: number of records. `lost`: charges of
    reconciliations beyond runs that are known by name; `reconciled`: the ledger's entries of these. `lost_runs`: runs
    lost without their names. `head`: an entry that its ledger has. `given_up`: the ledger is gone; its charges stay.
    """

    name: str
    ledger: str
    anchor: str
    key: str
    records: int
    disjoint: bool
    digests: list[tuple[str, str]] = field(default_factory=list)
    runs: dict[str, Reserved] = field(default_factory=dict)
    lost: list[Charge] = field(default_factory=list)
    reconciled: set[Link] = field(default_factory=set)
    lost_runs: int = 0
    head: Link | None = None
    given_up: bool = False

    @property
    def charges(self) -> list[Charge]:
        return [*(run.charge for run in self.runs.values()), *self.lost]

    @property
    def count(self) -> int:
        """Number of runs approved, with those that were lost."""
        return len(self.runs) + self.lost_runs

    def behind(self, mark: Mark) -> bool:
        """True if the ledger's anchor has larger totals or more runs than this version."""
        known = Totals.of(self.charges)
        # Without divergences: they follow from the same charges, and the mark may have the order of an older ledger.
        more = any(not there <= here * (1 + 1e-12) for there, here in zip(mark.totals[:3], known[:3], strict=True))
        return more or mark.runs > self.count


@dataclass
class Account:
    """A silo's account.

    `latest`: latest confirmed time of the silo's clock; `ahead`: an unconfirmed one, more than a day later.
    `declarations`: of its operator, as (number of the entry, sentence). `caps`: those of all versions, with the one
    order of the account's Renyi filter.
    """

    silo: str
    latest: datetime
    ahead: datetime | None = None
    versions: dict[str, Version] = field(default_factory=dict)
    declarations: list[tuple[int, str]] = field(default_factory=list)
    caps: Caps = field(default_factory=Caps)

    def sharing(self, version: str) -> Iterator[Version]:
        """The versions that share the account with `version`, which is one of them."""
        order = list(self.versions)
        at = order.index(version)
        for place, other in enumerate(self.versions.values()):
            if place == at or not self.versions[order[max(place, at)]].disjoint:
                yield other

    def person(self, version: str) -> tuple[str | None] | None:
        """Unit of the charges that count for `version`, as (`Problem.person`,); None where there are none."""
        runs = [run for other in self.sharing(version) for run in other.runs.values()]
        return (runs[0].person,) if runs else None

    def see(self, moment: datetime) -> None:
        """Takes a reading of the silo's clock."""
        if moment <= self.latest:
            return
        if moment <= self.latest + DAY:
            self.latest = moment
        elif self.ahead is None or moment > self.ahead:
            self.ahead = moment


class Accounts:
    """All accounts, from verified entries in order."""

    def __init__(self) -> None:
        self.by_name: dict[str, Account] = {}

    def find(self, silo: str) -> Account | None:
        """The account of this name. Names that differ only in case or encoding are equal, as on some file systems."""
        return self.by_name.get(folded(silo))

    def of_records(self, content: str | None, records: str | None = None) -> tuple[Account, Version] | None:
        """The account and version that hold these records, by either of their digests; None if there is none."""
        for account in self.by_name.values():
            for version in account.versions.values():
                if any(content == found[0] or records == found[1] for found in version.digests):
                    return account, version
        return None

    def why_not(self, silo: str, version: str, held: tuple[Account, Version] | None) -> str | None:
        """The reason why records cannot be `version` of `silo`, as a sentence; None if they can.

        `held`: the account and version that hold them already (`of_records`).
        """
        account = self.find(silo)
        if account is not None and account.silo != silo:
            return f"silo {account.silo} has an account, and files of both names may be one"
        if held is not None and held[0] is not account:
            return f"its records are those of silo {held[0].silo}, which has their account"
        if held is not None and held[1].name != version:
            return (
                f"its records are those of data version {held[1].name[:12]}, whose ledger is {held[1].ledger}; open "
                "them as that version, they get no second account"
            )
        return None

    def take(self, entry: RegisterEntry) -> None:
        """Adds the next entry. Raises ValueError, TypeError, KeyError or AttributeError for an invalid one."""
        body = json.loads(entry.body)
        if entry.kind == "silo":
            if folded(entry.silo) in self.by_name:
                raise ValueError("a silo is registered twice")
            self.by_name[folded(entry.silo)] = Account(entry.silo, datetime.fromisoformat(body["at"]))
            return
        account = self.by_name[folded(entry.silo)]
        if entry.kind == "clock":
            was, account.latest, account.ahead = account.latest, datetime.fromisoformat(body["to"]), None
            sentence = f"its clock was set from {time_text(was)} to {time_text(account.latest)} by its operator"
            account.declarations.append((entry.sequence, sentence))
        elif entry.kind == "seen":
            account.see(datetime.fromisoformat(body["at"]))
        elif entry.kind == "cap":
            account.caps.take(entry.sequence, body)
        elif entry.kind == "version":
            if entry.version in account.versions:
                raise ValueError("a version is registered twice")
            version = Version(
                entry.version, body["ledger"], body["anchor"], body["key"], int(body["records"]), bool(body["disjoint"])
            )
            if body["digests"] is not None:
                version.digests.append((str(body["digests"][0]), str(body["digests"][1])))
            account.versions[entry.version] = version
            if version.disjoint:
                sentence = f"persons of data version {entry.version[:12]} are declared to be in no earlier version"
                account.declarations.append((entry.sequence, sentence))
        else:
            self._of_version(account, account.versions[entry.version], entry, body)

    def _of_version(self, account: Account, version: Version, entry: RegisterEntry, body: dict[str, Any]) -> None:
        if entry.kind == "records":
            version.digests.append((str(body["digests"][0]), str(body["digests"][1])))
            version.records = int(body["records"])
        elif entry.kind == "moved":
            version.ledger, version.anchor = str(body["ledger"]), str(body["anchor"])
        elif entry.kind in ("reserved", "taken"):
            if body["run"] in version.runs:
                raise ValueError("a run is reserved twice")
            state = "reserved" if entry.kind == "reserved" else "closed" if body["closed"] else "open"
            charge = Charge.from_json(body["charge"])
            version.runs[body["run"]] = Reserved(charge, str(body["plan"]), state, body["person"])
            if entry.kind == "reserved":
                account.see(datetime.fromisoformat(body["at"]))
        elif entry.kind == "cancelled":
            if version.runs[body["run"]].state != "reserved":
                raise ValueError("a run that may have been answered is cancelled")
            del version.runs[body["run"]]
        elif entry.kind == "confirmed":
            version.runs[body["run"]].state = "open"
        elif entry.kind == "settled":
            run = version.runs[body["run"]]
            run.charge, run.state = Charge.from_json(body["charge"]), "closed"
        elif entry.kind == "lost":
            version.lost.append(Charge.from_json(body["charge"]))
            version.lost_runs += int(body["runs"])
            for run in body["names"]:
                version.runs[run].state = "lost"
        elif entry.kind == "given up":
            version.given_up = True
        elif entry.kind != "head":
            raise ValueError("no such kind of entry")
        if body.get("head") is not None:
            version.head = Link(int(body["head"][0]), bytes.fromhex(body["head"][1]))
            if entry.kind == "lost":
                version.reconciled.add(version.head)


def folded(name: str) -> str:
    """A normal form that is equal for names that some file system does not distinguish."""
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())


def head_of(link: Link) -> list[Any]:
    """A place in a ledger's chain, as a JSON list."""
    return [link.sequence, link.mac.hex()]


def total(charges: list[Charge]) -> Charge:
    """The correctly rounded sum of charges, without divergences."""
    return Totals.of(charges).charge


def time_text(moment: datetime) -> str:
    return moment.isoformat(sep=" ", timespec="seconds")
