"""The statistic behind released centres and scales: its sensitivity, its sum, its release at a silo."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedcore.accounting.calibration import Budget
from fedcore.accounting.events import mean_sensitivity
from fedcore.algorithms import ColumnMoments
from fedcore.algorithms.statistics.pooled import pooled_noise
from fedcore.data.records import Records
from fedcore.errors import InputError
from fedcore.federation.in_process import InProcess
from fedcore.federation.rounds import RunContext, rounds
from fedcore.ledger.memory import MemoryLedger
from fedcore.mechanisms.grid import Grid, grid_sensitivity
from fedcore.planning.problem import Problem, SiloFacts
from fedcore.planning.sensitivity.column_moments import half_diameter, largest_norm, length, parted, record_bound
from fedcore.silo.agreement import Agreement
from fedcore.silo.answers.column_moments import column_moment_sum
from fedcore.silo.keys import SecretKeys
from fedcore.silo.private_silo import PrivateSilo
from fedcore.silo.site import Site
from tests.gaussian_curve import mu_by_hand

ENTRIES = st.one_of(
    st.sampled_from([-1.0, -0.3222, 0.0, 0.3222, 1.0]),
    st.floats(-1.5, 1.5),
    st.floats(allow_nan=False, allow_infinity=False),
)


def test_in_one_column_a_grid_of_all_pairs_finds_the_proven_constant():
    a, b = np.meshgrid(np.linspace(-1, 1, 2001), np.linspace(-1, 1, 2001))
    square = a**2 + b**2
    ratio = ((a - b) ** 2 + (a**2 - b**2) ** 2)[square > 0] / square[square > 0]
    assert 0.999 * 37 / 16 < ratio.max() <= 37 / 16


@given(st.lists(st.tuples(ENTRIES, ENTRIES), min_size=1, max_size=12))
def test_one_replaced_record_never_moves_the_sum_by_more_than_charged(pairs):
    x, y = np.array(pairs).T
    bound = record_bound(len(pairs))
    rest = np.full((3, len(pairs)), 0.3)
    one, other = (column_moment_sum(np.vstack([rest, record]), bound) for record in (x, y))
    assert np.isfinite(one).all() and np.isfinite(other).all()
    assert np.linalg.norm(one - other) <= 2 * half_diameter(bound) * (1 + 1e-9)
    assert np.linalg.norm(column_moment_sum(x[None], bound)) <= largest_norm(bound) * (1 + 1e-12)


@pytest.mark.parametrize("columns", [400, 1000])
def test_the_worst_pair_comes_to_what_is_charged(columns):
    bound = record_bound(columns)
    each = int(bound**2 / (1 + 0.3222**2))  # columns at an end of the range, in each of the two records
    x = np.zeros(columns)
    x[:each], x[each : 2 * each] = 1.0, -0.3222
    y = np.zeros(columns)
    y[:each], y[each : 2 * each] = -0.3222, 1.0
    moved = np.linalg.norm(column_moment_sum(x[None], bound) - column_moment_sum(y[None], bound))
    assert 0.995 * 2 * half_diameter(bound) < moved <= 2 * half_diameter(bound)


def test_a_record_of_one_column_is_never_shortened_and_of_many_to_half_of_the_largest_norm():
    assert record_bound(1) == 1.0 and record_bound(13) == 2.0
    assert record_bound(10_000) == pytest.approx(math.sqrt(10_000) / 2, rel=2e-4)
    assert all(record_bound(p) <= math.sqrt(p) for p in range(1, 50))


def test_the_sum_is_that_of_cut_records_one_by_one():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((50, 6)) * np.geomspace(0.01, 1e6, 50)[:, None]
    X[4], X[5] = 0.0, [1e308, -1e308, 0, 0, 0, 1e-308]
    bound, expected = record_bound(6), np.zeros(12)
    for row in X:
        u = [min(1.0, max(-1.0, v)) for v in row]
        u = [v * min(1.0, bound / max(math.sqrt(sum(w * w for w in u)), 1e-300)) for v in u]
        expected += [*u, *(v * v for v in u)]
    total = column_moment_sum(X, bound)
    np.testing.assert_allclose(total, expected, rtol=1e-12, atol=1e-14)
    means, squares = parted(total / 50, 6)
    assert (np.abs(means) <= 1).all() and (squares >= 0).all() and (squares <= 1).all()
    with pytest.raises(ValueError, match="moments of 6 columns are 12 numbers"):
        parted(total[1:], 6)


def problem(columns=3, **change):
    method = ColumnMoments(columns)
    values = dict(
        silos=(SiloFacts("a", 40), SiloFacts("b", 90)),
        dim=method.numbers,
        clip=method.half_diameter,
        smoothness=math.inf,
        diameter=math.inf,
        participants=2,
        budget=Budget(1.0, 1e-5),
    )
    return Problem(**{**values, **change})


def test_the_plan_is_one_answer_with_the_closed_formulas_noise():
    plan = ColumnMoments(6).plan(problem(6))
    (phase,) = plan.phases
    assert (phase.rounds, phase.answer, phase.record_bound) == (1, "column-moments", 1.5)
    for share in phase.shares:
        sensitivity = 1.5 * math.sqrt(37 / 8) * (1 + 1e-6) / share.n
        assert share.sigma == pytest.approx(sensitivity / mu_by_hand(1.0, 1e-5), rel=1e-7)
        assert share.epsilon_accounted == pytest.approx(1.0, rel=1e-9) and share.epsilon_accounted <= 1
    pooled = math.hypot(*(share.n * share.sigma for share in phase.shares)) / 130
    assert pooled_noise(plan) == pytest.approx(pooled, rel=1e-12)


@pytest.mark.parametrize("change", [{"dim": 5}, {"clip": 0.5}, {"clip": 9.0}])
def test_a_problem_with_another_sensitivity_or_length_is_refused(change):
    with pytest.raises(InputError, match=r"means and squares of 3 columns are 6 numbers"):
        ColumnMoments(3).plan(problem(**change))


def silo(X, guarded=False, budget=None):
    n, columns = X.shape
    mechanism = "discrete-gaussian" if guarded else "gaussian"
    made = problem(
        columns, silos=(SiloFacts("a", n),), participants=1, budget=budget or Budget(8.0, 1e-5, mechanism=mechanism)
    )
    method = ColumnMoments(columns)
    held = PrivateSilo("a", Records(X, np.ones(n)), SecretKeys(b"k" * 32), MemoryLedger("a"), guarded=guarded)
    plan = method.plan(made)
    backend = InProcess(Site([held]), Agreement("run", made, method, None, plan.digest))
    backend.open()
    ((_, (release,), state),) = rounds(
        RunContext("run", plan, method, b"public"), method.init(np.zeros(length(columns))), backend.ask
    )
    return release, state, plan


@pytest.mark.parametrize("guarded", [False, True])
def test_a_silos_answer_is_its_moments_with_the_planned_noise(guarded):
    X = np.random.default_rng(1).uniform(-0.8, 0.8, (20_000, 5))
    release, state, plan = silo(X, guarded)
    share, phase = plan.phases[0].shares[0], plan.phases[0]
    deviation = (release.payload - column_moment_sum(X, record_bound(5)) / len(X)) / share.sigma
    assert 0.3 < deviation.std() < 2 and np.abs(deviation).max() < 5
    np.testing.assert_array_equal(state.moments, release.payload)
    if guarded:
        norm = largest_norm(record_bound(5))
        grid = Grid.of(share.sigma * share.n, phase.clip, share.n, length(5), norm=norm)
        steps = release.payload * share.n / grid.step
        assert np.abs(steps - np.rint(steps)).max() <= 2e-16 * np.abs(steps).max()
        charged = grid_sensitivity(mean_sensitivity(phase.clip, share.n), grid.step / share.n, length(5))
        assert charged <= phase.event("a", 1).sensitivity


def test_equal_records_of_the_largest_norm_are_answered_by_a_guarded_silo():
    """Of five columns the bound is sqrt(2): two at an end of their range. Their sum is beyond n times the clip."""
    X = np.tile([1.0, -1.0, 0, 0, 0], (50, 1))
    release, _, _ = silo(X, guarded=True)
    assert np.linalg.norm(column_moment_sum(X, record_bound(5))) == pytest.approx(50 * largest_norm(record_bound(5)))
    assert np.isfinite(release.payload).all()


def test_a_record_that_is_not_finite_counts_as_zero():
    X = np.full((50, 3), 0.1)
    X[3, 1], X[4, 0] = np.nan, np.inf
    release, _, _ = silo(X, budget=Budget(None, 1e-5))
    X[3:5] = 0
    np.testing.assert_allclose(release.payload, column_moment_sum(X, record_bound(3)) / 50, rtol=1e-13)
