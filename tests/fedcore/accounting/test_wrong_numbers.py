"""Invalid numbers of a setting, an event or a curve are refused with a sentence, and never charged as zero."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedcore.accounting.composition import spent, worst_mu_squared
from fedcore.accounting.events import GaussianRelease, mean_sensitivity
from fedcore.accounting.filters import Charge
from fedcore.accounting.gaussian import delta_of, log_delta
from fedcore.accounting.setting import Setting
from fedcore.errors import InputError

SETTING = {"n": 100, "rounds": 5, "delta": 1e-5, "batch": 10, "clip": 1.0, "sampling": "poisson", "local_steps": 1}
EVENT = {"start": 0, "stop": 9, "sensitivity": 1.0, "sigma": 1.0, "count": 2}


@pytest.mark.parametrize("name", ["n", "rounds", "batch", "local_steps"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -1, 0, True, "5", 2.5, 100.0, 10**400, [5]])
def test_a_setting_counts_in_whole_numbers(name, value):
    with pytest.raises(InputError, match=rf"^{name} = .* must be|^batch = .* must lie|^delta = .* must be above 0"):
        Setting(**(SETTING | {name: value}))


@pytest.mark.parametrize("name", ["delta", "clip"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -1, 0, True, "0.1", None, 10**400])
def test_a_setting_has_numbers_for_its_delta_and_clip(name, value):
    with pytest.raises(InputError, match=rf"^{name} = .* must be"):
        Setting(**(SETTING | {name: value}))


@pytest.mark.parametrize("value", ["bogus", None, "Poisson", ""])
def test_a_setting_has_a_sampling_that_there_is(value):
    with pytest.raises(InputError, match=r"there is no sampling .*; there are full, poisson, .*, once"):
        Setting(**(SETTING | {"sampling": value}))


@pytest.mark.parametrize("value", [math.nan, math.inf, -0.1, 0, 1.5, True, "1", None])
@pytest.mark.parametrize("sampling", ["full", "poisson", "once"])
def test_a_setting_takes_part_with_a_probability(sampling, value):
    """Also for disjoint batches, where it changes nothing."""
    setting = Setting(**(SETTING | {"sampling": sampling, "batch": None if sampling == "full" else 10}))
    with pytest.raises(InputError, match=r"^participation = .* must be above 0 and at most 1$"):
        setting.honest_sampling(1.0, value)


@pytest.mark.parametrize("value", ["5", None, True, [1.0], 10**400])
def test_what_is_no_number_is_no_noise_and_no_target(value):
    setting = Setting(**SETTING)
    for call in (setting.epsilon, lambda value: setting.rounds_for(1.0, value)):
        with pytest.raises(InputError, match="must be a number, at least 0"):
            call(value)
    for call in (setting.sigma, lambda value: setting.rounds_for(value, 1.0)):
        with pytest.raises(InputError, match="must be a positive number"):
            call(value)


@pytest.mark.parametrize(
    "change",
    [
        {"sigma": "1"},
        {"sigma": None},
        {"sigma": True},
        {"sensitivity": True},
        {"sensitivity": "1"},
        {"sensitivity": 0.0},
        {"count": 2.5},
        {"count": True},
        {"count": "2"},
        {"count": -3},
        {"count": 0},
        {"start": -5},
        {"start": 0.5},
        {"start": math.nan},
        {"stop": math.inf},
        {"stop": 8.5},
        {"stop": 0},
        {"stop": "9"},
        {"rate": True},
    ],
    ids=str,
)
@pytest.mark.parametrize("sampling", ["full", "poisson", "without-replacement"])
def test_an_event_of_what_is_no_number_has_no_price(sampling, change):
    """Once -5 counted as a position, and 2.5 answers had a price."""
    event = GaussianRelease(**(EVENT | {"sampling": sampling, "rate": 1.0 if sampling == "full" else 0.5} | change))
    for call in (lambda: spent([event], 1e-5), lambda: worst_mu_squared([event]), lambda: Charge.of([event], 1e-5)):
        with pytest.raises(ValueError, match="no sound accountant is known here for the event"):
            call()


def test_noise_that_is_not_a_number_is_none():
    """For samples it once ended in a raw error of the composition."""
    for sampling, rate in (("full", 1.0), ("poisson", 0.5), ("without-replacement", 0.5)):
        event = GaussianRelease(**(EVENT | {"sampling": sampling, "rate": rate, "sigma": math.nan}))
        assert spent([event], 1e-5) == worst_mu_squared([event]) == math.inf
        assert Charge.of([event], 1e-5) == Charge(math.inf, math.inf, 1e-5)


def test_whole_numbers_of_arrays_are_whole_numbers():
    event = GaussianRelease(np.int64(0), np.int64(9), 1.0, np.float64(2.0), np.int32(3))
    assert spent([event], 1e-5) == spent([GaussianRelease(0, 9, 1.0, 2.0, 3)], 1e-5)
    assert Setting(np.int64(100), np.int64(5), 1e-5).epsilon(np.float64(1.0)) == Setting(100, 5, 1e-5).epsilon(1.0)


@pytest.mark.parametrize("mu", [-1.0, -1e-300, -math.inf, math.nan])
def test_a_mu_that_is_none_has_no_curve(mu):
    """A negative epsilon once had delta 0, which no mechanism has."""
    for call in (delta_of, log_delta):
        with pytest.raises(ValueError, match="must be >= 0"):
            call(mu, 1.0)
        with pytest.raises(ValueError, match="a number"):
            call(1.0, math.nan)


@pytest.mark.parametrize(
    "values",
    [
        (-1.0, 10),
        (0.0, 10),
        (math.nan, 10),
        (math.inf, 10),
        (1.0, 0),
        (1.0, -4),
        (1.0, math.nan),
        (1.0, math.inf),
        (1.0, 10, "gaussian", -1.0),
        (1.0, 10, "gaussian", math.nan),
    ],
)
def test_no_sensitivity_is_negative_or_nothing(values):
    with pytest.raises(ValueError, match="no sum changes by"):
        mean_sensitivity(*values)
