"""Is what the noise hides the right sum? The same silo, asked by a plan without noise, about records of every kind.

Without noise one record that is not clipped, counted twice, left out or put into the wrong shard shows at once. There
is no chance in it but which records lie where, and that is another draw in every run.
"""

from __future__ import annotations

import numpy as np

from fedcore.audit.audit_session import AuditSession
from fedcore.audit.audited_silo import AuditedSilo
from fedcore.audit.finding import Finding
from fedcore.audit.scenes import ON_AXIS, mixed_records

ANSWERS = 400
"""At least so many are compared, over runs with new records."""
RUNS = 12
CLOSE = 1e-8
"""Of clip times records over the public count: far above rounding, far below any mistake."""


def exact_sums(audited: AuditedSilo, rng: np.random.Generator) -> Finding:
    """Compares messages without noise with what the auditor works out, record by record.

    statistic: the largest distance of a message, in units of the most that the clipped records of an answer can add;
    threshold: 1e-8. Raises InputError where the method has no plan without noise.
    """
    plain = audited.without_noise()
    worst, compared, where = 0.0, 0, ""
    for run in range(RUNS):
        # Records that share no feature make sums that are apart, and of squares a diagonal.
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
