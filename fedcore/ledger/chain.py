"""Entries of a durable ledger, each chained to the one before by an HMAC under the ledger's own key.

Changing, removing, adding or reordering entries without the key breaks the chain from there on. Only cutting off the
tail leaves a whole chain; the anchor (`fedcore.ledger.anchor`) detects that.
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
"""opening: silo and data version; approval: a run and its charge; release: address, event, and digest of the bytes;
closing: the final charge of a run; reconciliation: the charge for lost entries; policy: the operator's policy from here
on; lease: the driver whose rounds of a run are answered from here on; cap: the account's order, and the caps from here
on."""


class Entry(NamedTuple):
    """One entry without its MAC and its payload, which `payload_digest` represents. `body` is JSON."""

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
    """An event as JSON, with all bits of its floats; `event_of` reads it."""
    return json.dumps(asdict(event), sort_keys=True)


@lru_cache(maxsize=1024)
def event_of(text: str) -> GaussianRelease:
    """The event that `event_text` wrote. Raises ValueError or TypeError for another text."""
    return GaussianRelease(**json.loads(text))


def approval_text(plan: str, key_digest: str, charge: Charge, person: str | None = None) -> str:
    """The body of an approval: plan, SHA-256 of the run key, full charge, and the column of persons (None: records)."""
    unit = {} if person is None else {"person": person}
    return json.dumps({"plan": plan, "key_sha256": key_digest, "charge": charge.json, **unit}, sort_keys=True)


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
    """Checks that `mac` is the entry's MAC after an entry with the MAC `before`."""
    try:
        return hmac.compare_digest(entry.mac(key, before), mac)
    except Exception:
        return False  # a damaged field has another type
