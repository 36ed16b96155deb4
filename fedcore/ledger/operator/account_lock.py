"""The lock of a silo's account: one process at a time, with the ledgers whose keys the register knows."""

from __future__ import annotations

import hmac
from pathlib import Path

from fedcore.errors import SiloError
from fedcore.ledger.anchor import Anchor
from fedcore.ledger.file_lock import hold
from fedcore.ledger.operator.accounts import Version, folded
from fedcore.ledger.operator.register import Register


def hold_account(register: Register, silo: str) -> int:
    """Descriptor of the lock of a silo's account, over all versions: one process at a time. Raises SiloError."""
    name = hmac.digest(register.key, folded(silo).encode(), "sha256").hex()[:32]
    return hold(silo, register.path, register.folder / f"{name}.account")


def key_digest(register: Register, key: bytes) -> str:
    """HMAC-SHA-256 (hex) of a ledger's key, which the register keeps."""
    return hmac.digest(register.key, b"ledger" + key, "sha256").hex()


def check_key(register: Register, silo: str, version: Version) -> None:
    """Raises SiloError unless the ledger's key is there and is the one that the register knows.

    Before the ledger is opened: where neither ledger nor anchor nor key is, opening makes new ones.
    """
    known = Anchor.read(silo, Path(version.anchor)).key
    if known is not None and hmac.compare_digest(key_digest(register, known), version.key):
        return
    said = "gone" if known is None else "another ledger's"
    raise SiloError(
        silo,
        "ledger-lost",
        f"the key of its ledger {version.ledger} is {said}, which the register knows: restore ledger, anchor and key, "
        f"or give the ledger up in full by `fedcore budget reconcile {silo}`",
    )
