"""Bugs of `tests/audit/foreign/`, and silos that are opened and asked with and without one, outside of the audit."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from importlib import import_module

import numpy as np

from fedcore.algorithms.statistics.evaluated import evaluated
from fedcore.data.records import Records
from fedcore.ledger.memory import MemoryLedger
from fedcore.models import model_of
from fedcore.silo.keys import SecretKeys
from fedcore.silo.question import RoundQuestion, forms_of
from tests.audit.audited_silos import NAME

MODULES = ("charging", "clipping", "grids", "noise", "outcomes", "places", "sampling", "statistics")
BY_MODULE = {name: import_module(f"tests.audit.foreign.{name}").BUGS for name in MODULES}
BUGS = [bug for bugs in BY_MODULE.values() for bug in bugs]
KEYS = {bug.name: bug for bug in BUGS}


@contextmanager
def planted(bug):
    """The product with the bug, without caches from before, and without leaving any."""
    _forget()
    try:
        if bug is None:
            yield
        else:
            with bug.plant():
                yield
    finally:
        _forget()


def _forget():
    for name, module in list(sys.modules.items()):
        if name.split(".")[0] == "fedcore":
            for value in list(vars(module).values()):
                if callable(getattr(value, "cache_clear", None)):
                    value.cache_clear()


def features_of(audited):
    dim = audited.plan.problem.objective.dim
    if audited.loss is None:
        kind = audited.plan.phases[0].question.kind
        return {"moments": 7, "column-moments": dim // 2, "largest-eigenvalue": 5}[kind]
    return next(p for p in range(1, dim + 1) if model_of(audited.loss).weights(p) == dim)


def records(audited, seed=0):
    """Records with labels of all kinds of losses: 0 and 1 are classes and numbers; -1 and 1 are the rest."""
    generator = np.random.default_rng(seed)
    n, p = audited.plan.problem.sizes[NAME], features_of(audited)
    X = generator.standard_normal((n, p)) * 0.6
    many = type(audited.loss).__name__ in ("SoftmaxRegression", "OneHiddenLayer", "RegressionNetwork")
    y = generator.integers(0, 3, n).astype(float) if many else np.where(generator.random(n) < 0.5, -1.0, 1.0)
    return X, y


def neighbours(audited, factor=1.0):
    """Unusual data sets that differ from the first in one record, or from each other."""
    X, y = records(audited)
    X = X * factor
    p = X.shape[1]
    axis = np.zeros(p)
    axis[-1] = 1.0
    rows = [50.0 * axis, -50.0 * axis, np.full(p, 3.0), np.full(p, -3.0), np.full(p, 100.0), np.zeros(p), 1e5 * axis]
    rows += [np.full(p, np.inf), X[0] * 1.0, np.full(p, 0.9), np.full(p, -0.9), np.full(p, 1e4), X[1]]
    found = [(X, y)]
    for row in rows:
        for label in (1.0, 0.0, -1.0, np.nan, 40.0) if row[0] in (3.0, 0.9) else (1.0, 0.0):
            other, labels = X.copy(), y.copy()
            other[0], labels[0] = row, label
            found.append((other, labels))
    return found


def opened(audited, X, y, cap=None):
    silo = audited.open(NAME, Records(X, y, 1.5), SecretKeys(audited.key), MemoryLedger(NAME), cap)
    silo.approve("run", audited.plan, audited.method, audited.loss)
    return silo


def question(audited, phase, round, seed=0, shape=0.4):
    method = evaluated(audited.method, audited.plan.problem)
    form = forms_of(method, audited.plan)[phase, audited.plan.phases[phase - 1].kind(round)]
    generator = np.random.default_rng([seed, phase, round])
    arrays = {name: generator.standard_normal(form.dim) * shape for name in sorted(form.common | form.own)}
    digest = np.random.default_rng([seed, phase, round, 7]).bytes(32)
    return RoundQuestion("run", phase, round, arrays, digest)


def addresses(plan):
    for phase in plan.phases:
        rounds = {1, 2, 3, 4, 7, 8, 10, 20, phase.rounds - 1, phase.rounds, *phase.first_rounds.values()}
        for round in sorted(each for each in rounds if 1 <= each <= phase.rounds):
            if not phase.at(round).schedule.in_turn:
                yield phase.index, round


def ask(silo, audited, phase, round, seed=0, shape=0.4):
    return silo.answer(question(audited, phase, round, seed, shape), audited.plan.phases[phase - 1].at(round))


def outcome_of(act):
    try:
        return act()
    except Exception as error:
        return type(error).__name__, str(error)
