"""Small plans to audit, one for each kind of answer, sampling and method."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from fedcore.accounting.calibration import Budget
from fedcore.algorithms import ALGORITHMS, ColumnMoments, LargestEigenvalue, SecondMoments
from fedcore.algorithms.statistics.evaluated import evaluated
from fedcore.audit.audited_silo import AuditedSilo
from fedcore.losses import DrawnConvolution, Hinge, Logistic
from fedcore.models import OneHiddenLayer, RegressionNetwork, SoftmaxRegression
from fedcore.planning.evaluation import Evaluation
from fedcore.planning.problem import SiloFacts
from fedcore.planning.sensitivity.moments import half_diameter, length
from fedcore.silo.private_silo import PrivateSilo
from tests.audit.foreign_bugs import FOREIGN, PLANS
from tests.problems import problem_of

NAME = "synthetic"


def problem(n=20, dim=32, epsilon=2.0, delta=None, clip=1.0, mechanism="gaussian", others=(), drawn=False):
    silos = (SiloFacts(NAME, n), *(SiloFacts(f"other-{at}", size) for at, size in enumerate(others)))
    budget = Budget(epsilon, delta, "exact", mechanism)
    return problem_of(silos, dim, clip, 0.25, 10.0, len(silos), budget, drawn)


def make(seed, method="mbsgd", hyper=None, loss=None, opener=PrivateSilo, plain=None, **sizes):
    """An audited silo whose key follows from the seed."""
    chosen = ALGORITHMS[method](**({"rounds": 120} if hyper is None else hyper))
    key = np.random.default_rng([seed, 77]).bytes(32)
    return AuditedSilo(chosen.plan(problem(**sizes)), chosen, loss or Logistic(), NAME, key, opener, plain)


def estimate(seed, kind="gradient-difference", hyper=None, **rest):
    """An audited silo for one kind of DIFF2's rounds: restarts, or differences of gradients between them."""
    hyper = {"rounds": 120, "period": 6} if hyper is None else hyper
    return replace(make(seed, method="diff2", hyper=hyper, **rest), kind=kind)


def moments(seed, opener=PrivateSilo, plain=None, features=7, bound=1.5, **sizes):
    """An audited silo for the release of statistics before a run."""
    method = SecondMoments(features, bound)
    asked = problem(dim=length(features), clip=half_diameter(bound), **sizes)
    return AuditedSilo(
        method.plan(asked), method, None, NAME, np.random.default_rng([seed, 78]).bytes(32), opener, plain
    )


def evaluations(seed, opener=PrivateSilo, plain=PrivateSilo, n=40, held=15, dim=6, loss=None, classes=2, **sizes):
    """An audited silo for histograms of held-out records at the end of a training."""
    chosen = ALGORITHMS["mbsgd"](rounds=2)
    asked = problem(n=n, dim=dim, **sizes)
    evaluation = Evaluation(asked.budget.epsilon, "end", classes)
    silos = tuple(replace(silo, held=held) for silo in asked.silos)
    asked = replace(asked, silos=silos, evaluation=evaluation)
    key = np.random.default_rng([seed, 79]).bytes(32)
    plan = evaluated(chosen, asked).plan(asked)
    return AuditedSilo(plan, chosen, loss or Logistic(), NAME, key, opener, plain, kind="histogram")


def column_moments(seed, opener=PrivateSilo, plain=None, columns=16, **sizes):
    """An audited silo for the release of columns' means and squares before a run."""
    method = ColumnMoments(columns)
    asked = problem(dim=method.numbers, clip=method.half_diameter, **sizes)
    return AuditedSilo(
        method.plan(asked), method, None, NAME, np.random.default_rng([seed, 79]).bytes(32), opener, plain
    )


def eigenvalue(seed, opener=PrivateSilo, plain=None, bound=1.5, **sizes):
    """An audited silo for the release of the largest eigenvalue, whose answers are no plain sums."""
    method = LargestEigenvalue(bound)
    asked = problem(dim=1, clip=method.half_diameter, **sizes)
    return AuditedSilo(
        method.plan(asked), method, None, NAME, np.random.default_rng([seed, 80]).bytes(32), opener, plain
    )


def as_planned(name, seed, opener=PrivateSilo):
    """An audited silo in the plan in which the named bug of `foreign_bugs` is active."""
    method, hyper, n, dim = PLANS[name]
    return make(seed, method=method, hyper=hyper, opener=opener, n=n, dim=dim, delta=1e-5)


GUARDED = {"opener": partial(PrivateSilo, guarded=True), "plain": PrivateSilo, "mechanism": "discrete-gaussian"}
KINDS = {
    "full batches": partial(make),
    "shards": partial(make, method="localized-mbsgd", hyper={"rounds": (20, 12, 8), "lam": 0.1}, n=28),
    "disjoint blocks": partial(make, method="one-pass-mbsgd", hyper={"rounds": 20}, n=60),
    "coins": partial(make, hyper={"rounds": 120, "batch": 5}),
    "local steps": partial(make, method="fedprox", hyper={"rounds": 30, "local_steps": 4, "sampling_rate": 0.3}),
    "control variates": partial(
        make,
        method="scaffold",
        hyper={"rounds": 30, "local_steps": 3, "sampling_rate": 0.3, "warm": True},
        others=(25, 31),
    ),
    "softmax": partial(make, loss=SoftmaxRegression(4)),
    "network": partial(make, loss=OneHiddenLayer(3, 4), dim=4 * 5 + 3 * 5),
    "network of numbers": partial(make, loss=RegressionNetwork(4, "softplus"), dim=4 * 5 + 5),
    "drawn points": partial(make, method="mb-subgradient", loss=DrawnConvolution(Hinge(), 0.4, 1.0, 32), drawn=True),
    "restarts": partial(estimate, kind="gradient", others=(25,)),
    "differences": partial(estimate, others=(25,)),
    "differences of softmax": partial(estimate, loss=SoftmaxRegression(4)),
    "differences of a network": partial(estimate, loss=OneHiddenLayer(3, 4, "softplus"), dim=4 * 5 + 3 * 5),
    "moments": moments,
    "evaluations": evaluations,
    "evaluations of classes": partial(evaluations, loss=SoftmaxRegression(3), classes=3),
    "column moments": column_moments,
    "largest eigenvalue": eigenvalue,
    "guarded": partial(make, **GUARDED),
    "guarded differences": partial(estimate, **GUARDED),
    "guarded local steps": partial(
        make, method="fedavg", hyper={"rounds": 20, "local_steps": 3, "sampling_rate": 0.3}, **GUARDED
    ),
    "guarded moments": partial(moments, **GUARDED),
    "guarded evaluations": partial(evaluations, **GUARDED),
    "guarded column moments": partial(column_moments, **GUARDED),
    "guarded largest eigenvalue": partial(eigenvalue, **GUARDED),
}
PLANNED = {f"plan of {name}": partial(as_planned, name) for name in FOREIGN}
"""Plans in which the bugs of `foreign_bugs` are active."""
