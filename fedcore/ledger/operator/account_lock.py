"""The lock of a silo's account, held by one process at a time, and the check of its ledgers' keys."""

from __future__ import annotations

import hmac
from pathlib import Path

from fedcore.errors import SiloError
from fedcore.ledger.anchor import Anchor
from fedcore.ledger.file_lock import hold
from fedcore.ledger.operator.accounts import Version, folded
from fedcore.ledger.operator.register import Register


def hold_account(register: Register, silo: str) -> int:
    """Locks a silo's account over all data versions; returns the lock's descriptor. Raises SiloError."""
    name = hmac.digest(register.key, folded(silo).encode(), "sha256").hex()[:32]
    return hold(silo, register.path, register.folder / f"{name}.account")


def key_digest(register: Register, key: bytes) -> str:
    """HMAC-SHA-256 (hex) of a ledger's key, which the register stores."""
    return hmac.digest(register.key, b"ledger" + key, "sha256").hex()


def check_key(register: Register, silo: str, version: Version) -> None:
    """Raises SiloError unless the ledger's key is there and is the one that the register knows.

    Call it before opening the ledger: where ledger, anchor and key are all missing, opening makes new ones.
    """
    known = Anchor.read(silo, Path(version.anchor)).key
    if known is not None and hmac.compare_digest(key_digest(register, known), version.key):
        return
    fault = "gone" if known is None else "another ledger's"
    raise SiloError(
        silo,
        "ledger-lost",
        f"the key of its ledger {version.ledger} is {fault}, which the register knows: restore ledger, anchor and key, "
        f"or give the ledger up in full by `fedcore budget reconcile {silo}`",
    )
