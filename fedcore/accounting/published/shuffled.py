"""Formulas of Lowy and Razaviyayn 2023 for the shuffle model, with corrections.

The corrections are those of spec isrl-dp-fl (6.7, E15, E16).
By advanced composition each round has e_r = eps / (2 sqrt(2 R ln(2/delta))) and delta_r = delta / (2R). The paper's
ln(1/delta) adds up to 1.5 delta. Both formulas are claims to compare with: at equal guarantee they take far more noise
than the accountant does, even without a shuffler.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from scipy.optimize import brentq

from fedcore.accounting.published.claims import FormulaInputs, Kind, PaperFormula, crossing
from fedcore.errors import InputError


def amplified(local: float, whole: float, messages: int, delta: float) -> float:
    """Epsilon of one of `messages` shuffled reports, each `whole`-close to all others.

    Neighbours are `local` apart.
    ln(1 + tanh(local/2) (8 sqrt(e^whole ln(4/delta)) / sqrt(M) + 8 e^whole / M)): Theorem F.2 with whole = n local;
    Feldman, McMillan and Talwar 2021, Theorem 3.1, with whole = local. Stated for whole <= `farthest`.
    """
    clones = np.logaddexp(
        math.log(8) + (whole + math.log(math.log(4 / delta) / messages)) / 2, math.log(8 / messages) + whole
    )
    return float(np.logaddexp(0.0, clones + math.log(math.tanh(local / 2))))


def farthest(messages: int, delta: float) -> float:
    """The largest `whole` for which `amplified` is stated; not above 0 where it is stated for none."""
    return math.log(messages / (16 * math.log(2 / delta)))


def one_record(q: FormulaInputs) -> PaperFormula:
    """Section 6.7's calibrator, for reports about one of n records: sigma^2 = 8 L^2 ln(2/d0) / e0^2.

    M of N silos report.
    ehat = e_r n N / (2M); d0 = n N delta / (18 R M^2); M >= 16 ln(2/d0). The local epsilon e0 <= 1 is the largest with
    amplified(e0, e0, M, M d0) <= ehat. The paper prints sigma^2 with /e0. Stated for eps <= ln(2/delta).
    """
    if q.batch != 1:
        raise InputError(f"lowy-2023-shuffled needs batch = 1 (one record per report), not {q.batch:g}")
    M, N, R = q.picked, q.silos, q.rounds
    d0 = q.n * N * q.delta / (18 * R * M**2)
    if M * d0 >= 1 or 16 * math.log(2 / d0) > M:
        return _formula(q, None, "Theorem 4.1")

    def sigma(epsilon: float, most: float) -> float:
        e0 = _largest(lambda e: amplified(e, e, M, M * d0), _a_round(q, epsilon) * q.n * N / (2 * M), most)
        return q.clip * math.sqrt(8 * math.log(2 / d0)) / e0

    most = min(1.0, farthest(M, M * d0))
    return _formula(q, sigma if most > 0 else None, "Theorem 4.1", most)


def all_records(q: FormulaInputs) -> PaperFormula:
    """Theorem F.2 for reports about all n records of each of N silos.

        sigma = (2L/n) sqrt(2 ln(2/d0)) / e0

    The local epsilon e0 is the largest with amplified(e0, n e0, N, delta_r / 2) <= e_r. d0 takes the other half of
    delta_r:

        (e^e_r + 1) 2 N n e^((n-1) e0) d0 = delta_r / 2, with the factor that the paper drops (E16)

    That split is ours and the noise for (e0, d0) that of 6.7; the paper only requires that the reports are (e0, d0)-DP.
    """
    n, N = int(q.batch), q.picked
    delta_r = q.delta / (2 * q.rounds)

    def sigma(epsilon: float, most: float) -> float:
        e_r = _a_round(q, epsilon)
        e0 = _largest(lambda e: amplified(e, n * e, N, delta_r / 2), e_r, most)
        log_d0 = math.log(delta_r / 4 / N / n) - e_r - math.log1p(math.exp(-e_r)) - (n - 1) * e0
        return 2 * q.clip / n * math.sqrt(2 * (math.log(2) - log_d0)) / e0

    most = min(1.0, farthest(N, delta_r / 2) / n)
    return _formula(q, sigma if most > 0 else None, "Theorem F.2, corrected,", most)


def _a_round(q: FormulaInputs, epsilon: float) -> float:
    return epsilon / (2 * math.sqrt(2 * q.rounds * math.log(2 / q.delta)))


def _largest(rising: Callable[[float], float], target: float, most: float) -> float:
    """The largest argument, at most `most`, at which a rising function (0 at 0) is at most the target."""
    high = 1e-12
    while high < most and rising(high) <= target:
        high *= 2
    if high >= most and rising(most) <= target:
        return most
    return float(brentq(lambda e: rising(e) - target, high / 2, min(high, most), xtol=1e-300, rtol=1e-13))


def _formula(
    q: FormulaInputs, sigma: Callable[[float, float], float] | None, theorem: str, most: float = 0.0
) -> PaperFormula:
    """The formula of sigma(epsilon, largest local epsilon), whose claims go beyond the theorem's range.

    `sigma` None: the theorem is stated for no epsilon here.
    """
    limit = math.log(2 / q.delta)
    source = f"{theorem} of Lowy and Razaviyayn 2023 with {q.picked} messages in a batch"
    if sigma is None:
        kind = Kind("sigma", lambda _: math.inf, q.event(q.rounds))
        return PaperFormula((kind,), lambda _: math.inf, limit, source, least=math.inf)
    kind = Kind("sigma", lambda epsilon: sigma(epsilon, most), q.event(q.rounds))
    return PaperFormula((kind,), lambda given: crossing(lambda e: sigma(e, math.inf), given), limit, source)
