"""Monotonicity of accountants: epsilon never falls when more is revealed. For every scheme, one argument at a time.

Quick with fixed examples; `make slow` searches with a fresh seed. Upper bounds by discretised loss distributions are up
to 0.2 % above the truth, by varying amounts. So they are monotone only up to 0.2 %.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st

from fedcore.accounting.composition import spent, worst_mu_squared
from fedcore.accounting.events import GaussianRelease
from fedcore.accounting.filters import Cap, Charge
from tests.fuzzing import fuzz_seed

SCHEMES = ("full", "poisson", "without-replacement")
SLACK, LEAST = 3e-3, 1e-6
N = 1000


@st.composite
def events(draw, sampling: str) -> GaussianRelease:
    rate = 1.0 if sampling == "full" else draw(st.integers(1, N - 1)) / N
    return GaussianRelease(
        0,
        N,
        draw(st.floats(1e-3, 10.0)),
        draw(st.floats(0.05, 50.0)),
        draw(st.integers(1, 60)),
        sampling=sampling,
        rate=rate,
    )


DELTAS = st.floats(-12, -3).map(lambda power: 10.0**power)
FACTORS = st.floats(1.01, 3.0)
REVEALS_MORE: dict[str, Callable[[GaussianRelease, float], GaussianRelease]] = {
    "less noise": lambda event, factor: replace(event, sigma=event.sigma / factor),
    "a larger sensitivity": lambda event, factor: replace(event, sensitivity=event.sensitivity * factor),
    "more answers": lambda event, factor: replace(event, count=math.ceil(event.count * factor)),
    "larger samples": lambda event, factor: replace(event, rate=min((N - 1) / N, round(event.rate * factor * N) / N)),
    "all records": lambda event, factor: replace(event, sampling="full", rate=1.0),
}


def not_less(more: float, less: float) -> bool:
    return more >= less * (1 - SLACK) - LEAST or math.isinf(more)


def monotone(sampling: str, change: str, examples: int, number: int | None) -> None:
    @given(events(sampling), DELTAS, FACTORS)
    def holds(event, delta, factor):
        if sampling == "full" and change == "larger samples":
            return
        before, after = spent([event], delta), spent([REVEALS_MORE[change](event, factor)], delta)
        assert not_less(after, before), f"{change}: {before} became {after}"

    search = settings(max_examples=examples, derandomize=number is None, database=None, deadline=None)(holds)
    (search if number is None else seed(number)(search))()


@pytest.mark.parametrize("change", REVEALS_MORE)
@pytest.mark.parametrize("sampling", SCHEMES)
def test_epsilon_does_not_fall_where_more_is_revealed(sampling, change):
    monotone(sampling, change, 8, None)


@pytest.mark.minutes
@pytest.mark.parametrize("change", REVEALS_MORE)
@pytest.mark.parametrize("sampling", SCHEMES)
def test_epsilon_does_not_fall_where_more_is_revealed_at_length(sampling, change):
    monotone(sampling, change, 60, fuzz_seed())


@pytest.mark.parametrize("sampling", SCHEMES)
def test_a_smaller_delta_costs_a_larger_epsilon(sampling):
    @settings(max_examples=8)
    @given(events(sampling), DELTAS, st.floats(1.5, 1e4))
    def holds(event, delta, factor):
        assert not_less(spent([event], delta / factor), spent([event], delta))

    holds()


@pytest.mark.parametrize("first", SCHEMES)
@pytest.mark.parametrize("second", SCHEMES)
def test_another_event_on_the_same_records_adds_and_elsewhere_does_not(first, second):
    @settings(max_examples=5)
    @given(events(first), events(second), DELTAS)
    def holds(one, other, delta):
        alone = max(spent([one], delta), spent([other], delta))
        assert not_less(spent([one, other], delta), alone)
        apart = replace(other, start=N, stop=2 * N)
        assert spent([one, apart], delta) == pytest.approx(alone, rel=SLACK, abs=LEAST)

    holds()


@pytest.mark.parametrize("sampling", SCHEMES)
def test_an_event_of_many_answers_is_that_many_events(sampling):
    @settings(max_examples=6)
    @given(events(sampling), DELTAS)
    def holds(event, delta):
        parts = [replace(event, count=1)] * event.count
        assert spent(parts, delta) == pytest.approx(spent([event], delta), rel=SLACK, abs=LEAST)
        assert worst_mu_squared(parts) == pytest.approx(worst_mu_squared([event]), rel=1e-9)

    holds()


@pytest.mark.parametrize("rule", ["gdp", "rdp", "basic"])
@settings(max_examples=40)
@given(st.lists(st.tuples(st.floats(1e-4, 4.0), st.floats(1e-3, 8.0)), min_size=1, max_size=6), st.floats(0.1, 20.0))
def test_a_cap_that_refuses_charges_refuses_more_of_them(rule, pairs, epsilon):
    cap = Cap(epsilon, 1e-3, rule)
    charges = [Charge(mu_squared, charged, 1e-6) for mu_squared, charged in pairs]
    admitted = [cap.admits(charges[:many]) for many in range(1, len(charges) + 1)]
    assert admitted == sorted(admitted, reverse=True)
    if admitted[-1]:
        assert cap.admits(charges[::-1])
