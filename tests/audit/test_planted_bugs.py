"""Each planted bug is found by its instrument in at least 95 of 100 seeds; at most 1 false alarm in 100 clean ones.

The instruments claim less than 1e-4 false alarms, so one in 100 would already be a coincidence of probability 1 %.
"""


import numpy as np
import pytest

from fedcore.audit import participation, suite
from fedcore.audit.finding import BOUNDS
from fedcore.errors import InputError
from fedcore.losses import LOSSES, DrawnConvolution, Hinge
from fedcore.privacy.durable_ledger import SqliteLedger
from fedcore.privacy.ledger import MemoryLedger
from fedcore.privacy.secret_sample import poisson_sample

SEEDS = range(100)
WIDE = {"hyper": {"rounds": 40}, "dim": 65}


def alarms(subject, check, bug="none", **sizes):
    """How many of the seeds end with an alarm of `check(subject, rng)`."""
    return sum(not check(subject(seed, bug, **sizes), np.random.default_rng(seed)).passed for seed in SEEDS)


@pytest.mark.parametrize(("bug", "least"), [("half noise", 95), ("nine tenths of the noise", 95), ("no noise", 100)])
def test_too_little_noise_is_found_by_its_variance(subject, bug, least):
    assert alarms(subject, suite.check_variance, bug, **WIDE) >= least


def test_too_little_noise_is_found_in_a_narrow_plan_over_several_runs(subject):
    """2 rounds of 300 weights are 600 residuals: the test needs some 2,500 and takes them."""
    assert alarms(subject, suite.check_variance, "nine tenths of the noise", hyper={"rounds": 2}, dim=300) >= 95


def test_missing_clipping_is_found_by_one_canary_and_by_many(subject):
    assert alarms(subject, lambda s, rng: suite.check_pair(s, rng)[0], "no clipping") >= 95
    assert alarms(subject, suite.check_crowd, "no clipping") >= 95


def test_clipping_at_twice_the_bound_is_found_by_many_canaries(subject):
    assert alarms(subject, suite.check_crowd, "clipping at twice the bound") >= 95


@pytest.mark.parametrize("loss", sorted(LOSSES))
def test_missing_clipping_is_found_for_every_loss(subject, loss):
    for seed in range(5):
        rng = np.random.default_rng(seed)
        audited = subject(seed, "no clipping", loss=LOSSES[loss](), clip=0.7)
        assert not suite.check_pair(audited, rng)[0].passed and not suite.check_crowd(audited, rng).passed


@pytest.mark.parametrize("bug", ["same noise in every round", "noise keyed by the sum", "noise keyed by the address"])
def test_reused_noise_is_found_by_subtracting_releases(subject, bug):
    assert alarms(subject, lambda s, rng: suite.check_pair(s, rng)[1], bug) >= 95


def test_a_second_release_is_found_by_payloads_per_address(subject, forgetful):
    def check(audited, rng):
        return suite.check_addresses(audited, rng, forgetful("synthetic"))

    assert alarms(subject, check) == 100


SAMPLING = {
    "mbsgd": {"rounds": 6, "batch": 2},
    "localized-mbsgd": {"rounds": 3, "max_phases": 2, "batch": 2},
}
"""Rates of 2/20; of 2/10 and 2/5."""


@pytest.mark.parametrize("method", SAMPLING)
@pytest.mark.parametrize("factor", [1.0, 2.0])
def test_a_doubled_sampling_rate_is_found_by_participations(subject, method, factor, monkeypatch):
    """A real silo that draws at twice the rate that its noise is calibrated for, or at the planned one."""

    def drawn(stream, rate, records):
        return poisson_sample(stream, factor * rate, records)

    monkeypatch.setattr("fedcore.privacy.silo.poisson_sample", drawn)

    def check(audited, rng):
        return participation.check_sampling(audited, suite.ALPHA)

    found = alarms(subject, check, method=method, hyper=SAMPLING[method])
    assert found <= 1 if factor == 1.0 else found >= 95


@pytest.mark.parametrize("method", SAMPLING)
def test_a_correct_silo_of_secret_samples_passes_and_too_little_noise_does_not(subject, method):
    for bug, passes in (("none", True), ("nine tenths of the noise", False)):
        for seed in range(20):
            audited = subject(seed, bug, method=method, hyper=SAMPLING[method])
            assert suite.audit(audited, np.random.default_rng(seed)).passed == passes
    done = suite.audit(subject(1, method=method, hyper=SAMPLING[method]), np.random.default_rng(1))
    assert [finding.instrument for finding in done.findings] == ["variance", "sampling rate", "second release"]
    assert done.as_json()["one_run_power"] is None
    with pytest.raises(InputError, match="secret samples"):
        suite.plan_one_run(subject(1, method=method, hyper=SAMPLING[method]))


def test_drawn_points_are_not_audited(subject):
    with pytest.raises(InputError, match="estimate = exact"):
        suite.audit(subject(1, loss=DrawnConvolution(Hinge(), 0.1, 1.0, 32)), np.random.default_rng(1))


@pytest.mark.parametrize("method", ["mbsgd", "one-pass-mbsgd"])
def test_a_correct_silo_passes_every_instrument(subject, method):
    """At most one alarm of any instrument in 100 seeds; a lower bound never exceeds what is accounted."""
    failed = []
    for seed in SEEDS:
        done = suite.audit(subject(seed, method=method, n=40), np.random.default_rng(seed))
        failed += [finding for finding in done.findings if not finding.passed]
        bound = done.findings[-1]
        assert bound.statistic <= bound.threshold and bound.false_alarm == BOUNDS
    assert len(failed) <= 1, failed


@pytest.mark.parametrize(
    ("method", "hyper"),
    [("localized-mbsgd", {"rounds": (5, 3, 2), "lam": 0.1}), ("localized-accelerated", {"rounds": (5, 3), "lam": 0.1})],
)
def test_a_correct_silo_passes_in_phases(subject, method, hyper):
    for seed in range(10):
        done = suite.audit(subject(seed, method=method, hyper=hyper, n=40), np.random.default_rng(seed))
        assert done.passed, done


@pytest.mark.parametrize("loss", sorted(LOSSES))
def test_a_correct_silo_passes_with_every_loss(subject, loss):
    for seed in range(10):
        done = suite.audit(subject(seed, loss=LOSSES[loss](), clip=0.7), np.random.default_rng(seed))
        assert done.passed, done


def test_both_ledgers_pass_the_probe(subject, tmp_path):
    for ledger in (MemoryLedger("synthetic"), SqliteLedger("synthetic", tmp_path / "a.sqlite", tmp_path / "a.anchor")):
        finding = suite.check_addresses(subject(0), np.random.default_rng(0), ledger)
        assert finding.passed and "0 of 6 addresses" in finding.detail
        ledger.close()


@pytest.mark.parametrize("method", ["mbsgd", "one-pass-mbsgd"])
def test_a_training_without_noise_is_found_by_one_run(subject, method):
    """480 canaries can show more than epsilon 1: without noise every guess is right."""
    for seed in range(10):
        audited = subject(seed, "no noise", method=method, n=480, dim=480, epsilon=1.0)
        power = suite.plan_one_run(audited)
        finding = suite.check_one_run(audited, np.random.default_rng(seed), power)
        assert not finding.passed and finding.statistic > 1.0 == pytest.approx(finding.threshold)
