"""Who took part in a silo's secret samples, counted inside the silo, where its sums are made.

The silo asks the auditor's loss for a derivative of each record and clips it in place, to nothing outside of a sample:
what is left of it says who was in the sum. A silo that would clip a copy seems to take all records, which alarms.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import cast

import numpy as np

from fedcore.arrays import Vector
from fedcore.audit.finding import Finding
from fedcore.audit.sampling import not_sampled, sampling_rate, trials_needed
from fedcore.audit.transcript import Sitting, Subject
from fedcore.data.records import Records
from fedcore.losses import Loss

MOST_RUNS = 50
"""Of one check. With fewer draws than its power needs a finding still says which power it has."""


@dataclass(frozen=True)
class CountingLoss:
    """A loss with derivative 1 that keeps the derivatives it gave, one array (n,) for each answer."""

    given: list[Vector] = field(default_factory=list, repr=False, compare=False)

    @property
    def taken(self) -> list[int]:
        """How many records each answer was about."""
        return [int(np.count_nonzero(derivatives)) for derivatives in self.given]

    binary = True
    lipschitz = 1.0
    smoothness = 0.0

    def value(self, z: Vector, y: Vector) -> Vector:
        return np.zeros_like(z)

    def residual(self, z: Vector, y: Vector) -> Vector:
        self.given.append(np.ones_like(z))
        return self.given[-1]

    def curvature(self, z: Vector, y: Vector) -> Vector:
        return np.zeros_like(z)


def check_sampling(subject: Subject, false_alarm: float) -> Finding:
    """Tests in every phase with samples how often records took part, over as many runs as the test's power needs.

    The phases share `false_alarm`. The finding is that of the worst phase, `detail` has all. Raises SiloError as a site
    does.
    """
    phases = [phase for phase in subject.plan.phases if phase.by_silo[subject.silo].rate < 1]
    if not phases:
        return not_sampled()
    level = false_alarm / len(phases)
    shares = [phase.by_silo[subject.silo] for phase in phases]
    needed = [trials_needed(share.rate, level) for share in shares]
    took_part, trials = [0] * len(phases), [0] * len(phases)
    records = Records(np.zeros((subject.n, subject.plan.problem.dim)), np.ones(subject.n))
    for run in range(MOST_RUNS):
        if all(have >= want for have, want in zip(trials, needed, strict=True)):
            break
        loss = CountingLoss()
        Sitting(replace(subject, loss=cast(Loss, loss)), records, f"audit-sampling-{run}").repeat()
        counts = iter(loss.taken)
        taken = {phase.index: sum(next(counts) for _ in range(phase.rounds)) for phase in subject.plan.phases}
        for at, (phase, share) in enumerate(zip(phases, shares, strict=True)):
            took_part[at] += taken[phase.index]
            trials[at] += phase.rounds * share.n
    found = [
        sampling_rate(have, of, share.rate, level) for have, of, share in zip(took_part, trials, shares, strict=True)
    ]
    worst = min(found, key=lambda finding: (finding.passed, -abs(finding.statistic - 1.0)))
    detail = "; ".join(f"phase {phase.index}: {each.detail}" for phase, each in zip(phases, found, strict=True))
    return replace(worst, false_alarm=false_alarm, detail=detail)
