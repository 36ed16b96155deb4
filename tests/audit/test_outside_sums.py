"""Bugs of `tests/audit/foreign/` that let one record move a sum by more than is charged, and silos without them."""

from __future__ import annotations

from contextlib import contextmanager

import numpy as np
import pytest

from tests.audit.audited_silos import KINDS, NAME
from tests.audit.bug import as_if
from tests.audit.outside_bugs import (
    BY_MODULE,
    KEYS,
    addresses,
    ask,
    features_of,
    neighbours,
    opened,
    outcome_of,
    planted,
    question,
)

pytestmark = pytest.mark.minutes


def exact(audited, X, y, phase, round, shape):
    """The sum before noise, and the event that was committed for it."""
    silo = opened(audited, X, y)
    release = ask(silo, audited, phase, round, shape=shape)
    count = audited.plan.phases[phase - 1].at(round).by_silo[NAME].batch
    return release.payload * count, silo.ledger.rows("run")[-1].event, count


@contextmanager
def silent():
    with as_if(
        (
            "fedcore.mechanisms.gaussian:KeyedGaussian.draw",
            lambda right: lambda self, key, context, total: np.zeros(total.shape),
        )
    ):
        yield


BUILT = {"bound from the median", "disagreement damped", "rows over the median length", "missing labels by majority"}
"""Bugs that only records of a certain mixture show."""
BY_CONSTRUCTION = {"first tenth of rows wider", "differences a fifth longer"}
"""Bugs whose bound is plainly longer, and whose worst pair of records is not among those tried here."""

MOVES = [
    bug
    for module in ("clipping", "statistics", "outcomes", "places", "charging")
    for bug in BY_MODULE[module]
    if bug.breaks.startswith(("clipping", "sums", "sensitivity", "adjacency", "histogram", "places: records"))
    and not bug.kind.startswith(("guarded", "coins", "local", "control"))
    and bug.name not in BUILT | BY_CONSTRUCTION
]


def moved(kind, planted_bug):
    """Largest movement of an exact sum by one record over the event's charge: at most 1 without a bug."""
    with planted(planted_bug), silent():
        audited, worst = KINDS[kind](1), 0.0
        address = next(iter(addresses(audited.plan)))
        if kind.startswith("differences"):
            address = (1, 2)
        if kind.startswith("evaluations"):
            address = (audited.plan.phases[-1].index, 1)
        sets = neighbours(audited)
        if kind.startswith("evaluations") or kind in ("shards", "disjoint blocks"):
            sets += [_changed_everywhere(sets[0], place) for place in range(len(sets[0][1]))]
        base = len(neighbours(audited))
        for factor, shape in ((1.0, 0.05), (1.0, 3.0 / np.sqrt(audited.plan.problem.objective.dim)), (0.2, 0.05)):
            if factor < 1.0:
                sets = neighbours(audited, factor)
            sums = []
            for X, y in sets:
                total = outcome_of(lambda X=X, y=y, shape=shape: exact(audited, X, y, *address, shape))
                if not isinstance(total[0], str):
                    sums.append(total)
            scale = 1.0
            if kind.startswith("differences"):
                arrays = question(audited, *address, shape=shape).arrays
                scale = float(np.linalg.norm(np.subtract(*arrays.values())))
            allowed = sums[0][1].sensitivity * sums[0][2] * scale
            totals = [total for total, *_ in sums]
            # The first sets differ from one another in their first record, others from the first set in another.
            for at, total in enumerate(totals):
                others = totals if at < base else totals[:1]
                worst = max(worst, *(float(np.linalg.norm(total - other)) / allowed for other in others[:base]))
        return worst


def _mixed(name, n, p, turned):
    """Records along one axis, of which the first one decides about a median, a majority or a length."""
    lengths, y = np.full(n, 5.0), np.ones(n)
    if "median" in name:
        lengths[: n // 2 + 1] = 0.9 if "rows" in name else 0.05
        lengths[n // 2 + 1 :] = 50.0
        lengths[0] = 50.0 if turned else lengths[1]
    elif "majority" in name:
        y[1:11], y[11:15], y[15:] = np.nan, 1.0, -1.0
        y[0] = 1.0 if turned else -1.0
    else:
        y[1:9] = -1.0
        y[0] = 1.0 if turned else -1.0
    X = np.zeros((n, p))
    X[:, 0] = lengths
    return X, y


@pytest.mark.parametrize("name", sorted(BUILT))
def test_one_record_of_a_mixture_moves_a_sum_by_more_than_is_charged(name):
    found = {}
    for bug in (KEYS[name], None):
        with planted(bug), silent():
            audited = KINDS[KEYS[name].kind](1)
            sums = [exact(audited, *_mixed(name, 20, features_of(audited), turned), 1, 1, 0.001) for turned in (0, 1)]
            change = float(np.linalg.norm(sums[0][0] - sums[1][0]))
            found[bug] = change / (sums[0][1].sensitivity * sums[0][2])
    assert found[None] <= 1.0 + 1e-9
    assert found[KEYS[name]] > 1.0 + 1e-5


def _changed_everywhere(first, place):
    X, y = first[0].copy(), first[1].copy()
    X[place], y[place] = 5.0, 1.0
    return X, y


@pytest.mark.parametrize("bug", MOVES, ids=lambda bug: bug.name)
def test_a_record_moves_a_sum_by_more_than_is_charged(bug):
    assert moved(bug.kind, bug) > 1.0 + 1e-5


@pytest.mark.parametrize("kind", sorted({bug.kind for bug in MOVES}))
def test_it_does_not_without_a_bug(kind):
    assert moved(kind, None) <= 1.0 + 1e-9
