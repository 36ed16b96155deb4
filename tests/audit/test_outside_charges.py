"""Bugs of `tests/audit/foreign/` that charge less than the right accountant finds, and silos without them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fedcore.accounting.composition import spent, worst_mu_squared
from tests.audit.audited_silos import KINDS, NAME
from tests.audit.outside_bugs import BY_MODULE, addresses, ask, opened, planted, records

pytestmark = pytest.mark.minutes

ELSEWHERE = {
    "refund and go on",
    "cap of the last run",
    "closed runs are free",
    "cap of a half more",
    "rows lost on resuming",
}
UNDERCHARGED = [
    bug for bug in BY_MODULE["charging"] if bug.name not in ELSEWHERE and not bug.kind.startswith("guarded")
]


@pytest.mark.parametrize("bug", UNDERCHARGED, ids=lambda bug: bug.name)
def test_the_right_accountant_finds_more_than_was_charged(bug):
    with planted(bug):
        audited = KINDS[bug.kind](1)
        silo = opened(audited, *records(audited))
        asked_for = list(addresses(audited.plan))
        for address in asked_for:
            ask(silo, audited, *address)
        approved = silo.ledger.charges()["run"]
        silo.close_run("run")
        closed = silo.ledger.charges()["run"]
    with planted(None):
        plan = replace(audited.plan)  # without what the bug has counted
        delta = min(plan.problem.budget.delta(silo.n), approved.delta)
        whole = plan.charged_events(NAME)
        given = [plan.phases[phase - 1].event(NAME, round) for phase, round in asked_for]
        less = 1.0 - 1e-6
        assert (
            approved.epsilon < spent(whole, delta) * less
            or approved.mu_squared < worst_mu_squared(whole) * less
            or closed.mu_squared < worst_mu_squared(given) * less
        )


@pytest.mark.parametrize("kind", ["full batches", "coins", "local steps", "shards", "differences", "moments"])
def test_it_finds_no_more_without_a_bug(kind):
    with planted(None):
        audited = KINDS[kind](1)
        silo = opened(audited, *records(audited))
        delta = audited.plan.problem.budget.delta(silo.n)
        assert silo.ledger.charges()["run"].epsilon >= spent(audited.plan.charged_events(NAME), delta) * (1 - 1e-9)
