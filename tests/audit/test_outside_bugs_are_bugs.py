"""Each bug of `tests/audit/foreign/` changes what is seen of a silo, and lets it run.

The tests stay outside of the audit: silos are opened, asked, closed and asked again, with and without the bug.
The other files `test_outside_*` have what each bug breaks.
"""

from __future__ import annotations

import logging
import time
import warnings
from functools import cache

import pytest

from fedcore.accounting.filters import Cap, Charge
from fedcore.messages import Receipt
from fedcore.silo.account import account
from tests.audit.audited_silos import KINDS, NAME
from tests.audit.outside_bugs import BUGS, KEYS, addresses, ask, neighbours, opened, outcome_of, planted, records

pytestmark = pytest.mark.minutes


def test_there_are_enough_and_each_has_its_name():
    assert len(BUGS) >= 100
    assert len(KEYS) == len(BUGS)
    assert all(bug.kind in KINDS and len(bug.breaks) > 20 for bug in BUGS)


def trace(kind, everything=True):
    """All that is visible of silos of this kind: plan, charge, answers, refusals, refunds, log."""
    audited = KINDS[kind](1)
    seen = [audited.plan.digest, audited.plan.epsilon_accounted]
    lines = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    log = logging.getLogger("fedcore")
    log.addHandler(handler)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for number, (X, y) in enumerate(neighbours(audited) if everything else neighbours(audited)[:1]):
                found = outcome_of(lambda X=X, y=y, number=number: _life(audited, X, y, number == 0))
                if number == 0 and isinstance(found, tuple):
                    raise AssertionError(f"a silo with common records does not answer: {found}")
                seen.append(found)
            X, y = records(audited)
            for factor, shape in ((0.2, 0.4), (1e-4, 0.4), (10.0, 0.01), (0.0, 0.4)):
                silo = opened(audited, X * factor, y)
                first = list(addresses(audited.plan))[:2]
                seen += [
                    outcome_of(
                        lambda at=at, silo=silo, shape=shape: ask(silo, audited, *at, shape=shape).payload.tobytes()
                    )
                    for at in first
                ]
            seen += [str(each.message) for each in caught if each.category is RuntimeWarning]
    finally:
        log.removeHandler(handler)
    cap = Cap(3.0, 0.01)
    charge = Charge(0.3, 1.0, 1e-3)
    seen += [cap.admits([charge] * k) for k in range(1, 8)], lines, _limits(audited.plan)
    return seen


def _limits(plan):
    return [plan.has(phase.index, phase.rounds + more) for phase in plan.phases for more in range(3)]


def _life(audited, X, y, whole):
    silo = opened(audited, X, y)
    seen = [silo.ledger.charges()]
    order = list(addresses(audited.plan))
    for phase, round in order if whole else order[:1]:
        seen.append(ask(silo, audited, phase, round).payload.tobytes())
    if not whole:
        return [*seen, account(silo, audited.plan, "run")]
    rows = silo.ledger.rows("run")
    seen += [row.event for row in rows]
    phase, round = order[0]
    seen.append(outcome_of(lambda: ask(silo, audited, phase, round, seed=5).payload.tobytes()))
    silo.approve("run", audited.plan, audited.method, audited.loss, lease=1)
    seen += [outcome_of(lambda each=each: ask(silo, audited, *each).payload.tobytes()) for each in order[:3]]
    tenth = next((each for each in order if each[1] == 10), order[0])
    seen += [outcome_of(lambda: ask(silo, audited, *tenth, seed=6).payload.tobytes())]
    silo.close_run("run")
    seen += [silo.ledger.charges(), silo.ledger.is_closed("run")]
    left = [each for each in ((1, round) for round in range(1, audited.plan.phases[0].rounds)) if each not in order]
    seen += [outcome_of(lambda each=each: ask(silo, audited, *each).payload.tobytes()) for each in left[:1]]
    other = opened(audited, X, y)
    other.ledger.restore("run", [(Receipt(NAME, *row[:3], row.payload_digest), row.event) for row in rows])
    return [*seen, len(other.ledger.rows("run")), account(silo, audited.plan, "run")]


@cache
def clean(kind):
    with planted(None):
        return trace(kind)


@pytest.mark.parametrize("bug", [bug for bug in BUGS if bug.name != "slow at long records"], ids=lambda bug: bug.name)
def test_it_runs_and_changes_what_is_seen(bug):
    right = clean(bug.kind)
    with planted(bug):
        assert repr(trace(bug.kind)) != repr(right)


def test_long_records_take_longer():
    bug = KEYS["slow at long records"]
    with planted(bug):
        audited = KINDS[bug.kind](1)
        X, y = records(audited)
        took = []
        for factor in (0.1, 1e3):
            silo = opened(audited, X * factor, y)
            began = time.perf_counter()
            ask(silo, audited, 1, 1)
            took.append(time.perf_counter() - began)
    assert took[1] >= 0.002 * len(y)
