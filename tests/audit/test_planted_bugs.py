"""Planted bugs are found, clean audits pass: a few seeds here, 100 each in `test_table.py`."""

from pathlib import Path

import numpy as np
import pytest

from fedcore.audit import bench, suite
from fedcore.audit.bench import Bench, check_one_run, plan_one_run
from fedcore.audit.finding import BOUNDS, TESTS
from fedcore.audit.instruments.clipping import all_records, one_record
from fedcore.audit.instruments.sums import exact_sums
from fedcore.ledger.memory import MemoryLedger
from fedcore.ledger.sqlite import SqliteLedger
from fedcore.losses import LOSSES
from fedcore.silo.private_silo import PrivateSilo
from tests.audit import planted_outcomes
from tests.audit.audited_silos import KINDS, make
from tests.audit.planted import Planted
from tests.audit.table import ALL, NAMED, OLD
from tests.selection import some_in_make_test

MEANT = {
    "noise times 0.5": "variance",
    "noise times 0.9": "variance",
    "no noise": "variance",
    "one noise vector per run": "reused noise",
    "noise keyed by the sum alone": "reused noise",
    "noise keyed by the address alone": "related releases",
    "no clipping": "clipping, one record",
    "clipping at twice the bound": "clipping, all records",
    "a ledger that answers twice": "second release",
    "a doubled sampling rate": "sampling rate",
    "a: one coordinate times 0.05": "variance by part",
    "c: one release in 256 without noise": "single releases",
    "d: noise without the run key": "related releases",
    "e: noise keyed by the asker's digest": "related releases",
    "b: coins shared by all rounds": "overlap of samples",
    "b: samples of local steps shared by all rounds": "overlap of samples",
    "b: one sample for all asks of a round": "overlap of samples",
    "e: coins keyed by the asker's digest": "overlap of samples",
    "closing charges half of what was spent": "accounts",
    "a silo that fails at long records": "outcomes",
    "coins of a public fingerprint and address": "keys",
    "samples of a public fingerprint and address": "keys",
    "a register that takes half of a charge": "accounts",
    "versions of data that have an account each": "accounts",
    "a cap over one version of the data": "accounts",
    "noise on the grid cut at 3.5 sigma": "tails",
}
"""Instrument that each named bug was planted for; others may find the bug too."""

ONE_EACH = {
    "one number in 1,000 without noise": "distribution",
    "two coordinates share noise": "related coordinates",
    "noise again, in another order": "related releases",
    "noise in float32": "fineness",
    "a grid of four times the step, guarded": "fineness",
    "a record counted twice": "exact sums",
    "blind: pieces_all_start_at_zero": "exact mean",
    "the first place is never drawn": "samples",
    "charged for fewer answers": "charges",
    "clipping at twice the bound": "sensitivity",
    "bounds kept for all runs": "company",
}
"""One bug for each instrument without a named one."""


def finds(name, bug, seed):
    """True if this instrument alarms at this bug."""
    (instrument,) = [one for one in suite.INSTRUMENTS if one.name == name]
    with ALL[bug].audited(seed) as audited:
        return not suite.look(instrument, Bench(audited, np.random.default_rng(seed), ALL[bug].ledger)).passed


def test_every_named_bug_is_in_the_list():
    assert set(MEANT) == {*OLD, *NAMED}
    assert {*MEANT.values(), *ONE_EACH.values()} | {"one-run bound"} == {one.name for one in suite.INSTRUMENTS}


IN_MAKE_TEST = ["noise times 0.9", "a ledger that answers twice", *planted_outcomes.NAMED]


@pytest.mark.parametrize("bug", some_in_make_test(MEANT, IN_MAKE_TEST, []))
def test_a_named_bug_is_found_by_the_instrument_that_is_meant_for_it(bug):
    assert finds(MEANT[bug], bug, 1)


@pytest.mark.parametrize("bug", some_in_make_test(ONE_EACH, ["a record counted twice"], []))
def test_every_instrument_finds_the_bug_that_is_meant_for_it(bug):
    assert finds(ONE_EACH[bug], bug, 2)


@pytest.mark.parametrize("kind", some_in_make_test(KINDS, ["guarded"], ["coins", "guarded moments", "local steps"]))
def test_a_correct_silo_passes_every_instrument(kind):
    done = suite.audit(KINDS[kind](3), np.random.default_rng(3))
    assert done.passed, [finding for finding in done.findings if not finding.passed]
    assert [finding.instrument for finding in done.findings] == [one.name for one in suite.INSTRUMENTS]
    assert sum(finding.false_alarm for finding in done.findings[:-1]) <= TESTS * (1 + 1e-9)
    for finding in done.findings:
        assert np.isfinite(finding.statistic) or len(finding.detail) > 20


@pytest.mark.parametrize("bug", [None, "b: coins shared by all rounds"])
def test_instruments_of_samples_and_of_the_grid_pass_coins_and_find_shared_ones(bug):
    """In `make test`, where whole audits of samples are too long."""
    names = {"sampling rate", "samples", "overlap of samples", "fineness"}
    with Planted("coins").audited(3) if bug is None else ALL[bug].audited(3) as audited:
        bench = Bench(audited, np.random.default_rng(3))
        found = {one.name for one in suite.INSTRUMENTS if one.name in names and not suite.look(one, bench).passed}
    assert not found if bug is None else "overlap of samples" in found


@pytest.mark.hours
@pytest.mark.minutes
def test_audits_that_are_read_together_share_the_error_probabilities():
    alone, four = (suite.audit(KINDS["shards"](3), np.random.default_rng(3), audits=n) for n in (1, 4))
    for one, other in zip(alone.findings, four.findings, strict=True):
        assert other.false_alarm == pytest.approx(one.false_alarm / 4)
    assert four.findings[-1].false_alarm == pytest.approx(BOUNDS / 4)


@pytest.mark.parametrize("loss", sorted(LOSSES))
def test_missing_clipping_is_found_for_every_loss(loss):
    for opener, passes in ((PrivateSilo, True), (ALL["no clipping"].opener, False)):
        audited = make(5, hyper={"rounds": 6}, loss=LOSSES[loss](), clip=0.7, opener=opener)
        rng = np.random.default_rng(5)
        for instrument in (one_record, all_records):
            assert instrument(audited, rng, suite.ALPHA).passed == passes
        assert exact_sums(audited, rng).passed == passes


@pytest.mark.minutes
def test_both_ledgers_pass_the_probe(tmp_path, monkeypatch):
    """A fifth of the addresses of an audit; `fedcore audit` with a durable ledger is tested with all of them."""
    monkeypatch.setattr(bench, "PROBED", bench.PROBED // 5)

    def durable(silo):
        return SqliteLedger(silo, tmp_path / "a.sqlite", tmp_path / "a.anchor")

    for ledger in (MemoryLedger, durable):
        assert Bench(KINDS["shards"](0), np.random.default_rng(0), ledger).addresses().passed


def test_a_noise_plan_that_guarded_silos_refuse_is_opened_as_a_simulation():
    """Sums are checked without noise; a guarded silo has no such plan, so its code is opened unguarded."""
    with Planted("guarded").audited(0) as audited:
        finding = exact_sums(audited, np.random.default_rng(0))
    assert finding.passed and finding.statistic < 1e-12


@pytest.mark.parametrize("method", ["mbsgd", "one-pass-mbsgd"])
def test_a_training_without_noise_is_found_by_one_run(make_audited, method):
    """480 canaries can show more than epsilon 1: without noise every guess is right."""
    for seed in range(10):
        audited = make_audited(seed, "no noise", method=method, n=480, dim=480, epsilon=1.0)
        power = plan_one_run(audited)
        finding = check_one_run(audited, np.random.default_rng(seed), power)
        assert not finding.passed and finding.statistic > 1.0 == pytest.approx(finding.threshold)


def test_the_page_lists_the_instruments_and_the_bugs():
    docs = Path(__file__).parents[2] / "docs"
    pages = (docs / "explanation" / "audits.md", docs / "reference" / "audit-trials.md")
    first, planted = (
        [line.split("|")[1].strip() for line in page.read_text().splitlines() if line.startswith("| ")]
        for page in pages
    )
    named = dict.fromkeys(name for name in first if name in {one.name for one in suite.INSTRUMENTS})
    assert list(named) == [one.name for one in suite.INSTRUMENTS]
    assert set(ALL) <= set(planted)
