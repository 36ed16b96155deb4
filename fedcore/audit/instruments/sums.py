"""Test that the noise hides the right sum: exact comparison in a plan without noise.

Without noise one record that is not clipped, counted twice, left out or in the wrong shard is found at once. Only the
places of records are random, and every run draws them anew.
"""

from __future__ import annotations

import numpy as np

from fedcore.audit.audit_session import AuditSession
from fedcore.audit.audited_silo import AuditedSilo
from fedcore.audit.finding import Finding
from fedcore.audit.scenes import ON_AXIS, mixed_records

ANSWERS = 400
"""Least number of compared answers, over runs with new records."""
RUNS = 12
CLOSE = 1e-8
"""Tolerance over clip times records over the public count: above rounding, below any fault."""


def exact_sums(audited: AuditedSilo, rng: np.random.Generator) -> Finding:
    """Compares messages without noise with the auditor's sums, added record by record.

    statistic: the largest distance of a message, in units of the most that the clipped records of an answer can add;
    threshold: 1e-8. Raises InputError where the method has no plan without noise.
    """
    plain = audited.without_noise()
    worst, compared, where = 0.0, 0, ""
    for run in range(RUNS):
        # Records without a common feature make separate sums, and diagonal sums of squares.
        session = AuditSession(plain, mixed_records(plain, rng, on_axis=1.0 if run % 4 == 3 else ON_AXIS))
        for transcript in (
            session.still(f"audit-sums-{run}"),
            session.train(f"audit-sums-training-{run}"),
            session.far(f"audit-sums-far-{run}", 20, rng),
        ):
            scale = np.array([event.sensitivity * max(1.0, event.stop - event.start) for event in transcript.events])
            scale *= transcript.unit
            distance = np.linalg.norm(transcript.payload - transcript.exact, axis=1) / scale
            compared += len(distance)
            if not distance.max() <= worst:
                worst = float(distance.max())
                phase, round = transcript.addresses[int(np.argmax(distance))]
                where = f", the farthest in round {phase}.{round}"
        if compared >= ANSWERS and run >= 3:
            break
    detail = (
        f"of {compared} messages without noise, about records inside and outside of the bound, of all classes and "
        f"places, none is farther from the auditor's sum than {worst:.3g} of what its records can add{where}"
    )
    return Finding("exact sums", worst <= CLOSE, worst, CLOSE, 0.0, detail)
