"""Audits of outside authors' bugs, each in its own process, as docs/explanation/audits.md counts them."""

import pytest

from tests.audit.foreign_runner import collected, outcomes

ONCE_MISSED = {
    "samples of records that are not zero": "samples",
    "column moments as of values alone": "sensitivity",
    "rows in the order of rounds": "second release",
    "a shard for all runs": "company",
    "a run's name in every version": "accounts",
}
"""Some outsiders' bugs that an earlier audit missed, with the instruments that find them now."""
MISSED = 3


@pytest.mark.minutes
def test_what_outsiders_showed_to_be_missed_is_found():
    bugs = [bug for bug in collected() if bug.name in ONCE_MISSED]
    assert len(bugs) == len(ONCE_MISSED)
    for outcome in outcomes(bugs, 0):
        assert ONCE_MISSED[outcome.bug.name] in outcome.alarmed, outcome.line


@pytest.mark.hours
@pytest.mark.minutes
def test_all_but_three_of_what_outsiders_planted_are_found():
    bugs = collected()
    assert len(bugs) == 392
    missed = [outcome.line for outcome in outcomes(bugs, 0, 2) if not outcome.alarmed]
    assert len(missed) <= MISSED, missed
