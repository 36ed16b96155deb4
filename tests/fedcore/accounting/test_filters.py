"""Caps: admissions of each rule, against the closed form; a composed epsilon is no stopping rule."""

from __future__ import annotations

import itertools
import math

import pytest

from fedcore.accounting.events import GaussianRelease
from fedcore.accounting.filters import Cap, Charge
from fedcore.accounting.setting import Setting
from fedcore.errors import InputError
from tests.gaussian_curve import delta_by_hand, mu_by_hand


def run(mu: float, delta: float = 1e-6) -> Charge:
    return Charge.of([GaussianRelease(0, 9, 1.0, 1 / mu)], delta)


def admitted(cap: Cap, mu: float) -> int:
    charges: list[Charge] = []
    while cap.admits([*charges, run(mu)]):
        charges.append(run(mu))
        assert len(charges) < 10_000
    return len(charges)


def test_gdp_admits_exactly_what_the_closed_form_allows():
    cap = Cap(3.0, 1e-5)
    count = admitted(cap, 0.1)
    assert delta_by_hand(0.1 * math.sqrt(count), 3.0) <= 1e-5 < delta_by_hand(0.1 * math.sqrt(count + 1), 3.0)


def test_rdp_and_basic_are_more_cautious_than_gdp():
    counts = {rule: admitted(Cap(3.0, 1e-4, rule), 0.1) for rule in ("gdp", "rdp", "basic")}
    assert counts["gdp"] > counts["rdp"] > counts["basic"] >= 1
    assert counts["rdp"] > 0.8 * counts["gdp"]
    # By hand, with the one order that suits this cap: order / 2 * sum mu^2 + conversion <= 3.
    best = max(
        (3 - math.log1p(-1 / order) + math.log(1e-4 * order) / (order - 1)) * 2 / order
        for order in (1 + k / 1000 for k in range(1, 200_000))
    )
    assert counts["rdp"] == pytest.approx(best / 0.01, abs=1.5)


@pytest.mark.parametrize("rule", ["gdp", "rdp", "basic"])
def test_what_is_left_can_be_taken_and_not_more(rule):
    cap, before = Cap(2.0, 1e-4, rule), [run(0.2), run(0.1)]
    left = cap.left(before)
    assert 0 < left < 2
    if rule != "basic":

        def charge(epsilon: float) -> Charge:
            return Charge(mu_by_hand(epsilon, 1e-4) ** 2, epsilon, 1e-4)
    else:

        def charge(epsilon: float) -> Charge:
            return Charge(9.9, epsilon, 1e-6)

    assert cap.admits([*before, charge(left * (1 - 1e-6))]) and not cap.admits([*before, charge(left * (1 + 1e-6))])
    assert cap.left([run(9.0)]) == 0.0


def test_a_run_without_noise_passes_no_cap():
    assert not any(Cap(1e6, 1e-6, rule).admits([Charge(math.inf, math.inf, 1e-7)]) for rule in ("gdp", "rdp", "basic"))


def test_a_run_that_asks_for_the_whole_cap_fits():
    cap = Cap(2.0, 1e-6)
    mu = mu_by_hand(2.0, 1e-6)
    assert cap.admits([run(mu * (1 - 1e-9))]) and not cap.admits([run(mu * (1 + 1e-9))])


def test_stopping_at_a_composed_epsilon_spends_more_than_it_says():
    """Two steps, the second chosen by the first one's outcome. Either choice, taken as a fixed plan, composes to
    (a, d); the adaptive mechanism does not. Privacy losses are enumerated, no accountant is involved."""
    a, d = 1.0, 0.01
    p = math.exp(a) / (1 + math.exp(a))
    flip = [(p, a), (1 - p, -a)]  # randomised response: probability under the first data set, and privacy loss

    def response(b: float) -> list[tuple[float, float]]:
        q = math.exp(b) / (1 + math.exp(b))
        return [(q, b), (1 - q, -b)]

    leak = [(d, math.inf), (1 - d, 0.0)]  # reveals all with probability d, else nothing

    def delta(outcomes: list[tuple[float, float]]) -> float:
        return sum(chance * max(0.0, -math.expm1(a - loss)) for chance, loss in outcomes)

    def together(first, second) -> list[tuple[float, float]]:
        return [(x * y, u + v) for (x, u), (y, v) in itertools.product(first, second)]

    low, high = 0.0, 1.0
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if delta(together(flip, response(middle))) < d else (low, middle)
    other = response(low)
    # As fixed plans both keep to (a, d): a rule that looks at them would let either go on.
    assert delta(together(flip, leak)) == pytest.approx(d) and delta(together(flip, other)) == pytest.approx(d)
    # After a large loss the one, after a small loss the other.
    adaptive = together([flip[0]], other) + together([flip[1]], leak)
    assert delta(adaptive) > 1.2 * d


@pytest.mark.parametrize("wrong", [-1e-300, -1.0, -math.inf, math.nan])
@pytest.mark.parametrize("part", range(3))
def test_no_charge_makes_room_under_a_cap(part, wrong):
    values = [0.5, 1.0, 1e-6]
    values[part] = wrong
    with pytest.raises(ValueError, match=r"^no run costs mu\^2 "):
        Charge(*values)
    assert Charge(0.0, 0.0, 0.0) and Charge(math.inf, math.inf, 1.0)


@pytest.mark.parametrize("wrong", [-1.0, -math.inf, math.nan, math.inf])
def test_a_setting_refuses_noise_and_targets_that_are_none(wrong):
    for sampling in ("full", "poisson", "once"):
        setting = Setting(100, 5, 1e-5, None if sampling == "full" else 10, sampling=sampling)
        for call in (
            setting.epsilon,
            lambda sigma, known=setting: known.rounds_for(1.0, sigma),
            lambda sigma, known=setting: known.honest_sampling(sigma, 0.5),
        ):
            with pytest.raises(InputError, match=r"sigma = .* must be a number, at least 0"):
                call(wrong)
        for call in (setting.sigma, lambda epsilon, known=setting: known.rounds_for(epsilon, 1.0)):
            with pytest.raises(InputError, match=r"epsilon = .* must be a positive number"):
                call(wrong)
        assert setting.epsilon(0.0) == math.inf
