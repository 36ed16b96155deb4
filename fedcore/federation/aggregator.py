"""SIMULATION of a trusted aggregator, which stands between silos and server: it receives clipped sums and adds noise.

Where `privacy.trust` is central silos add none, as in the papers that trust a server: one Gaussian vector per round
protects the mean of all of them (Murata and Suzuki 2023, Algorithm 1; spec diff2, section 2). Whoever draws it knows
every silo's sum, so this is for comparisons on simulated silos, and guarded ones refuse it. The server's side of the
driver is given what comes out here, and nothing else.
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
    """Mean (d,) of silos' exact answers to `query`, by their weights, with the planned noise.

    `phase`: as it is in the query's round. The noise is keyed by `key` and the round's address.
    """
    mean = mean_message(messages)
    noise = _MECHANISM.draw(derive(key, "aggregator"), round_address(query.phase, query.round), mean)
    unit = ANSWERS[phase.answer].scale(problem, *query.arrays.values())
    noise *= aggregated_sigma(phase.sigmas, phase.weights) * unit
    return np.asarray(mean + noise)
