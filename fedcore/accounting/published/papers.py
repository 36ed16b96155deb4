"""Registry of the noise constants that the papers print, with their stated ranges.

They are claims, for an accountant to judge.
Each function converts its paper's unit to this project's (see `claims`). Where paper and spec differ, the function
names the one that it follows. Greek letters of the papers are spelled out: a is their Renyi order.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from fedcore.accounting.published import noble, shuffled
from fedcore.accounting.published.claims import FormulaInputs, Kind, PaperFormula, Scheme, crossing, inverse
from fedcore.errors import InputError


def _multi_pass(authors: str) -> Callable[[FormulaInputs], PaperFormula]:
    """sigma^2 = 256 L^2 R ln(2.5 R / delta) ln(2 / delta) / (n eps)^2.

    The paper's unit is ours, K cancels.
    Limits: eps <= 2 ln(2/delta), and K >= eps n / (4 sqrt(2 R ln(2/delta))). The latter, the amplification step of the
    proof, is eps <= 4 (K/n) sqrt(2 R ln(2/delta)). The complete Theorem 2.1 of Lowy and Razaviyayn has ln(2/delta)
    where all other places have twice that; the proof needs no more (spec isrl-dp-fl, E8).
    """

    def build(q: FormulaInputs) -> PaperFormula:
        log = math.log(2 / q.delta)
        variance = 256 * q.rounds * math.log(2.5 * q.rounds / q.delta) * log
        limit = min(2 * log, 4 * q.batch / q.n * math.sqrt(2 * q.rounds * log))
        source = f"the multi-pass formula of {authors} at {q.rounds} rounds"
        source += "" if q.batch == q.n else f" of {q.batch} of {q.n} records"
        return inverse(q.event(q.rounds), q.clip * math.sqrt(variance) / q.n, limit, source)

    return build


def _one_pass(q: FormulaInputs) -> PaperFormula:
    """sigma^2 = 32 L^2 ln(1.25/delta) / (K eps)^2, the paper's unit is ours; eps <= 8 ln(1/delta).

    With the 32 of the statement, not the 8 of its proof (spec isrl-dp-fl, E14).
    """
    factor = q.clip * math.sqrt(32 * math.log(1.25 / q.delta)) / q.batch
    return inverse(q.event(1), factor, 8 * math.log(1 / q.delta), "the one-pass formula of Lowy and Razaviyayn 2023")


def _experiments(q: FormulaInputs) -> PaperFormula:
    """sigma^2 = 8 L^2 R ln(1/delta) / (n eps)^2, the paper's unit is ours; K >= n sqrt(eps) / (2 sqrt(R)).

    The rule for K is published with "="; here it is the smallest allowed K (spec isrl-dp-fl, E21), so eps <= 4 R
    (K/n)^2. Not a proof: the theorem referred to has unspecified constants, and beyond epsilon about 1 the formula
    overspends.
    """
    factor = q.clip * math.sqrt(8 * q.rounds * math.log(1 / q.delta)) / q.n
    source = "the experiments' formula of Lowy and Razaviyayn 2023 (not a proof)"
    return inverse(q.event(q.rounds), factor, 4 * q.rounds * (q.batch / q.n) ** 2, source)


def renyi_order(epsilon: float, delta: float) -> int:
    """alpha of DIFF2's calibration, 1 + ceil(2 ln(1/delta) / epsilon) (spec diff2, 4.1)."""
    return 1 + math.ceil(2 * math.log(1 / delta) / epsilon)


def _alpha(q: FormulaInputs, epsilon: float) -> int:
    return renyi_order(epsilon, q.delta)


def _diff2(q: FormulaInputs) -> PaperFormula:
    """Noise of DIFF2-GD, restart and difference rounds:

        s_1^2 = 4 u a m_1 / (n^2 eps); s_2^2 = 4 u/(u-1) a m_2 / (n^2 eps); a = 1 + ceil(2 ln(1/delta) / eps); u = 1.25

    m_1 = ceil(R/T) restarts, m_2 = R - m_1 differences; without differences (T = 1: DP-GD) u is 1. The multipliers
    times the clip radius are our unit. The radius of a difference round is C_2 |x_{r-1} - x_{r-2}|, so scale sigma by
    radius / clip there. The silo adds the noise: n replaces the paper's n_min P of a trusted server (spec diff2, 8).
    """
    restarts = math.ceil(q.rounds / q.period)
    others = q.rounds - restarts
    u = 1.25 if others else 1.0
    return _streams(q, u, u / (u - 1) if others else 0.0, "Proposition 4.1 of Murata and Suzuki 2023 (DIFF2-GD)")


def _diff2_bvr(q: FormulaInputs) -> PaperFormula:
    """Noise of DIFF2-BVR-L-SGD: restart and difference rounds, and local steps.

    s_1, s_2 as `_diff2` with u_1 = u_2 = 3 for u, u/(u-1).
    Local steps follow the closed form of the proof, with P = silos:

        s_3^2 = max(8/3 (4+e) a^2/(a-1) 6 K ceil(R/P) / (n^2 eps), 6 a / b^2)

    Stated for b <= min(n/(2 e a), (4n/(a s_3^2))^(1/3)), which holds from some epsilon on, `least`. K local steps are
    counted, as published; K-1 really take place (E2).
    """
    if q.local_steps < 2:
        raise InputError("diff2-bvr needs local_steps of at least 2; with 1 it is diff2")
    turns = math.ceil(q.rounds / q.silos)

    def square(epsilon: float) -> float:
        a = _alpha(q, epsilon)
        many = 8 / 3 * (4 + math.e) * a**2 / (a - 1) * 6 * q.local_steps * turns / (q.n**2 * epsilon)
        return max(many, 6 * a / q.batch**2)

    def excess(epsilon: float) -> float:
        a = _alpha(q, epsilon)
        return q.batch / min(q.n / (2 * math.e * a), (4 * q.n / (a * square(epsilon))) ** (1 / 3))

    found = _streams(q, 3.0, 3.0, f"Proposition E.2 of Murata and Suzuki 2023 at local batches of {q.batch}")
    local = Kind("local", lambda epsilon: q.clip * math.sqrt(square(epsilon)), q.event((q.local_steps - 1) * turns))
    return replace(found, kinds=(*found.kinds, local), least=crossing(excess, 1.0))


def _streams(q: FormulaInputs, first: float, second: float, source: str) -> PaperFormula:
    restarts = math.ceil(q.rounds / q.period)
    whole = replace(q, batch=q.n, sampling="full")

    def noise(share: float) -> Callable[[float], float]:
        return lambda epsilon: q.clip * math.sqrt(4 * share * _alpha(q, epsilon) / epsilon) / q.n

    kinds = [Kind("restart", noise(first * restarts), whole.event(restarts))]
    if q.rounds > restarts:
        others = q.rounds - restarts
        kinds.append(Kind("difference", noise(second * others), whole.event(others)))
    return PaperFormula(tuple(kinds), lambda sigma: crossing(kinds[0].sigma, sigma), math.inf, source)


def _fcrn(q: FormulaInputs) -> PaperFormula:
    """sigma^2 = 160 tau T (k/d) ln(1.25/delta_0) (L_0 + L_1 D)^2 / (eps m)^2 for eps <= 1.

    clip is L_0 + L_1 D.
    The paper's unit is ours: the noise is on the gradient of the one record of an answer. Its overall delta cannot be
    chosen (0.2 to 0.5 in the proof). `releases` gives no credit for k/d, since a clipped norm bounds no coordinate. It
    counts one record per round in tau - 1 steps (spec dp-fcrn, E1, E2, E4 and section 10).
    """
    if q.batch != 1 or q.local_steps < 2:
        raise InputError("dp-fcrn needs batch = 1 (one record per round) and local_steps of at least 2 (GMSolver)")
    event = q.event(q.rounds)
    event = replace(event, sensitivity=event.sensitivity * math.sqrt(q.local_steps - 1))
    return inverse(event, _seven(q), 1.0, "equation 7 of Huo et al. (DP-FCRN)")


def _fedsgd(q: FormulaInputs) -> PaperFormula:
    """sigma^2 = 160 T ln(1.25/delta_0) L_0^2 / (eps m)^2 for eps <= 1.

    The noise is on the gradient of one record, or of all (`full`).
    Equation 7 with tau = 1, k = d, D = 0: the spec's reading (dp-fcrn, 5.7); the paper prints no noise for it.
    """
    if q.sampling != "full" and q.batch != 1:
        raise InputError(f"dp-fcrn-fedsgd needs batch = 1 or all n records, not {q.batch}")
    return inverse(q.event(q.rounds), _seven(q), 1.0, "equation 7 of Huo et al. as applied to DP-FedSGD")


def _seven(q: FormulaInputs) -> float:
    return q.clip * math.sqrt(160 * q.local_steps * q.rounds * q.kept * math.log(1.25 / q.small_delta)) / q.n


@dataclass(frozen=True)
class Paper:
    """One entry of the registry: the columns of `fedcore privacy papers`, and the formula's builder."""

    name: str
    method: str
    source: str
    formula: str
    limits: str
    samplings: tuple[Scheme, ...]
    options: tuple[str, ...]
    build: Callable[[FormulaInputs], PaperFormula]


_ANY: tuple[Scheme, ...] = ("full", "poisson", "without-replacement", "with-replacement")
_DRAWN: tuple[Scheme, ...] = ("without-replacement",)
_GAO, _LOWY = "Gao, Lowy, Zhou, Wright 2024", "Lowy, Razaviyayn 2023"
_NOBLE, _HUO = "Noble, Bellet, Dieuleveut 2022", "Huo, Liu, Ding, Johansson, Shi"
_DIFF2 = "Murata, Suzuki 2023"
_256 = "sigma^2 = 256 L^2 R ln(2.5R/delta) ln(2/delta) / (n eps)^2"
_256_LIMITS = "eps <= 2 ln(2/delta); eps <= 4 (K/n) sqrt(2R ln(2/delta))"
_41 = "S^2 s^2 l T K ln(2Tl/delta) ln(2/delta) / (M eps^2), S = 2C/b"
_41_LIMITS = "eps < 1; s = o(1); sigma/S >= s sqrt(K/ln(2Tl/delta)); constants dropped"
_RENYI = "sigma = S sigma_g with "
_RENYI_LIMITS = "eps above what the bound keeps at infinite noise; the paper's own subsampling bound"
_FROM_SILOS = ("local_steps", "silos", "silos_per_round")
_SEVEN = "sigma^2 = 160 tau T (k/d) ln(1.25/delta_0) L^2 / (eps n)^2"

PAPERS: dict[str, Paper] = {
    paper.name: paper
    for paper in [
        Paper(
            "gao-2024",
            "localized MB-SGD, multi-pass",
            f"{_GAO}, Algorithm 1",
            _256,
            _256_LIMITS,
            _ANY,
            (),
            _multi_pass("Gao et al. 2024"),
        ),
        Paper(
            "lowy-2023-multi-pass",
            "noisy MB-SGD, multi-pass",
            f"{_LOWY}, Theorem 2.1",
            _256,
            _256_LIMITS,
            _ANY,
            (),
            _multi_pass("Lowy and Razaviyayn 2023"),
        ),
        Paper(
            "lowy-2023-one-pass",
            "one-pass accelerated noisy MB-SGD",
            f"{_LOWY}, Theorem 2.3",
            "sigma^2 = 32 L^2 ln(1.25/delta) / (K eps)^2",
            "eps <= 8 ln(1/delta)",
            ("once",),
            (),
            _one_pass,
        ),
        Paper(
            "lowy-2023-experiments",
            "noisy MB-SGD, multi-pass",
            f"{_LOWY}, Appendix H.1: not a proof",
            "sigma^2 = 8 L^2 R ln(1/delta) / (n eps)^2",
            "eps <= 4 R (K/n)^2; overspends beyond about 1",
            _ANY,
            (),
            _experiments,
        ),
        Paper(
            "lowy-2023-shuffled",
            "noisy MB-SGD of one record a silo, shuffled",
            f"{_LOWY}, Theorem 4.1, numerically",
            "sigma^2 = 8 L^2 ln(2/d0) / e0^2, d0 = n N delta / (18 R M^2), e0 by clones",
            "eps <= ln(2/delta); M >= 16 ln(2/d0)",
            _DRAWN,
            ("silos", "silos_per_round"),
            shuffled.one_record,
        ),
        Paper(
            "lowy-2023-shuffled-full",
            "noisy MB-SGD, shuffled",
            f"{_LOWY}, Theorem F.2, corrected",
            "sigma = (2L/n) sqrt(2 ln(2/d0)) / e0, n e0 <= ln(N / (16 ln(4/delta_r)))",
            "eps <= ln(2/delta); N > 16 ln(8R/delta)",
            ("full",),
            ("silos", "silos_per_round"),
            shuffled.all_records,
        ),
        Paper(
            "noble-2022",
            "DP-SCAFFOLD, DP-FedAvg: third party",
            f"{_NOBLE}, Theorem 4.1 (1): order of magnitude",
            f"sigma^2 = {_41}",
            _41_LIMITS,
            _DRAWN,
            _FROM_SILOS,
            noble.closed(server=False),
        ),
        Paper(
            "noble-2022-server",
            "DP-SCAFFOLD, DP-FedAvg: server",
            f"{_NOBLE}, Theorem 4.1 (2): order of magnitude",
            f"sigma^2 = {_41}, at eps sqrt(l/M), delta 2l/(1+l)",
            f"noble-2022's, eps scaled: {_41_LIMITS}",
            _DRAWN,
            _FROM_SILOS,
            noble.closed(server=True),
        ),
        Paper(
            "noble-2022-numeric",
            "DP-SCAFFOLD, DP-FedAvg: third party",
            f"{_NOBLE}, Appendix B, Lemma B.7",
            f"{_RENYI}min over a of T SUB(K SUB(a/(2lM sigma_g^2), s), l) + ln(1/delta)/(a-1) = eps",
            _RENYI_LIMITS,
            ("full", *_DRAWN),
            _FROM_SILOS,
            noble.numeric(server=False),
        ),
        Paper(
            "noble-2022-numeric-server",
            "DP-SCAFFOLD, DP-FedAvg: server",
            f"{_NOBLE}, Appendix B, Lemma B.7",
            f"{_RENYI}min over a of T K SUB(a/(2 sigma_g^2), s) + ln(1/delta)/(a-1) = eps",
            _RENYI_LIMITS,
            ("full", *_DRAWN),
            ("local_steps",),
            noble.numeric(server=True),
        ),
        Paper(
            "diff2",
            "DIFF2-GD; period 1: DP-GD",
            f"{_DIFF2}, Proposition 4.1, u = 1.25",
            "restart^2 = 4u a ceil(R/T) C^2 / (n^2 eps), difference^2 = 4u/(u-1) a (R - ceil(R/T)) C^2 / (n^2 eps), "
            "a = 1 + ceil(2 ln(1/delta)/eps)",
            "eps > 0",
            ("full",),
            ("period",),
            _diff2,
        ),
        Paper(
            "diff2-bvr",
            "DIFF2-BVR-L-SGD",
            f"{_DIFF2}, Proposition E.2, u1 = u2 = 3",
            "as diff2; local^2 = C^2 max(8/3 (4+e) a^2/(a-1) 6K ceil(R/P)/(n^2 eps), 6a/b^2)",
            "b <= min(n/(2e a), (4n C^2/(a local^2))^(1/3)), from some eps on",
            _DRAWN,
            ("period", "local_steps", "silos"),
            _diff2_bvr,
        ),
        Paper(
            "dp-fcrn",
            "DP-FCRN",
            f"{_HUO}, equation 7",
            f"{_SEVEN}, L = L0 + L1 D",
            "eps <= 1; one record per round; overall delta not chosen",
            _DRAWN,
            ("local_steps", "kept", "step_delta"),
            _fcrn,
        ),
        Paper(
            "dp-fcrn-fedsgd",
            "DP-FedSGD",
            f"{_HUO}, equation 7 with tau = 1, k = d, D = 0: the spec's reading",
            "sigma^2 = 160 T ln(1.25/delta_0) L^2 / (eps n)^2",
            "eps <= 1; overall delta not chosen",
            ("full", *_DRAWN),
            ("step_delta",),
            _fedsgd,
        ),
    ]
}


def published(name: str, inputs: FormulaInputs) -> PaperFormula:
    """The published formula of that name for a setting.

    Raises InputError for an unknown name, a sampling for which the formula is meaningless, or an option that it does
    not use.
    """
    if name not in PAPERS:
        raise InputError(f"no published formula is called {name}; there are {', '.join(PAPERS)}")
    paper = PAPERS[name]
    if inputs.sampling not in paper.samplings:
        known = " or ".join(paper.samplings)
        raise InputError(f"{name} ({paper.source}) is for sampling {known}, and says nothing for {inputs.sampling}")
    for option in inputs.options():
        if option not in paper.options:
            raise InputError(f"{option} is no input of {name}; it uses {', '.join(paper.options) or 'no such option'}")
    return paper.build(inputs)
