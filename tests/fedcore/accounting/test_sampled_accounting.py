"""Composition of sampled answers: against the closed form, the specs' tables, and dp-accounting's own composition."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.fft import irfft
from scipy.optimize import brentq

from fedcore.accounting import composition
from fedcore.accounting.composition import spent
from fedcore.accounting.events import GaussianRelease
from fedcore.accounting.gaussian import epsilon_of
from fedcore.accounting.loss_distributions import loss_distribution
from fedcore.accounting.loss_distributions.discrete_losses import Answers
from fedcore.accounting.loss_distributions.loss_curves import SAMPLED
from fedcore.accounting.loss_distributions.loss_distribution import Composed, epsilon_of_curves
from fedcore.accounting.noise_search import noise_cached_in
from fedcore.accounting.setting import Setting
from fedcore.errors import InputError
from fedcore.noise_cache import NoiseFolder


def sampled(sampling, rate, multiplier, rounds, start=0, stop=1000):
    return GaussianRelease(start, stop, 1.0, multiplier, rounds, sampling=sampling, rate=rate)


@pytest.mark.parametrize("sampling", ["poisson", "without-replacement"])
@pytest.mark.parametrize(
    "multiplier, rounds, delta",
    [(20, 1, 1e-6), (10, 50, 1e-12), (100, 10_000, 1e-12), (5, 100, 1e-3), (0.5, 1, 1e-9), (300, 100_000, 1e-8)],
)
def test_a_sample_of_all_records_is_a_full_batch(sampling, multiplier, rounds, delta):
    """dp-accounting's own composition is 0.35 % too low at (100, 10000, 1e-12) on its coarser grid."""
    exact = epsilon_of(math.sqrt(rounds) / multiplier, delta)
    accounted = spent([sampled(sampling, 1.0, multiplier, rounds)], delta)
    assert exact <= accounted <= 1.001 * exact


# Spec dp-scaffold, 5.5: K T steps at sampling rate s, "server PLD" as published with four digits.
SERVER = [
    (0.2, 60, 20_000, 2.5e-6, 2.030),
    (0.2, 60, 40_000, 2.5e-6, 2.983),
    (0.2, 30, 20_000, 1.25e-5, 4.090),
    (0.2, 30, 5_000, 2.083e-5, 1.803),
]


@pytest.mark.parametrize("rate, multiplier, rounds, delta, stated", SERVER)
def test_fixed_size_batches_cost_what_the_spec_computed(rate, multiplier, rounds, delta, stated):
    assert spent([sampled("without-replacement", rate, multiplier, rounds)], delta) == pytest.approx(stated, rel=2e-3)


# Spec isrl-dp-fl, 7.5: sigma / L at R = 35, n = 1238, delta = 1/n^2, fixed K = 443.
@pytest.mark.parametrize(
    "epsilon, published", [(0.75, 0.0553), (1.5, 0.0297), (3, 0.0164), (6, 0.0095), (12, 0.0058), (18, 0.0045)]
)
def test_noise_of_fixed_size_batches_is_that_of_the_spec(epsilon, published):
    setting = Setting(1238, 35, 1238**-2.0, batch=443, sampling="without-replacement")
    assert setting.sigma(epsilon) == pytest.approx(published, abs=0.6e-4)


@pytest.mark.parametrize(
    "rate, multiplier, rounds", [(0.1, 1.0, 100), (0.3, 5.0, 300), (0.01, 0.7, 1000), (0.5, 20.0, 50)]
)
def test_poisson_agrees_with_the_library_where_its_rounding_does_not_show(rate, multiplier, rounds):
    from dp_accounting import NeighboringRelation
    from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism

    one = from_gaussian_mechanism(
        2 * multiplier,
        value_discretization_interval=1e-4,
        sampling_prob=rate,
        neighboring_relation=NeighboringRelation.REPLACE_ONE,
    )
    library = one.self_compose(rounds).get_epsilon_for_delta(1e-5)
    assert spent([sampled("poisson", rate, multiplier, rounds)], 1e-5) == pytest.approx(library, rel=2e-3)


def test_fixed_size_batches_stay_below_the_renyi_bound():
    """dp-accounting's RDP accountant takes the whole replace-one sensitivity (the trap), and is looser."""
    import dp_accounting

    accountant = dp_accounting.rdp.RdpAccountant(neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE)
    event = dp_accounting.SampledWithoutReplacementDpEvent(1000, 100, dp_accounting.GaussianDpEvent(4.0))
    accountant.compose(event, 200)
    bound = accountant.get_epsilon(1e-6)
    assert 0.3 * bound < spent([sampled("without-replacement", 0.1, 4.0, 200)], 1e-6) < bound


def test_sampled_and_full_answers_add_up_at_the_worst_position():
    one, full = sampled("poisson", 0.2, 3.0, 40), GaussianRelease(0, 500, 1.0, 4.0, 2)
    alone = spent([one], 1e-6)
    both = spent([one, full], 1e-6)
    apart = spent([one, GaussianRelease(1000, 1500, 1.0, 4.0, 2)], 1e-6)
    assert both > alone and apart == pytest.approx(max(alone, epsilon_of(math.sqrt(2) / 4, 1e-6)), rel=1e-9)
    assert both >= spent([sampled("poisson", 0.2, 3.0, 40, 0, 500), full], 1e-6) * (1 - 1e-9)
    halves = [sampled("poisson", 0.2, 3.0, 20), sampled("poisson", 0.2, 3.0, 20)]
    assert spent(halves, 1e-6) == pytest.approx(alone, rel=1e-12)
    # A Gaussian composes with a sample of everything as two Gaussians do.
    mixed = spent([sampled("poisson", 1.0, 3.0, 9), GaussianRelease(0, 1000, 1.0, 4.0, 16)], 1e-6)
    assert mixed == pytest.approx(epsilon_of(math.sqrt(2), 1e-6), rel=1e-3)


def test_what_has_no_sound_accountant_has_no_epsilon():
    assert spent([sampled("with-replacement", 0.1, 50.0, 1)], 1e-5) == math.inf
    assert spent([sampled("poisson", 0.1, 0.0, 1)], 1e-5) == math.inf
    with pytest.raises(InputError, match="no sound accountant"):
        Setting(1000, 10, 1e-6, batch=10, sampling="with-replacement").sigma(1.0)


@pytest.mark.parametrize(
    "sampling, batch", [("full", None), ("once", 20), ("poisson", 50), ("without-replacement", 50)]
)
def test_sigma_epsilon_and_rounds_answer_each_other(sampling, batch):
    setting = Setting(1000, 40, 1e-6, batch=batch, clip=2.0, sampling=sampling)
    sigma = setting.sigma(1.5)
    assert 1.5 * (1 - 1e-3) < setting.epsilon(sigma) <= 1.5
    assert setting.epsilon(sigma * 0.99) > 1.5
    expected = 50 if sampling == "once" else 40
    assert setting.rounds_for(1.5 * (1 + 1e-9), sigma) == expected
    assert setting.rounds_for(1e-4, sigma) == 0


def test_full_batches_need_the_noise_of_the_closed_form():
    """n = 1000, R = 100, epsilon 1, delta 1e-6: mu* = 0.236704 (spec dp-fcrn, section 10), sensitivity 2 / 1000."""
    assert Setting(1000, 100, 1e-6).sigma(1.0) == pytest.approx(0.002 * 10 / 0.236704, rel=5e-6)
    assert Setting(1000, 10, 1e-6, batch=100, sampling="once").sigma(1.0) == pytest.approx(0.02 / 0.236704, rel=5e-6)


@pytest.mark.parametrize(
    "values, sentence",
    [
        ({"n": 0}, "n = 0 must be at least 1"),
        ({"rounds": 0}, "rounds = 0"),
        ({"clip": math.nan}, "clip = nan"),
        ({"delta": 1e-3}, r"delta = 0.001 must be above 0 and below 1/n \(n = 1000\)"),
        ({"batch": 1001, "sampling": "poisson"}, "batch = 1001 must lie between 1 and n = 1000"),
        ({"batch": 10}, "batch = 10 with sampling full must be n = 1000"),
        ({"batch": 10, "rounds": 101, "sampling": "once"}, "101 rounds of 10 records"),
    ],
)
def test_numbers_that_do_not_fit_are_named(values, sentence):
    with pytest.raises(InputError, match=sentence):
        Setting(**{"n": 1000, "rounds": 10, "delta": 1e-6, **values})


def test_a_kept_sigma_is_checked_and_never_believed(tmp_path, monkeypatch):
    folder, setting = tmp_path / "cache", Setting(1000, 50, 1e-6, batch=100, sampling="poisson")

    def sigma(epsilon: float, place: Path = folder) -> float:
        with noise_cached_in(NoiseFolder(place)):
            return setting.sigma(epsilon)

    found = sigma(1.0)
    (path,) = folder.iterdir()
    asked = []
    real = Setting.epsilon
    monkeypatch.setattr(Setting, "epsilon", lambda self, sigma: asked.append(sigma) or real(self, sigma))
    assert sigma(1.0) == found and len(asked) <= 2
    for forged in (found / 2, found * 2, 0.0, math.nan, math.inf, -1.0):
        path.write_text(json.dumps({**json.loads(path.read_text()), "sigma": forged}))
        assert sigma(1.0) == found
    for damaged in ("", "[]", "null", '{"sigma": "x"}'):
        path.write_text(damaged)
        assert sigma(1.0) == found
    assert sigma(1.001) < found and len(list(folder.iterdir())) == 2
    (tmp_path / "file").write_text("")
    assert sigma(1.0, tmp_path / "file") == found
    asked.clear()
    assert setting.sigma(1.0) == found and len(asked) > 2, "a cache was used that nobody handed in"


@pytest.mark.parametrize("change", [{"adjacency": "add-remove"}, {"sensitivity": -1.0}, {"count": 0}, {"stop": 0}])
def test_a_malformed_full_batch_is_refused_beside_samples_too(change):
    with pytest.raises(ValueError, match="no sound accountant is known here"):
        spent([sampled("poisson", 0.1, 5.0, 3), replace(GaussianRelease(0, 1000, 1.0, 4.0), **change)], 1e-6)


def test_losses_with_a_largest_value_do_not_vanish():
    """Randomized response: delta(0) = (e^l - 1) / (1 + e^l), epsilon at most l; the tilt then has no finite best."""
    loss = 0.4

    def curve(epsilon):
        inside = (np.exp(loss) - np.exp(np.minimum(epsilon, loss))) / (1 + np.exp(loss))
        return np.where(epsilon <= -loss, 1 - np.exp(epsilon), np.maximum(inside, 0.0))

    # One answer at delta = 1e-3: (e^l - e^epsilon) / (1 + e^l) = 1e-3.
    by_hand = math.log(math.exp(loss) - 1e-3 * (1 + math.exp(loss)))
    assert by_hand <= epsilon_of_curves([Answers(curve, 1)], 1e-3) <= 1.02 * loss


@pytest.mark.parametrize(
    "sampling, rate, multiplier, delta",
    [
        ("without-replacement", 0.1, 100.0, 1e-7),
        ("without-replacement", 0.107, 178.7, 1.17e-11),
        ("without-replacement", 0.0053, 20.2, 3.8e-12),
        ("without-replacement", 0.3, 2.0, 1e-6),
        ("poisson", 0.05, 159.0, 1e-9),
        ("poisson", 0.07, 65.4, 9.4e-8),
        ("poisson", 0.1, 1.0, 1e-5),
    ],
)
def test_one_answer_has_the_epsilon_of_its_curve(sampling, rate, multiplier, delta):
    """Also where losses are so small that Chernoff's bound on their probability tilts beyond all digits."""
    curve = SAMPLED[sampling](rate, multiplier)
    exact = brentq(lambda epsilon: float(curve(np.array([epsilon]))[0]) - delta, 0, 20, xtol=1e-12)
    assert exact * (1 - 1e-5) <= spent([sampled(sampling, rate, multiplier, 1)], delta) <= exact * 1.01


def test_where_no_transform_can_be_trusted_chernoffs_bound_is_the_answer(monkeypatch):
    event = sampled("without-replacement", 0.2, 5.0, 100)
    exact = spent([event], 1.5e-6)
    monkeypatch.setattr(Composed, "reliable", lambda self, epsilon: False)
    assert exact < spent([replace(event, stop=999)], 1.4999e-6) < 1.1 * exact


@pytest.mark.parametrize("rate, multiplier, answers", [(0.1, 1.0, 100), (0.01, 5.0, 1000), (0.3, 0.8, 3)])
def test_a_composition_without_a_window_is_bounded_by_chernoff(monkeypatch, rate, multiplier, answers):
    event = GaussianRelease(0, 9, 1.0, multiplier, answers, sampling="poisson", rate=rate)
    tight = spent([event], 1e-6)
    monkeypatch.setattr(loss_distribution, "WINDOW", 16)
    composition.at_one_position.cache_clear()
    assert tight <= spent([event], 1e-6) <= 1.2 * tight
    composition.at_one_position.cache_clear()


def test_a_million_answers_with_hardly_any_noise_need_no_gigabytes(monkeypatch):
    sizes = []
    monkeypatch.setattr(loss_distribution, "irfft", lambda spectrum, size: sizes.append(size) or irfft(spectrum, size))
    event = GaussianRelease(0, 24, 1.0, 0.006, 2**20, sampling="poisson", rate=1 / 24)
    assert 1e6 < spent([event], 0.03) < math.inf
    assert max(sizes, default=0) <= 2 * loss_distribution.WINDOW
