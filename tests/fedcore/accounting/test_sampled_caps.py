"""Caps of rule rdp with samples: the number of runs that fit at the account's order, stored charges, refusals."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from fedcore.accounting.divergences.pieces import (
    MOST_KINDS,
    Kind,
    Piece,
    divergence,
    pieces_from,
    pieces_json,
    pieces_of,
)
from fedcore.accounting.divergences.renyi import FORMULA, full, sampled
from fedcore.accounting.events import GaussianRelease
from fedcore.accounting.filters import Cap, Charge, Divergence
from fedcore.errors import InputError

DELTA = 1e-5
RUNS = {  # of epsilon 1 at delta 1e-5: sampling, rate, noise over sensitivity, rounds
    "poisson 0.1": ("poisson", 0.1, 3.728782, 100),
    "poisson 0.01": ("poisson", 0.01, 1.182219, 1000),
    "poisson 0.5": ("poisson", 0.5, 13.18762, 50),
    "full": ("full", 1.0, 23.59459, 40),
    "fixed 0.1": ("without-replacement", 0.1, 4.113473, 100),
    "fixed 0.01": ("without-replacement", 0.01, 1.587617, 1000),
    "fixed 0.5": ("without-replacement", 0.5, 13.41023, 50),
}


def charge(name: str) -> Charge:
    """`Charge.of` with a composed epsilon of 1, for which the noise was calibrated."""
    sampling, rate, multiplier, rounds = RUNS[name]
    event = GaussianRelease(0, 1000, 1.0, multiplier, rounds, sampling=sampling, rate=rate)
    return Charge(event.gdp_mu_squared, 1.0, DELTA, pieces_of([event]))


def fits(cap: Cap, one: Charge, order: float | None = None) -> int:
    count = 0
    while cap.admits([one] * (count + 1), order):
        count += 1
        assert count < 1000
    return count


@pytest.mark.parametrize(
    "name, of_eight, of_four, as_full",
    [
        ("poisson 0.1", 34, 10, 0),
        ("poisson 0.01", 34, 10, 0),
        ("poisson 0.5", 34, 10, 8),
        ("full", 34, 10, 34),
        ("fixed 0.1", 34, 10, 0),
        ("fixed 0.01", 34, 10, 0),
        ("fixed 0.5", 34, 10, 8),
    ],
)
def test_runs_that_fit(name, of_eight, of_four, as_full):
    """Numbers of runs that fit a cap; `as_full`: the number if a sample counted as all records."""
    one = charge(name)
    assert fits(Cap(8.0, DELTA, "rdp"), one) == of_eight and fits(Cap(4.0, DELTA, "rdp"), one) == of_four
    assert fits(Cap(8.0, DELTA, "rdp"), replace(one, pieces=())) == as_full
    # gdp is what it was: 38 full batches, and of samples what fitted before or little more.
    expected = {34: 38, 8: 9, 0: 0}[as_full]
    assert fits(Cap(8.0, DELTA, "gdp"), one) == expected
    room, cost = Cap(8.0, DELTA).room(Cap(8.0, DELTA).order), one.rho(Cap(8.0, DELTA).order)
    share = {
        "poisson 0.1": 34.24,
        "poisson 0.01": 34.25,
        "poisson 0.5": 34.22,
        "full": 34.22,
        "fixed 0.1": 34.70,
        "fixed 0.01": 34.56,
        "fixed 0.5": 34.34,
    }[name]
    assert share <= room / cost < share + 0.01


def test_an_order_that_is_kept_when_the_cap_is_raised_or_has_another_delta():
    small, large, one = Cap(4.0, DELTA, "rdp"), Cap(8.0, DELTA, "rdp"), charge("full")
    assert fits(large, one, small.order) == 28 and fits(small, one, large.order) == 5
    assert fits(large, one) == 34 and fits(small, one) == 10
    for delta, kept, own in ((1e-6, 28, 29), (1e-4, 40, 41)):
        other = Cap(8.0, delta, "rdp")
        assert fits(other, one, large.order) == kept and fits(other, one) == own


def test_what_a_run_costs_is_the_largest_over_positions_of_a_sum():
    """Two blocks apart and one answer about both, in sum by hand at one order."""
    order = 3.5
    first = GaussianRelease(0, 50, 1.0, 4.0, 7, sampling="poisson", rate=0.2)
    second = GaussianRelease(50, 90, 1.0, 9.0, 3)
    both = GaussianRelease(40, 60, 2.0, 30.0, 2, sampling="without-replacement", rate=0.25)
    a = 7 * sampled(order, "poisson", 0.2, 4.0)
    b, c = order / 2 * 3 / 81, 2 * sampled(order, "without-replacement", 0.25, 15.0)
    found = divergence(pieces_of([first, second, both]), order)
    assert max(a, b, a + c, b + c) <= found <= max(a, b, a + c, b + c) * (1 + 1e-9)
    assert divergence(pieces_of([first, second]), order) == pytest.approx(max(a, b), rel=1e-9)
    twice = divergence(pieces_of([first, first, second]), order)
    assert twice == pytest.approx(max(2 * a, b), rel=1e-9)


def test_a_piece_that_another_one_covers_is_not_kept_and_many_become_one_above_all():
    base = GaussianRelease(0, 10, 1.0, 4.0, 5, sampling="poisson", rate=0.1)
    assert len(pieces_of([base, replace(base, start=10, stop=20, count=4)])) == 1
    apart = [replace(base, start=k, stop=k + 1, rate=0.1 + k / 1000) for k in range(70)]
    (joined,) = pieces_of(apart)
    assert len(joined.kinds) == 70  # none of them covers another: one that has all of them is above each
    assert joined.divergence(3.0) >= max(piece.divergence(3.0) for each in apart for piece in pieces_of([each]))
    many = [replace(base, rate=0.1 + k / 10_000) for k in range(MOST_KINDS + 1)]
    assert pieces_of(many) == ()  # counted as all records each time


def test_full_batches_and_runs_without_noise_need_no_pieces():
    event = GaussianRelease(0, 9, 1.0, 2.0, 3)
    assert pieces_of([event]) == pieces_of([]) == ()
    bare = replace(event, sigma=0.0, sampling="poisson", rate=0.5)
    assert pieces_of([bare]) == () and Charge.of([bare], DELTA).rho(2.0) == math.inf
    assert Charge.of([event], DELTA).rho(2.5) == full(2.5, 0.75)
    with pytest.raises(ValueError, match="no bound is known"):
        pieces_of([replace(event, sampling="with-replacement", rate=0.5)])
    for wrong in (replace(event, sampling="poisson", rate=0.5, sigma=math.nan), replace(event, sigma=math.nan)):
        assert pieces_of([wrong]) == ()


def test_a_charge_is_read_back_as_it_was_written():
    kept = Charge.of([GaussianRelease(0, 9, 1.0, 3.3, 4, sampling="poisson", rate=0.3)], DELTA)
    for each in (kept, kept.at(2.7), replace(kept, pieces=()), Charge(math.inf, math.inf, DELTA)):
        assert Charge.from_json(json.loads(json.dumps(each.json))) == each
    assert set(replace(kept, pieces=()).json) == {"mu_squared", "epsilon", "delta"}  # as earlier versions had it
    assert pieces_from(json.loads(json.dumps(pieces_json(kept.pieces)))) == kept.pieces


@pytest.mark.parametrize(
    "change",
    [
        {"rho": -1e-9},
        {"rho": math.nan},
        {"rho": "0.1"},
        {"order": 1.0},
        {"order": 0.5},
        {"order": math.nan},
        {"order": math.inf},
        {"order": "2.7"},
        {"formula": 0},
        {"formula": 1.0},
        {"formula": True},
        {"formula": None},
        {"surplus": 1},
        {"mu_squared": -1.0},
        {"epsilon": "1"},
        {"delta": math.nan},
        {"delta": True},
        {"pieces": [[-1.0, []]]},
        {"pieces": [[math.nan, []]]},
        {"pieces": [[0.0, [["poisson", 0.0, 1.0, 1]]]]},
        {"pieces": [[0.0, [["poisson", 0.1, math.nan, 1]]]]},
        {"pieces": [[0.0, [["poisson", 0.1, 1.0, 0]]]]},
        {"pieces": [[0.0, [["poisson", 0.1, 1.0, -4]]]]},
        {"pieces": [[0.0, [["poisson", 0.1, 1.0, 1.5]]]]},
        {"pieces": [[0.0, [["with-replacement", 0.1, 1.0, 1]]]]},
        {"pieces": [[0.0, [["poisson", 0.1, 1.0]]]]},
        {"pieces": [[0.0, [["poisson", 0.1, 1.0, 1], ["poisson", 0.1, 1.0, 1]]]]},
        {"pieces": 7},
        {"pieces": [[0.0]]},
    ],
)
def test_what_is_no_charge_is_not_read(change):
    kept = Charge.of([GaussianRelease(0, 9, 1.0, 3.3, 4, sampling="poisson", rate=0.3)], DELTA).at(2.7)
    with pytest.raises((ValueError, TypeError)):
        Charge.from_json(json.loads(json.dumps(kept.json | change)))
    with pytest.raises(KeyError):
        Charge.from_json({key: value for key, value in kept.json.items() if key != "rho"})


def test_what_was_charged_counts_at_its_order_and_anew_at_another():
    one = charge("poisson 0.1")
    kept = replace(one, divergence=Divergence(3.0, 0.5))
    assert kept.rho(3.0) == 0.5 and kept.rho(4.0) == one.rho(4.0)
    assert kept.at(4.0).divergence == Divergence(4.0, one.rho(4.0), FORMULA) and kept.at(None) is kept
    assert replace(kept, pieces=()).rho(4.0) == full(4.0, one.mu_squared)  # without pieces: bounded as full batches


def test_a_charge_by_a_newer_formula_passes_no_cap_of_its_rule():
    newer = replace(charge("full"), mu_squared=1e-9, divergence=Divergence(2.0, 0.0, FORMULA + 1))
    assert newer.rho(2.0) == newer.rho(3.0) == math.inf and newer.at(2.0).rho(2.0) == math.inf
    assert not Cap(1e6, DELTA, "rdp").admits([newer], 2.0) and Cap(1e6, DELTA, "rdp").left([newer], 2.0) == 0.0
    assert Cap(8.0, DELTA, "gdp").admits([newer])  # its mu^2 is valid on its own


@pytest.mark.parametrize(
    "values",
    [
        (math.nan, DELTA, "gdp"),
        (-8.0, DELTA, "gdp"),
        (0.0, DELTA, "rdp"),
        (math.inf, DELTA, "gdp"),
        ("8", DELTA, "gdp"),
        (True, DELTA, "gdp"),
        (None, DELTA, "gdp"),
        (8.0, math.nan, "gdp"),
        (8.0, 0.0, "basic"),
        (8.0, 1.0, "gdp"),
        (8.0, -DELTA, "rdp"),
        (8.0, "1e-5", "rdp"),
        (8.0, DELTA, "pld"),
        (8.0, DELTA, None),
        (8.0, DELTA, "GDP"),
    ],
)
def test_no_cap_is_made_of_what_is_none(values):
    with pytest.raises(InputError, match=r"^cap: (epsilon|delta) = |^cap: there is no rule"):
        Cap(*values)


@pytest.mark.parametrize("order", [1.0, 0.0, -2.0, math.nan, math.inf, "3"])
def test_a_cap_counts_at_no_order_that_is_none(order):
    cap, one = Cap(8.0, DELTA, "rdp"), charge("poisson 0.5")
    for call in (lambda: cap.admits([one], order), lambda: cap.left([one], order), lambda: cap.room(order)):
        with pytest.raises(ValueError, match="is no order"):
            call()


def test_a_piece_and_a_kind_refuse_truth_values():
    for make in (
        lambda: Kind("poisson", True, 1.0, 1),
        lambda: Kind("poisson", 0.5, 1.0, True),
        lambda: Piece(True, ()),
    ):
        with pytest.raises(ValueError, match=r"^no answers"):
            make()
