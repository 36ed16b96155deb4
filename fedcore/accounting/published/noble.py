"""Published noise of DP-SCAFFOLD and DP-FedAvg (Noble, Bellet, Dieuleveut 2022), the same for both.

A user is a silo here. M silos, m = l M of them per round, K local steps on batches of b = s n records, T rounds. The
paper's sigma_g is relative to the sensitivity S = 2 C / b of a batch mean; our sigma is S sigma_g.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from scipy.special import gammaln

from fedcore.accounting.published.claims import FormulaInputs, Kind, PaperFormula, crossing, inverse
from fedcore.accounting.rounds_search import ROUNDS_LIMIT
from fedcore.errors import InputError

HIGHEST_ORDER = 100


def closed(server: bool) -> Callable[[FormulaInputs], PaperFormula]:
    """Closed form of Theorem 4.1, towards a third party or the server.

        sigma_g = s sqrt(l T K ln(2 T l / delta) ln(2 / delta)) / (eps sqrt(M))

    Against the server: eps sqrt(M/l) at delta (1/l + 1) / 2. The paper states it "up to constants" only; here all
    hidden constants are 1. So are those of Assumption 1:

        eps < 1, s = o(1) (no full batch), sigma_g >= s sqrt(K / ln(2 T l / delta))
    """

    def build(q: FormulaInputs) -> PaperFormula:
        if q.batch == q.n:
            raise InputError("the closed form of Noble et al. 2022 is for small samples (s = o(1)), not all n records")
        share, ratio = q.picked / q.silos, q.batch / q.n
        delta = 2 * share * q.delta / (1 + share) if server else q.delta
        inner = math.log(2 * q.rounds * share / delta)
        scale = math.sqrt(q.silos / share) if server else 1.0
        root = math.sqrt(share * q.rounds * math.log(2 / delta) / q.silos)
        factor = scale * 2 * q.clip / q.batch * ratio * root * math.sqrt(q.local_steps * inner)
        limit = scale * min(1.0, root * inner)
        source = f"Theorem 4.1 of Noble et al. 2022 towards {'the server' if server else 'a third party'}"
        return inverse(q.event(q.rounds * q.local_steps), factor, limit, source, strict=limit == scale)

    return build


def numeric(server: bool) -> Callable[[FormulaInputs], PaperFormula]:
    """Numerical bound: Renyi curve a / (2 m sigma_g^2), sampled and composed, least over integer orders a.

    Steps: sample s -> K steps -> sample l -> T rounds. sigma = sigma_g 2 C / b in our unit. Towards the server m = 1
    and no sampling of silos. Orders are 2 .. 100. Between integers (a-1) eps(a) is interpolated linearly; the bound
    cannot be smaller there than at both ends, so those orders are left out. The bound stays above `least`, however much
    noise there is (spec, 5.6).
    """

    def build(q: FormulaInputs) -> PaperFormula:
        unit = 2 * q.clip / q.batch

        def claim(sigma: float) -> float:
            with np.errstate(over="ignore"):
                curve = q.rounds * _of_a_round(q, sigma, server)
            return float(np.min(curve + _conversion(q.delta)))

        def noise(epsilon: float) -> float:
            return unit * crossing(lambda sigma_g: claim(unit * sigma_g), epsilon)

        kind = Kind("sigma", noise, q.event(q.rounds * q.local_steps))
        source = f"the numerical bound of Noble et al. 2022 towards {'the server' if server else 'a third party'}"
        return PaperFormula((kind,), claim, math.inf, source, least=claim(1e12 * unit) * (1 + 1e-12))

    return build


def largest_rounds(inputs: FormulaInputs, epsilon: float, sigma: float, server: bool) -> int:
    """The largest number of rounds for which `numeric` claims at most `epsilon`; 0 if one is too many.

    No search: at each order a it is (epsilon - ln(1/delta) / (a-1)) over a round's Renyi epsilon. `inputs.rounds` is
    ignored. Raises InputError if there is no bound below 10 million.
    """
    curve, fixed = _of_a_round(inputs, sigma, server), _conversion(inputs.delta)
    with np.errstate(divide="ignore", invalid="ignore"):
        most = np.floor((epsilon - fixed) / curve)
        # A rounded quotient may be one off from the count that the claim itself, computed forwards, allows.
        most += (most + 1) * curve + fixed <= epsilon
        most -= most * curve + fixed > epsilon
    found = float(np.max(np.where(fixed <= epsilon, most, 0.0)))
    if not found < ROUNDS_LIMIT:
        raise InputError(f"more than {ROUNDS_LIMIT} rounds keep to this epsilon; ask for less noise")
    return int(found)


def _orders() -> np.ndarray:
    return np.arange(2, HIGHEST_ORDER + 1)


def _conversion(delta: float) -> np.ndarray:
    """Addend that converts a Renyi epsilon of each order into an epsilon at delta: ln(1/delta) / (a-1)."""
    return np.asarray(math.log(1 / delta) / (_orders() - 1))


def _of_a_round(q: FormulaInputs, sigma: float, server: bool) -> np.ndarray:
    """The Renyi epsilons of one round, at all orders."""
    with np.errstate(over="ignore", divide="ignore"):
        sigma_g = np.float64(sigma / (2 * q.clip / q.batch))
        curve = _orders() / (2 * (1 if server else q.picked) * sigma_g**2)
        curve = q.local_steps * sampled_renyi(curve, q.batch / q.n)
        return sampled_renyi(curve, 1.0 if server else q.picked / q.silos)


def sampled_renyi(curve: np.ndarray, rate: float) -> np.ndarray:
    """Renyi epsilons of orders 2, 3, ... after sampling a share `rate` without replacement.

    Rate 1 leaves them unchanged.
    Source: Wang, Balle, Kasiviswanathan 2019, Theorem 9 for unbounded mechanisms; Lemma B.7 of Noble et al. 2022.
    """
    if rate == 1:
        return curve
    orders = np.arange(2, len(curve) + 2)
    n, j = orders[:, None], orders[None, :]
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        choose = np.where(j <= n, gammaln(n + 1) - gammaln(j + 1) - gammaln(np.maximum(n - j, 0) + 1), -np.inf)
        high = math.log(2) + (orders - 1) * curve
        high[0] = min(math.log(4) + np.log(np.expm1(curve[0])), math.log(2) + curve[0])
        terms = choose + orders * math.log(rate) + np.where(np.isinf(choose), 0.0, high)
        return np.logaddexp(0.0, np.logaddexp.reduce(terms, axis=1)) / (orders - 1)
