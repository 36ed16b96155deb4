"""Durable ledgers of this home, for the commands of `fedcore budget`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedcore.home import Home
    from fedcore.ledger.operator.register import Register
    from fedcore.ledger.sqlite import SqliteLedger


def current_home() -> Home:
    """This home, with its folders checked. Raises what `Home.check` raises."""
    from fedcore.home import Home

    return Home.current().check()


def ledgers_found(silo: str | None) -> list[tuple[str, str]]:
    """(data version, silo) of each ledger in this home. Raises InputError if there are none."""
    from fedcore.errors import InputError

    found = current_home().ledger_folders.found(silo)
    if not found:
        ledger = "durable ledger" if silo is None else f"durable ledger of a silo {silo!r}"
        raise InputError(f"{current_home().ledgers} holds no {ledger}; runs with privacy.ledger = sqlite make one")
    return list(found)


@contextmanager
def opened_ledger(version: str, silo: str) -> Iterator[SqliteLedger]:
    """The ledger, closed again after the block. Raises SiloError if it is held, lost or damaged."""
    from fedcore.ledger.sqlite import SqliteLedger

    ledger = SqliteLedger(silo, *current_home().ledger_folders.of(version, silo))
    try:
        yield ledger
    finally:
        ledger.close()


@contextmanager
def held_ledger(version: str, silo: str) -> Iterator[SqliteLedger]:
    """As `opened_ledger`; the ledger of a registered silo also writes changes to the account."""
    from fedcore.ledger.operator.registered import RegisteredLedger
    from fedcore.silo.policies.policy_in_force import utc_now

    register = known_register()
    if register is None or not _is_registered(register, silo, version):
        with opened_ledger(version, silo) as ledger:
            yield ledger
        return
    registered = RegisteredLedger(register, silo, version, utc_now)
    try:
        yield registered
    finally:
        registered.close()


def known_register() -> Register | None:
    """The register of this machine's operator; None if there is none. Raises SiloError if it is damaged."""
    from fedcore.ledger.operator.register import Register

    register = Register.current("register")
    return register if register.known else None


def unregistered(silo: str) -> list[tuple[str, str]]:
    """(data version, silo) of each ledger in this home that is in no register. Raises InputError without a ledger."""
    register = known_register()
    if register is None:
        return ledgers_found(silo)
    known = register.accounts.find(silo) is not None
    found = list(current_home().ledger_folders.found(silo)) if known else ledgers_found(silo)
    return [(version, name) for version, name in found if not _is_registered(register, name, version)]


def check_unknown(silo: str, version: str) -> None:
    """Raises InputError for a registered ledger's path, where an older file was put."""
    from fedcore.errors import InputError

    register = known_register()
    if register is not None and _is_registered(register, silo, version):
        path = current_home().ledger_folders.of(version, silo)[0]
        raise InputError(f"{path} is not the ledger that the register knows: restore that, nothing is migrated")


def _is_registered(register: Register, silo: str, version: str) -> bool:
    """Checks that this home's ledger is the one that the register has for a silo's data version."""
    account = register.accounts.find(silo)
    known = None if account is None else account.versions.get(version)
    return known is not None and known.ledger == os.path.realpath(current_home().ledger_folders.of(version, silo)[0])
