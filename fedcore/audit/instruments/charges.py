"""Test that the ledger has each release exactly once, with its planned event."""

from __future__ import annotations

from fedcore.audit.finding import Finding
from fedcore.audit.releases import Releases


def charges(releases: Releases) -> Finding:
    """Compares the ledger's rows of every run with the releases and with their planned events.

    An event includes the number of noised answers, so a round charged for fewer answers than it gave is found.
    statistic: number of faulty rows; threshold: 0; no chance.
    """
    odd = len(releases.odd_rows)
    detail = f"{odd} rows of the ledger do not fit the {releases.answered} releases that were sent and their plan"
    if odd:
        detail += f"; the first: {releases.odd_rows[0]}"
    return Finding("charges", not odd, float(odd), 0.0, 0.0, detail)
