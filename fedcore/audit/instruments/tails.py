"""Test of the noise's tails: counts of millions of numbers from the silo's sampler, on zero sums.

Releases are too few beyond 3.5 sigma. The view of a round draws the noise as for an answer, but with longer sums than
the plan has. Each number of a sum has noise of its own.
"""

from __future__ import annotations

import numpy as np
from scipy import stats

from fedcore.audit.audit_session import AuditSession
from fedcore.audit.audited_silo import AuditedSilo
from fedcore.audit.cells import binomial, least
from fedcore.audit.finding import Finding
from fedcore.audit.scenes import silent_records

NUMBERS = 2**20
"""Numbers of all phases together: 33 are expected beyond 4 on either side, 11 beyond 4.25."""
WIDTH = 2**14
CUTS = (0.25, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.25, 3.5, 3.75, 4.0, 4.25, 4.5, 5.0, 6.0, 8.0)


def tails(audited: AuditedSilo, false_alarm: float) -> Finding:
    """Tests how many numbers of the noise lie beyond each of `CUTS` in each phase's first round.

    Counts are binomial: a grid is within 2^-20 of the normal distribution. statistic: the least corrected p-value.
    """
    session = AuditSession(audited, silent_records(audited))
    phases: dict[int, tuple[int, int]] = {}
    for address in audited.addresses:
        phases.setdefault(address[0], address)
    families, names = {}, {}
    draws = max(2, NUMBERS // WIDTH // len(phases))
    rates, largest = stats.norm.sf(CUTS), 0.0
    for phase, address in phases.items():
        above, below = np.zeros((2, len(CUTS)), dtype=np.int64)
        for values in session.noise("audit-tails", address, WIDTH, draws):
            ordered = np.sort(values)
            above += len(values) - np.searchsorted(ordered, CUTS, side="right")
            below += np.searchsorted(ordered, [-cut for cut in CUTS], side="left")
            largest = max(largest, float(np.abs(values).max()))
        for side, counted in (("above", above), ("below minus", below)):
            family = f"numbers in phase {phase} {side}"
            families[family], names[family] = binomial(counted, draws * WIDTH, rates), CUTS
    sentence = f"of {draws * WIDTH * len(phases)} numbers of the sampler as many as planned are far out"
    return least("tails", families, false_alarm, f"{sentence} (the largest {largest:.3g} sigma)", names)
