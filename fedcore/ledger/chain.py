"""What a durable ledger is made of: entries, each chained to the one before by an HMAC under a key of this ledger.

Whoever changes, removes, adds or reorders entries without the key breaks the chain from there on. Only a tail that is
cut off leaves a chain that is whole: the anchor (`fedcore.ledger.anchor`) tells that.
"""

from __future__ import annotations

import hmac
import json
import struct
from dataclasses import asdict
from functools import lru_cache
from typing import Any, Literal, NamedTuple

from fedcore.accounting.events import GaussianRelease
from fedcore.accounting.filters import Charge
from fedcore.arrays import digest

Kind = Literal["opening", "approval", "release", "closing", "reconciliation", "policy", "lease", "cap"]
"""opening: whose ledger this is. approval: a run and its charge. release: address, event, and digest of the bytes.
closing: what a run is charged in the end. reconciliation: what was lost and is charged nevertheless.
policy: what the silo's operator allows from here on. lease: which driver of a run is answered from here on.
cap: the account's order, and the caps in force from here on."""


class Entry(NamedTuple):
    """One entry but for its MAC and its payload, which `payload_digest` stands for. `body` is JSON."""

    sequence: int
    kind: Kind
    run: str
    phase: int
    round: int
    query_digest: bytes
    body: str
    payload_digest: bytes

    def mac(self, key: bytes, before: bytes) -> bytes:
        """HMAC-SHA-256 (32 bytes) over the MAC of the entry before and all fields, each with its length."""
        numbers = struct.pack("<QQQ", self.sequence, self.phase, self.round)
        texts = (self.kind.encode(), self.run.encode(), self.body.encode())
        return hmac.digest(key, digest(before, numbers, *texts, self.query_digest, self.payload_digest), "sha256")


@lru_cache(maxsize=1024)
def event_text(event: GaussianRelease) -> str:
    """An event as JSON, from which `event_of` makes an equal one: floats keep all their bits."""
    return json.dumps(asdict(event), sort_keys=True)


@lru_cache(maxsize=1024)
def event_of(text: str) -> GaussianRelease:
    """The event of `event_text`. Raises ValueError or TypeError for another text."""
    return GaussianRelease(**json.loads(text))


def approval_text(plan: str, key_digest: str, charge: Charge, person: str | None = None) -> str:
    """The body of an approval: plan, SHA-256 of the run key, full charge, and the column of persons that it is for."""
    whose = {} if person is None else {"person": person}
    return json.dumps({"plan": plan, "key_sha256": key_digest, "charge": charge.json, **whose}, sort_keys=True)


def policy_text(digest: str, text: str) -> str:
    """The body of a policy: SHA-256 of its canonical text, and the text."""
    return json.dumps({"sha256": digest, "policy": text}, sort_keys=True)


def lease_text(lease: int) -> str:
    """The body of a lease: its number."""
    return json.dumps({"lease": lease})


def charge_of(body: dict[str, Any]) -> Charge:
    """The charge in the body of an approval, a closing or a reconciliation."""
    return Charge.from_json(body["charge"])


def sound(entry: Entry, key: bytes, before: bytes, mac: bytes) -> bool:
    """Whether `mac` is the entry's own after an entry with the MAC `before`."""
    try:
        return hmac.compare_digest(entry.mac(key, before), mac)
    except Exception:
        return False  # a damaged field has another type
