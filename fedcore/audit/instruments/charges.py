"""Is every release in the ledger, once, with the event that the plan has for it?"""

from __future__ import annotations

from fedcore.audit.finding import Finding
from fedcore.audit.releases import Releases


def charges(releases: Releases) -> Finding:
    """Compares the ledger's rows of every run with the releases that were sent and with their planned events.

    An event covers the number of noised answers, so a round that is charged for fewer than it gave shows. statistic:
    rows that do not fit; threshold: 0. There is no chance in it.
    """
    odd = len(releases.odd_rows)
    detail = f"{odd} rows of the ledger do not fit the {releases.answered} releases that were sent and their plan"
    if odd:
        detail += f"; the first: {releases.odd_rows[0]}"
    return Finding("charges", not odd, float(odd), 0.0, 0.0, detail)
