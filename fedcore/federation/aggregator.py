"""SIMULATION of a trusted aggregator, which stands between silos and server: it receives clipped sums and adds noise.

Where `privacy.trust` is central silos add none, as in the papers that trust a server: one Gaussian vector per round
protects the mean of all of them (Murata and Suzuki 2023, Algorithm 1; spec diff2, section 2). Whoever draws it knows
every silo's sum, so this is for comparisons on simulated silos, and guarded ones refuse it. The server's side of the
driver is given what comes out here, and nothing else.
"""

from __future__ import annotations

import struct

import numpy as np

from fedcore.arrays import Vector, digest
from fedcore.mechanisms.gaussian import KeyedGaussian
from fedcore.messages import Query
from fedcore.optim.averaging import Messages, mean_message
from fedcore.planning.phase import DIFFERENCE, Phase
from fedcore.randomness import derive

_MECHANISM = KeyedGaussian()


def noised_mean(messages: Messages, phase: Phase, query: Query, key: bytes) -> Vector:
    """Mean (d,) of silos' exact answers to `query`, by their weights, with the planned noise.

    `phase`: as it is in the query's round. The noise is keyed by `key`, the round's address, what was asked and the
    mean itself: a round that is asked again has the same.
    """
    mean = mean_message(messages, phase.weights)
    asked = query.digests(query.participants[:1])[query.participants[0]]
    address = digest(query.run.encode(), query.plan.encode()) + struct.pack("<QQ", query.phase, query.round)
    noise = _MECHANISM.draw(derive(key, "aggregator"), address + asked, mean)
    noise *= aggregated_sigma(phase) * _unit(phase, query)
    return np.asarray(mean + noise)


def aggregated_sigma(phase: Phase) -> float:
    """Standard deviation per coordinate of the noise on the mean over all silos, which all shares stand for."""
    weight = 1.0 if phase.weights is None else phase.weights[0]
    return phase.shares[0].sigma * weight / len(phase.shares)


def _unit(phase: Phase, query: Query) -> float:
    """What the planned noise is in units of."""
    if phase.answer != DIFFERENCE:
        return 1.0
    w, before = query.arrays["w"], query.arrays["before"]
    return float(np.linalg.norm(w - before))
