"""Costs of secret samples: plans against other accountants, caps, the ledger's settlement, and noise on a grid."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, NeighboringRelation, PoissonSampledDpEvent
from dp_accounting.pld import PLDAccountant

from fedcore.accounting.calibration import Budget, paper_formula
from fedcore.accounting.composition import spent, worst_mu_squared
from fedcore.accounting.events import GaussianRelease
from fedcore.accounting.filters import Cap, Charge
from fedcore.accounting.gaussian import epsilon_of
from fedcore.accounting.loss_distributions.loss_curves import SAMPLED, gaussian
from fedcore.algorithms import LocalizedMbsgd, LocalizedSubgradient, Mbsgd
from fedcore.errors import InputError, SiloError
from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.experiment import Experiment
from fedcore.federation.rounds import rounds
from fedcore.home import LedgerFolders
from fedcore.mechanisms.grid import FINENESS, Grid
from fedcore.planning.batches import least_batch
from fedcore.planning.problem import SiloFacts
from tests.fedcore.accounting.reference_accountant import poisson as reference
from tests.problems import problem_of
from tests.registers import registered


def problem(*sizes, epsilon=1.0, delta=1e-6, dim=4, participants=None, **budget):
    facts = tuple(SiloFacts(f"s{i}", n) for i, n in enumerate(sizes))
    return problem_of(facts, dim, 1.0, 0.25, 10.0, participants or len(sizes), Budget(epsilon, delta, **budget))


# The plan's epsilon


@pytest.mark.parametrize("n, K, R, epsilon", [(400, 20, 50, 1.0), (100, 50, 8, 3.0), (1000, 3, 300, 0.5)])
def test_a_sampled_plan_spends_its_target_by_two_other_accountants(n, K, R, epsilon):
    """dp-accounting's own composition, and an independent one with a bracket; noise multipliers written out here."""
    plan = Mbsgd(rounds=R, batch=K).plan(problem(n, epsilon=epsilon))
    (share,) = plan.phases[0].shares
    z = share.sigma * K / (2 * (1 + 1e-6))  # sigma over the replace-one sensitivity 2 C / K
    accountant = PLDAccountant(NeighboringRelation.REPLACE_ONE)
    accountant.compose(PoissonSampledDpEvent(K / n, GaussianDpEvent(2 * z)), R)  # relative to C / K there
    assert accountant.get_epsilon(1e-6) == pytest.approx(epsilon, rel=2e-3)
    bracket = reference(K / n, z, R, 1e-6)
    assert bracket.lower <= plan.epsilon_accounted <= 1.003 * bracket.upper
    assert 0.999 * epsilon < plan.epsilon_accounted == plan.silo_epsilon("s0") <= epsilon


def test_unequal_silos_spend_the_same_at_one_delta_and_each_its_own_target_at_its_own():
    plan = Mbsgd(rounds=20, batch=10).plan(problem(100, 130, 310))
    assert len({share.epsilon_accounted for share in plan.phases[0].shares}) == 1
    assert [share.batch for share in plan.phases[0].shares] == [10, 13, 31]
    for share, first in zip(plan.phases[0].shares, [plan.phases[0].shares[0]] * 3, strict=True):
        assert share.sigma * share.batch == pytest.approx(first.sigma * first.batch, rel=1e-12)
    own = Mbsgd(rounds=20, batch=10).plan(problem(100, 310, delta=None))
    for facts in own.problem.silos:
        assert 0.999 < own.silo_epsilon(facts.name) <= 1.0
    assert own.phases[0].shares[0].sigma * 100 < own.phases[0].shares[1].sigma * 310  # 1/n^2 is smaller there


def test_paper_noise_does_not_depend_on_the_batch_within_its_range():
    full = Mbsgd(rounds=50).plan(problem(400, calibration="paper")).phases[0]
    sampled = Mbsgd(rounds=50, batch=20).plan(problem(400, calibration="paper")).phases[0]
    by_hand = math.sqrt(256 * 50 * math.log(2.5 * 50 / 1e-6) * math.log(2 / 1e-6)) / 400
    assert sampled.sigma == full.sigma == pytest.approx(by_hand, rel=1e-12)
    assert sampled.epsilon_paper == pytest.approx(1.0) and sampled.epsilon_accounted < 0.2
    # epsilon <= 4 (K/n) sqrt(2 R ln(2/delta)) = 0.3809 at K = 1
    with pytest.raises(InputError, match=r"epsilon <= 0\.3809"):
        Mbsgd(rounds=50, batch=1).plan(problem(400, calibration="paper"))
    assert paper_formula("multi-pass", 1.0, 20, 50, 1e-6, 400).epsilon(by_hand) == pytest.approx(1.0)


@pytest.mark.parametrize("sizes", [(512, 512), (512, 700)])
def test_the_theorems_batches_lie_in_the_printed_noises_range(sizes):
    """Each K was made for it: paper calibration takes every phase, and K - 1 is refused where the range decides."""
    for method in (LocalizedSubgradient(rounds=4, batch="theory"), Mbsgd(rounds=9, batch="theory")):
        plan = method.plan(problem(*sizes, delta=None, calibration="paper"))
        assert plan.epsilon_paper == pytest.approx(1.0) and plan.phases[0].rate < 1
    K = least_batch(problem(*sizes, epsilon=3.0, delta=None), 512, 4)
    for batch, fits in ((K, True), (K - 1, False)):
        asked = problem(*sizes, epsilon=3.0, delta=None, calibration="paper")
        if fits:
            Mbsgd(rounds=4, batch=batch).plan(asked)
            continue
        with pytest.raises(InputError, match="outside the range"):
            Mbsgd(rounds=4, batch=batch).plan(asked)


def test_noise_is_found_again_in_the_homes_cache_and_is_the_same(tmp_path, monkeypatch):
    from fedcore.accounting import calibration
    from fedcore.accounting.noise_search import noise_cached_in
    from fedcore.noise_cache import NoiseFolder

    monkeypatch.setenv("FEDCORE_HOME", str(tmp_path / "home"))
    calibration.sampled_multiplier.cache_clear()
    with noise_cached_in(NoiseFolder.current()):
        without_home = Mbsgd(rounds=7, batch=30).plan(problem(70))
    assert not (tmp_path / "home").exists()  # whoever has no home gets no files
    (tmp_path / "home").mkdir()
    for _ in range(2):
        calibration.sampled_multiplier.cache_clear()
        with noise_cached_in(NoiseFolder.current()):
            assert Mbsgd(rounds=7, batch=30).plan(problem(70)).digest == without_home.digest
    assert len(list((tmp_path / "home" / "cache" / "sigma").iterdir())) == 1
    calibration.sampled_multiplier.cache_clear()


# Caps


@pytest.mark.parametrize("sampling", sorted(SAMPLED))
@pytest.mark.parametrize("rate", [1e-3, 0.1, 0.5, 0.99])
@pytest.mark.parametrize("multiplier", [0.4, 1.0, 6.0])
def test_no_sample_is_worse_than_answering_about_all(sampling, rate, multiplier):
    """The whole curve lies below the Gaussian mechanism's, which a charge of mu^2 represents."""
    epsilons = np.linspace(-8, 8, 161)
    of_sample = SAMPLED[sampling](rate, multiplier)(epsilons)
    assert (of_sample <= gaussian(1 / multiplier)(epsilons) * (1 + 1e-9) + 1e-15).all()


@pytest.mark.parametrize("sampling", sorted(SAMPLED))
@pytest.mark.parametrize("rate, answers, delta", [(1 / 3, 4, 1e-13), (0.25, 12, 1e-13), (0.1, 3, 1e-6)])
@pytest.mark.parametrize("noise", [1e8, 6e9, 1e17])
def test_no_noise_is_too_much_for_the_accountant(sampling, rate, answers, delta, noise):
    """The accountant's truncations alone would give 1e-4 for any noise; the search for a tiny target would not end."""
    event = GaussianRelease(0, 9, 1.0, noise, answers, sampling=sampling, rate=rate)
    assert spent([event], delta) <= epsilon_of(math.sqrt(answers) / noise, delta) * (1 + 1e-9)


def test_a_tiny_target_has_a_plan():
    plan = Mbsgd(rounds=4, batch=8).plan(problem(24, 32, epsilon=1e-9, delta=1e-13))
    (event,) = {replace(event, start=0, stop=9) for event in plan.silo_events("s0")}
    assert 0 < spent([event], 1e-13) <= 1e-9 * (1 + 1e-9)


def test_a_charge_bounds_samples_by_full_participation_and_is_exact_in_epsilon():
    events = LocalizedMbsgd(rounds=5, batch=10).plan(problem(200)).silo_events("s0")
    charge = Charge.of(events, 1e-6)
    # Phase 1: 5 answers about 10 of 100, each with mu = 2 C / (K sigma).
    first = events[0]
    assert (first.sampling, first.rate, first.count) == ("poisson", 0.1, 5)
    assert charge.mu_squared == pytest.approx(5 * (0.2 * (1 + 1e-6) / first.sigma) ** 2, rel=1e-12)
    assert 0.999 < charge.epsilon <= 1.0
    assert epsilon_of(math.sqrt(charge.mu_squared), 1e-6) > 5.0  # far from tight, and known to be
    assert Cap(1.0, 1e-6, "basic").admits([charge])
    for rule in ("gdp", "rdp"):
        assert not Cap(1.0, 1e-6, rule).admits([charge])
        assert Cap(40.0, 1e-6, rule).admits([charge])
        with_full = [charge, Charge.of([replace(e, sampling="full", rate=1.0) for e in events], 1e-6)]
        assert with_full[0].mu_squared == with_full[1].mu_squared


def test_what_has_no_bound_is_refused():
    event = GaussianRelease(0, 9, 1.0, 1.0, sampling="with-replacement", rate=0.5)
    with pytest.raises(ValueError, match="no bound on mu"):
        worst_mu_squared([event])
    with pytest.raises(ValueError, match="no bound on mu"):
        Charge.of([event], 1e-6)
    assert spent([event], 1e-6) == math.inf


def test_phases_that_only_some_rounds_sample_cost_the_largest():
    full = GaussianRelease(0, 50, 1.0, 8.0, 3)
    sampled = GaussianRelease(50, 90, 1.0, 4.0, 9, sampling="poisson", rate=0.2)
    one = spent([sampled], 1e-6)
    assert spent([full, sampled], 1e-6) == max(one, epsilon_of(math.sqrt(3) / 8, 1e-6))
    overlapping = spent([replace(full, stop=60), sampled], 1e-6)
    assert max(one, epsilon_of(math.sqrt(3) / 8, 1e-6)) < overlapping < one + epsilon_of(math.sqrt(3) / 8, 5e-7)


# Guarded silos


def guarded(folder, model=None, **algorithm):
    made = ExperimentConfig.model_validate(
        {
            "data": {"source": "synthetic", "silos": 2, "records": 50, "features": 4, "test_records": 9},
            "model": model or {},
            "privacy": {"epsilon": 2, "delta": 1e-5, "ledger": "sqlite", "noise": "guarded"},
            "algorithm": {"name": "mbsgd", "rounds": 5, "batch": 15, **algorithm},
        }
    )
    experiment = Experiment.prepare(made, folder / "silos")
    folders = LedgerFolders.below(folder)
    backend = registered(experiment, folders).in_process(folders)
    try:
        backend.open()
    except SiloError:
        backend.close()
        raise
    return experiment, backend


@pytest.mark.usefixtures("policies")
@pytest.mark.parametrize(
    "model", [{}, {"loss": {"name": "hinge"}, "smoothing": {"name": "convolution", "estimate": "sampled"}}]
)
def test_guarded_answers_about_samples_lie_on_a_grid_and_settle(tmp_path, model):
    experiment, backend = guarded(tmp_path, model)
    phase = experiment.plan.phases[0]
    state = experiment.config.algorithm.init(experiment.start())
    for _, releases, _ in rounds(experiment.context, state, backend.ask):
        for release in releases:
            share = phase.by_silo[release.silo]
            grid = Grid.of(share.sigma * share.batch, phase.question.clip, share.n, 5, sampled=True)
            steps = release.payload * share.batch / grid.step
            assert np.abs(steps - np.rint(steps)).max() <= 4e-16 * np.abs(steps).max()
    for account in backend.accounts(experiment.run):
        assert 2 * 0.999 < account.epsilon <= 2
        assert account.epsilon == experiment.plan.silo_epsilon(account.silo)
    backend.close_run(experiment.run)
    backend.close()


@pytest.mark.parametrize("dim", [1, 5, 64, 4096])
@pytest.mark.parametrize("noise", [0.5, 40.0])
def test_rounding_fits_into_each_half_of_a_sampled_sensitivity(dim, noise):
    """A record that joins moves the rounded sum by at most C / step + sqrt(d) steps: within half of what is charged."""
    grid = Grid.of(noise, 1.0, 1000, dim, sampled=True)
    charged = Fraction(1 + 1e-6) * (1 + Fraction(1, 2**20)) * (1 + Fraction(1, 2**37))
    root = Fraction(math.sqrt(dim)) * (1 + Fraction(1, 2**50))
    needed = (Fraction(1 + 1e-6) + root * Fraction(grid.step)) * (1 + Fraction(1, 2**38))
    assert needed <= charged
    assert grid.step <= FINENESS * min(noise, 1 / math.sqrt(dim))
    # With the grid of full batches, where only the move from one record to another counts, a half would be too small.
    coarse = Grid.of(max(noise, 40.0), 1.0, 1000, dim)
    if coarse.step * math.sqrt(dim) > FINENESS:
        assert (Fraction(1 + 1e-6) + root * Fraction(coarse.step)) > charged


@pytest.mark.usefixtures("policies")
def test_a_silo_refuses_a_grid_that_its_plan_does_not_charge_for(tmp_path, monkeypatch):
    """With the grid of full batches: 2^-21 sqrt(5) is more than the 2^-20 that each half has for rounding."""
    real = Grid.of.__func__
    monkeypatch.setattr(
        Grid, "of", classmethod(lambda cls, noise, clip, count, dim, *_: real(cls, noise, clip, count, dim))
    )
    with pytest.raises(SiloError, match="does not charge for rounding"):
        guarded(tmp_path)
