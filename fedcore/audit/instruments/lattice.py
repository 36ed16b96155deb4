"""Test that noise is as fine as planned: values do not repeat, and sums use every step of the grid.

Noise of a coarse sampler, of float32 or of a table, looks right but hides little: exact sums between its values stay
visible.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from scipy import stats

from fedcore.audit.audit_session import AuditSession
from fedcore.audit.audited_silo import AuditedSilo
from fedcore.audit.cells import binomial, least
from fedcore.audit.finding import Finding
from fedcore.audit.releases import OTHER_PLAN, Releases
from fedcore.audit.scenes import silent_records
from fedcore.mechanisms.grid import charged_grid
from fedcore.planning.phase import Phase
from fedcore.silo.answers import ANSWERS

EQUAL = 1e-12
"""Largest distance of equal residuals: a thousand times their rounding."""
NUMBERS = 2**17
DIVISORS = (2, 3, 4, 5, 7, 8, 16, 64, 256)
STEPS = 2**20
"""Least ratio of planned noise to the grid's step; the charge for rounding to the grid assumes it."""


def lattice(audited: AuditedSilo, releases: Releases, false_alarm: float) -> Finding:
    """Tests repeats of residuals (noise in double precision), or divisors of steps (noise on a grid).

    statistic: the least corrected p-value; threshold: the least that passes.
    """
    if audited.plan.problem.budget.mechanism == "discrete-gaussian":
        found = _divisible(audited, releases)
        names = {family: DIVISORS for family in found}
        return least("fineness", found, false_alarm, "sums use every step of the planned grid", names)
    # Exact sums of these two data sets are equal, so equal noise leaves equal residuals, up to the last bits.
    values = releases.residuals[releases.scene <= 1].ravel()
    values = np.sort(values[:: max(1, len(values) // NUMBERS)][:NUMBERS])
    repeats = int((np.diff(values) <= EQUAL).sum())
    sentence = f"values of the noise do not repeat ({repeats} of {len(values)} do)"
    return least("fineness", {"repeated values": np.array([_repeated(repeats, len(values))])}, false_alarm, sentence)


def _repeated(repeats: int, many: int) -> float:
    """Probability of `repeats` or more close pairs among `many` independent normals.

    A pair is closer than t with probability at most p = 2t / sqrt(4 pi), and then so is a pair of neighbours. The
    number of pairs is within 2 m^3 p^2 of Poisson in total variation (Arratia, Goldstein, Gordon 1989, Theorem 1).
    """
    if repeats == 0:
        return 1.0
    p = 2.0 * EQUAL / math.sqrt(4.0 * math.pi)
    return float(stats.poisson.sf(repeats - 1, math.comb(many, 2) * p)) + 2.0 * many**3 * p**2


def _divisible(audited: AuditedSilo, releases: Releases) -> dict[str, np.ndarray]:
    """P-values by phase and divisor of the number of released sums, in steps, that it divides.

    A message that is the mean of several sums lies on no grid; the silo's noise on sums of zeros takes its place. A
    discrete Gaussian whose parameter is at least 2^20 is uniform over the residues of such a small divisor, within
    1e-300, whatever the sum. Counts are therefore binomial. A coarser grid, or a number between its steps, has p-value
    0.
    """
    found = {}
    for phase in audited.phases:
        if audited.answers > 1:
            ratios = [_ratio(audited, phase, 1.0)]
            payload = np.array(_added(audited, phase)) * ratios[0]
        else:
            # Sums of every data set: zero lies on any grid. Another plan may have another sigma, so another ratio.
            of = np.flatnonzero((releases.phase == phase.index) & (releases.scene != OTHER_PLAN))
            of = of[:: max(1, len(of) // 1024)]
            ratios = [_ratio(audited, phase, unit) for unit in releases.unit[of]]
            payload = (releases.residuals[of] + releases.exact[of]) * np.array(ratios)[:, None]
        steps = np.rint(payload).astype(np.int64)
        off = np.abs(payload - steps).max(initial=0.0)
        counts = np.array([(steps % divisor == 0).sum() for divisor in DIVISORS])
        found[f"phase {phase.index}, divisible by"] = (
            binomial(counts, steps.size, 1.0 / np.array(DIVISORS))
            if off < 0.01 and min(ratios, default=STEPS) >= STEPS
            else np.zeros(1)
        )
    return found


def _ratio(audited: AuditedSilo, phase: Phase, unit: float) -> float:
    """Ratio of the planned noise to the grid's step, a power of two in any unit of the question."""
    event, kind, problem = phase.event(audited.silo, 1), ANSWERS[phase.question.kind], audited.plan.problem
    scaled = replace(event, sigma=event.sigma * unit, sensitivity=event.sensitivity * unit)
    reach, norm = kind.half_diameter(problem, phase), kind.largest_norm(problem, phase)
    count, length = phase.by_silo[audited.silo].batch, phase.question.length(problem.objective.dim)
    grid = charged_grid(scaled, reach * unit, count, length, norm * unit)
    return grid.noise / grid.step


def _added(audited: AuditedSilo, phase: Phase) -> list[np.ndarray]:
    """Noise of single sums of zeros in the phase's first round, over the planned sigma."""
    session, length = (
        AuditSession(audited, silent_records(audited)),
        phase.question.length(audited.plan.problem.objective.dim),
    )
    return list(session.noise("audit-fineness", (phase.index, 1), length, 1024))
