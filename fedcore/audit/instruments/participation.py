"""Participation in a silo's secret samples, counted inside the silo, where its sums are made."""

from __future__ import annotations

from dataclasses import replace

from fedcore.audit.finding import Finding
from fedcore.audit.instruments.overlap import apart_from_shared_coins, by_phase
from fedcore.audit.instruments.sampling import sampling_rate
from fedcore.audit.releases import Releases


def participation(releases: Releases, false_alarm: float) -> Finding:
    """Tests in every phase with samples how often records took part; the phases share `false_alarm`.

    The finding is that of the worst phase; `detail` names all. Samples of a fixed size have their own test (`samples`).
    """
    phases = by_phase(apart_from_shared_coins(releases.draws))
    level = false_alarm / len(phases)
    found = {
        phase: sampling_rate(
            sum(int(draw.taken.sum()) for draw in draws), sum(len(draw.taken) for draw in draws), draws[0].rate, level
        )
        for phase, draws in phases.items()
    }
    worst = min(found.values(), key=lambda finding: (finding.passed, -abs(finding.statistic - 1.0)))
    detail = "; ".join(f"phase {phase}: {each.detail}" for phase, each in found.items())
    return replace(worst, false_alarm=false_alarm, detail=detail)
