"""Methods for the contract tests: few rounds, with and without samples, one for each way of asking.

A method in ALGORITHMS is tested with its default hyperparameters; a row in QUICK or EXACT makes the tests faster or
sharper. A method with a `batch` is tested with secret samples too.
"""

import dataclasses
import math
import os
from pathlib import Path

import numpy as np

from fedcore.accounting.calibration import Budget
from fedcore.algorithms import ALGORITHMS
from fedcore.planning.problem import SiloFacts
from tests.problems import problem_of

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "add-method.md"
ONLY = os.environ.get("FEDCORE_TEST_METHOD")
"""The only method of the fixtures, for `test_registration`, which sets it; None: all of them."""

QUICK = {
    "localized-mbsgd": {"rounds": (4, 3, 2), "step": 0.5},
    "localized-accelerated": {"rounds": (4, 3, 2), "lam": 0.1},
    "one-pass-mbsgd": {"rounds": 5},
    "mbsgd": {"rounds": 6, "step": 0.5},
    "accelerated-mbsgd": {"rounds": 6},
    "one-pass-accelerated-mbsgd": {"rounds": 5},
    "localized-subgradient": {"rounds": (4, 3, 2)},
    "mb-subgradient": {"rounds": 6},
    "scaffold": {"rounds": 5, "local_steps": 3, "sampling_rate": 0.4},
    "fedavg": {"rounds": 5, "local_steps": 3, "sampling_rate": 0.4},
    "fedprox": {"rounds": 5, "local_steps": 3, "sampling_rate": 0.4},
    "fedsgd": {"rounds": 5, "sampling_rate": 0.4},
    "diff2": {"rounds": 6, "period": 3, "split": 0.5},
    "noised-newton": {"rounds": 4, "period": 2},
    "dp-fcrn": {"rounds": 3, "local_steps": 3, "scale": 3.0},
    "diff2-bvr": {"rounds": 4, "period": 3, "split": 0.5, "local_steps": 3, "batch": 4, "step": 0.1},
}
"""Hyperparameters for few rounds; a method without a row has its defaults."""

EXACT = {
    "localized-mbsgd": ({"step": 1, "lam": 0.005, "exponent": 0, "rounds": 50, "average": "last"}, 1e-8),
    "localized-accelerated": ({"lam": 0.005, "exponent": 0, "rounds": 160}, 1e-8),
    "one-pass-mbsgd": ({"step": 1, "rounds": 64, "average": "last"}, 1e-8),
    "mbsgd": ({"step": 1, "rounds": 60, "average": "last"}, 1e-8),
    # Without stages, since ridge may be 0 here: far slower than with the objective's own strong convexity.
    "accelerated-mbsgd": ({"rounds": 400}, 1e-5),
    "one-pass-accelerated-mbsgd": ({"rounds": 64, "lam": 1e-9, "form": "regularised"}, 2e-2),  # 64 records a silo
    "localized-subgradient": ({"lam": 0.005, "exponent": 0, "rounds": 400}, 1e-4),
    "mb-subgradient": ({"lam": 0.005, "rounds": 2500}, 2e-2),  # the regulariser pulls by 1 % of the answer
    "scaffold": ({"step": 0.5, "sampling_rate": 1.0, "local_steps": 4, "rounds": 200}, 1e-8),
    # On heterogeneous silos local steps alone have another limit, farther by the order of the step length.
    "fedavg": ({"step": 0.01, "sampling_rate": 1.0, "local_steps": 4, "rounds": 2500}, 5e-3),
    "fedprox": ({"step": 0.01, "sampling_rate": 1.0, "local_steps": 4, "rounds": 2500}, 5e-3),
    "fedsgd": ({"step": 1.0, "sampling_rate": 1.0, "rounds": 100}, 1e-8),
    "diff2": ({"step": 1.0, "slope": 1e3, "rounds": 60, "period": 7}, 1e-8),
    "noised-newton": ({"rounds": 1}, 1e-8),
    # On heterogeneous silos the mean of Newton steps has another limit, nearest for small steps.
    "dp-fcrn": ({"rounds": 400, "local_steps": 2, "cubic": 0.0, "radius": 1e3}, 1e-8),
    # Local steps use one silo's loss, corrected by the estimate of all silos: their limit is that of all.
    "diff2-bvr": ({"step": 0.2, "slope": 1e3, "rounds": 200, "period": 7, "local_steps": 3}, 1e-8),
}
"""Hyperparameters with which a method solves least squares without noise, and how closely (relative)."""

EXPECTED = 3
"""Expected records of a sample from shards of 8 and 4 records of `toy`; shards of 2 have none."""


def quick(name):
    return ALGORITHMS[name](**QUICK.get(name, {}))


SAMPLING = sorted(
    name
    for name, kind in ALGORITHMS.items()
    if "batch" in kind.__dataclass_fields__ and kind.__dataclass_fields__["batch"].default is None
)
GRADIENTS = {"gradient", "gradient-difference"}
FULL = sorted(
    name
    for name, kind in ALGORITHMS.items()
    if kind.sends_sums and GRADIENTS.issuperset(kind.asks) and ONLY in (None, name)
)
"""Methods whose messages are means of gradients, all of which can be about all records of a shard."""


def named(name):
    """The method of a fixture's parameter: 'mbsgd', or 'mbsgd of samples'."""
    name, _, of = name.partition(" of ")
    return dataclasses.replace(quick(name), batch=EXPECTED) if of else quick(name)


NAMES = [
    name
    for name in (*sorted(ALGORITHMS), *(f"{name} of samples" for name in SAMPLING))
    if ONLY in (None, name.partition(" of ")[0])
]


def bare(method):
    """The method without its proximal term, which moves a message by earlier steps of its round."""
    return dataclasses.replace(method, prox_weight=0.0) if hasattr(method, "prox_weight") else method


def samples(method):
    """True if the method asks about samples."""
    return getattr(method, "batch", None) is not None or getattr(method, "sampling_rate", 1.0) < 1.0


def longest_part(method, phase, problem):
    """C of the round's question: the longest part of one record in an answer, written out."""
    if phase.question.kind == "gradient-difference":
        return method.slope
    if phase.question.kind == "gradient-and-hessian":
        return math.sqrt(5.0) / 2.0 * problem.objective.clip  # at balance 1
    return problem.objective.clip


def lengths(method, phase, dim):
    """Length of a message in this kind of round."""
    return (
        dim + dim * (dim + 1) // 2
        if phase.question.kind == "gradient-and-hessian"
        else dim * (2 if phase.schedule.in_turn else 1)
    )


def full(method):
    """The method with full batches; other files test the effect of samples."""
    return dataclasses.replace(method, sampling_rate=1.0) if hasattr(method, "sampling_rate") else method


def way_of_asking(method):
    """All that a silo or a site sees of a method: kind, records, number and arrays of its questions."""
    problem = problem_of((SiloFacts("a", 64), SiloFacts("b", 64)), 4, 1.0, 1.0, 10.0, 2, Budget(None, 1e-5))
    phases = method.plan(problem).phases
    found = [len(phases) > 1]
    for round in phases[0].first_rounds.values():
        phase = phases[0].at(round)
        state = dataclasses.replace(method.init(np.zeros(4)), round=round)
        dimensions = {name: np.ndim(array) for name, array in method.broadcast(state, phases[0]).items()}
        drawn = phase.schedule.sampling if phase.rate < 1 else "full"
        often = (phase.schedule.fresh_blocks, phase.schedule.answers > 1, phase.schedule.at_most_once)
        found.append((phase.question.kind, drawn, *often, *sorted(dimensions.items())))
    return tuple(found)


def one_for_each_way(names=NAMES, change=lambda method: method):
    """Names of methods that together cover all ways of asking; a silo cannot distinguish others from them."""
    found = {way_of_asking(change(named(name))): name for name in reversed(names)}
    return sorted(found.values())
