"""The durable ledger with which a silo is opened, by the register of its operator.

A guarded silo is opened only with the ledger that the register has for its name and data version. Its file must hold
the records that were registered under that version. The register alone decides: folder, manifest and spec only have to
agree with it.

A simulated silo needs no register, since it protects no one. But if a register knows its name or its records, its
durable ledger must be the registered one. Otherwise a simulated account could pass for the silo's account.
"""

from __future__ import annotations

import os

from fedcore.data.fingerprint import content_digest, records_digest
from fedcore.data.silo_file import SiloSource
from fedcore.errors import SiloError
from fedcore.home import LedgerFolders
from fedcore.ledger.operator.accounts import Account, Version
from fedcore.ledger.operator.ratchet import Ratchet
from fedcore.ledger.operator.register import Register
from fedcore.ledger.operator.registered import RegisteredLedger
from fedcore.ledger.sqlite import SqliteLedger
from fedcore.silo.policies.policy import Policy
from fedcore.silo.policies.policy_in_force import Clock

COMMAND = "fedcore budget register"
OPEN_FILES = 6
"""Files per open ledger: its lock, its database twice, the write-ahead file, the anchor and the account's lock."""


def check_registered(silo: str) -> None:
    """Raises SiloError if the register has no account of a silo to be opened guarded."""
    register = Register.current(silo)
    if register.accounts.find(silo) is None:
        raise _newcomer(register, silo)


def durable_ledger(
    source: SiloSource, folders: LedgerFolders, guarded: bool, policy: Policy | None, clock: Clock
) -> tuple[SqliteLedger, Clock]:
    """The ledger of a silo, and the clock by which its policy expires. Raises SiloError.

    For a registered silo these are the account over all versions of its data, and a clock that cannot be set back.
    """
    silo, places = source.name, folders.of(source.version, source.name)
    register = Register.current(silo)
    if not register.known:
        if guarded:
            raise _newcomer(register, silo)
        return SqliteLedger(silo, *places), clock
    account = register.accounts.find(silo)
    before = _stamp(source)
    held = _held(register, source)
    if (why := register.accounts.why_not(silo, source.version, held)) is not None:
        raise SiloError(silo, "register", why)
    if account is None:
        if guarded:
            raise _newcomer(register, silo)
        return SqliteLedger(silo, *places), clock
    if held is None:
        known = source.version in account.versions
        changed = "its records are not those that were" if known else "its data version is not"
        raise SiloError(
            silo,
            "register",
            f"{changed} registered: nothing is answered until its operator registers it by `{COMMAND}`; it then shares "
            "the silo's account",
        )
    version = held[1]
    if [os.path.realpath(place) for place in places] != [version.ledger, version.anchor]:
        raise SiloError(
            silo,
            "register",
            f"its ledger is {version.ledger} by its register, not {places[0]}; where its operator has moved it, "
            f"`{COMMAND}` says so",
        )
    ratchet = clock if policy is None else Ratchet(register, silo, clock, policy.expired)
    ledger = RegisteredLedger(register, silo, source.version, clock)
    if _stamp(source) != before:
        ledger.close()
        raise SiloError(silo, "register", f"its file {source.path} was changed while it was opened")
    return ledger, ratchet


def _held(register: Register, source: SiloSource) -> tuple[Account, Version] | None:
    """Account and version of a silo's records in the register; None where it has none."""
    content = content_digest(source, register.key)
    found = register.accounts.of_records(content)
    if found is None:
        found = register.accounts.of_records(None, records_digest(source, register.key))
    return found


def _stamp(source: SiloSource) -> tuple[int, ...] | None:
    """File id, size and times, which change with a file or its content; None if it is not there."""
    try:
        found = os.stat(source.path)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _newcomer(register: Register, silo: str) -> SiloError:
    return SiloError(
        silo,
        "register",
        f"it is guarded and has no account in the register {register.folder}: its operator makes one by "
        f"`{COMMAND} --new CONFIG {silo}`, or without a name for all silos of the config",
    )
