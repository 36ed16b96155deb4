"""Lower bound on epsilon from one training, by right guesses of the random signs of m canaries.

Each of m canaries is, by a fair coin of its own, one of two records; everything else is fixed. Assume that the whole
transcript is (epsilon, delta)-DP for *exchanging one canary for its other form*. Then v or more right guesses out of r
have a probability of at most

    P[B >= v] + 2 m delta max_i P[v > B >= v - i] / i,    B ~ binomial(r, 1 / (1 + exp(-epsilon))).

Source: Steinke, Nasr and Jagielski 2023, Privacy Auditing with One (1) Training Run, Theorem 5.2 and Corollary 5.4.
Adjacency: the paper's coin puts a record in or leaves it out, for add/remove. Its proof uses only that flipping one
coin gives a neighbour. Here both forms are records of the silo, so flipping a coin replaces one record. The bound is
therefore about the epsilon of **replace-one**, the adjacency of all plans, with no factor in between.
"""

from __future__ import annotations

import numpy as np
from scipy import stats
from scipy.special import expit

from fedcore.audit.finding import Finding
from fedcore.directed_rounding import shown_down, shown_up

BOUND = "one-run bound"
"""Name of the instrument; statistic: a lower bound on epsilon, threshold: the accounted epsilon."""


def p_value(m: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """Largest probability of `correct` or more right guesses at any (epsilon, delta)-DP mechanism.

    The module has the formula.
    Raises ValueError unless 0 <= correct <= guesses <= m, epsilon >= 0 and 0 <= delta <= 1.
    """
    if not 0 <= correct <= guesses <= m or not epsilon >= 0 or not 0 <= delta <= 1:
        raise ValueError(f"{correct} of {guesses} guesses on {m} canaries at ({epsilon}, {delta}) have no p-value")
    right = float(expit(epsilon))
    tail = float(stats.binom.sf(correct - 1, guesses, right))
    if correct == 0 or delta == 0:
        return min(1.0, tail)
    below = np.cumsum(stats.binom.pmf(np.arange(correct - 1, -1, -1), guesses, right))
    return min(1.0, tail + 2 * m * delta * float((below / np.arange(1, correct + 1)).max()))


def lower_bound(m: int, guesses: int, correct: int, delta: float, false_alarm: float) -> float:
    """An epsilon >= 0 (nats) that the mechanism exceeds at `delta`.

    It is wrong with probability at most `false_alarm`.
    0 if no positive epsilon is shown. Valid even where the p-value is not monotone: a smaller epsilon would imply the
    rejected one. `guesses` must not depend on the number of right ones. Raises ValueError as `p_value`.
    """
    if p_value(m, guesses, correct, 0.0, delta) >= false_alarm:
        return 0.0
    low, high = 0.0, 1.0
    while p_value(m, guesses, correct, high, delta) < false_alarm:
        low, high = high, 2 * high
    while high - low > 1e-6 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if p_value(m, guesses, correct, middle, delta) < false_alarm else (low, middle)
    return low


def right_guesses(scores: np.ndarray, signs: np.ndarray, guesses: int) -> int:
    """Number of right guesses: the top half of `guesses` by score are guessed +1 and the bottom half -1.

    `scores`, `signs` (m,); an odd guess goes to the top. Raises ValueError if there are fewer canaries than guesses.
    """
    if not 0 <= guesses <= len(scores) == len(signs):
        raise ValueError(f"{guesses} guesses on {len(scores)} scores and {len(signs)} signs cannot be made")
    order = np.argsort(scores, kind="stable")
    bottom, top = order[: guesses // 2], order[len(order) - (guesses - guesses // 2) :]
    return int((signs[bottom] < 0).sum() + (signs[top] > 0).sum())


def one_run(
    scores: np.ndarray, signs: np.ndarray, guesses: int, delta: float, accounted: float, false_alarm: float
) -> Finding:
    """Compares the lower bound of one training with the accounted epsilon at the same `delta`.

    statistic: lower bound; threshold: accounted epsilon; a bound above it is an alarm. Raises ValueError as the parts.
    """
    correct = right_guesses(scores, signs, guesses)
    lower = lower_bound(len(scores), guesses, correct, delta, false_alarm)
    sentence = (
        f"epsilon of this training is at least {shown_down(lower)} with confidence {shown_down(1 - false_alarm, 6)} "
        f"(replace-one, delta {shown_up(delta, 3)}; {correct} of {guesses} guesses right on {len(scores)} canaries), "
        f"accounted are {shown_up(accounted)}"
    )
    return Finding(BOUND, lower <= accounted, lower, accounted, false_alarm, sentence)
