"""SIMULATION of a trusted aggregator, which averages clipped sums and adds the noise.

With `privacy.trust: central` silos add no noise, as in the papers that trust a server. One Gaussian vector per round
protects the mean of all silos (Murata and Suzuki 2023, Algorithm 1; spec diff2, section 2). The aggregator sees every
silo's exact sum, so this mode serves comparisons on simulated silos; guarded silos refuse it. The server's side of the
driver receives the noised mean only.
"""

from __future__ import annotations

import numpy as np

from fedcore.arrays import Vector
from fedcore.mechanisms.gaussian import SeededGaussian, round_address
from fedcore.messages import Query
from fedcore.optim.averaging import Messages, mean_message
from fedcore.planning.aggregated import aggregated_sigma
from fedcore.planning.phase import Phase
from fedcore.planning.problem import Problem
from fedcore.randomness import derive
from fedcore.silo.answers import ANSWERS

_MECHANISM = SeededGaussian()


def noised_mean(messages: Messages, problem: Problem, phase: Phase, query: Query, key: bytes) -> Vector:
    """Weighted mean (d,) of silos' exact answers to `query`, with the planned noise.

    `phase`: the phase as it is in the query's round. `key` and the round's address key the noise.
    """
    mean = mean_message(messages)
    noise = _MECHANISM.draw(derive(key, "aggregator"), round_address(query.phase, query.round), mean)
    unit = ANSWERS[phase.question.kind].scale(problem, *query.arrays.values())
    noise *= aggregated_sigma(phase.sigmas, phase.weights) * unit
    return np.asarray(mean + noise)
