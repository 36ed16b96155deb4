"""Test that each address is answered once.

Different payloads for one (silo, run, phase, round) are a second, uncharged release.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from fedcore.audit.finding import Finding


class Sent(NamedTuple):
    """One payload seen or recorded for an address: in a receipt, a ledger row, or on the wire."""

    silo: str
    run: str
    phase: int
    round: int
    payload_digest: bytes


def second_release(sent: Iterable[Sent], odd: Sequence[str] = ()) -> Finding:
    """Counts addresses with more than one distinct payload; a repeated payload is one release.

    `odd`: sentences about answers and agreements outside of any plan, hence of any charge.
    statistic: such addresses plus `odd`; threshold: 0; no chance. Raises ValueError if nothing was sent.
    """
    payloads: dict[tuple[str, str, int, int], set[bytes]] = {}
    for one in sent:
        payloads.setdefault(one[:4], set()).add(one.payload_digest)
    if not payloads:
        raise ValueError("nothing was sent: there is no address to look at")
    twice = [address for address, digests in payloads.items() if len(digests) > 1]
    sentence = f"{len(twice)} of {len(payloads)} addresses were answered with more than one payload"
    if twice:
        silo, run, phase, round = min(twice)
        sentence += f", the first at silo {silo}, run {run}, round {phase}.{round}"
    if odd:
        sentence += f"; of {len(odd)} that are in no plan the first: {odd[0]}"
    wrong = len(twice) + len(odd)
    return Finding("second release", not wrong, float(wrong), 0.0, 0.0, sentence)
