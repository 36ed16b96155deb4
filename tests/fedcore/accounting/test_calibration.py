"""Budgets and the published formulas: by hand, by the spec's tables, and never above the target they claim."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedcore.accounting.calibration import Budget, paper_formula
from fedcore.accounting.composition import spent
from fedcore.accounting.events import GaussianRelease
from fedcore.accounting.gaussian import epsilon_of
from fedcore.algorithms import Fedavg, LocalizedAccelerated, LocalizedMbsgd, Mbsgd, OnePassMbsgd
from fedcore.errors import InputError
from fedcore.planning.problem import SiloFacts
from fedcore.planning.theorems.localization import growth_exponent, phase_count, rounds_of, shards
from tests.gaussian_curve import mu_by_hand
from tests.problems import problem_of

# Spec localized-isrl-dp, section 4: `n = 256, N = M = 16, d = 20, L = 1, beta = 0.25, D = 4, eps = 2, delta = 1e-5`.
# Columns: `i, n_i, lambda_i, D_i, R_i (Delta = L D), sigma_i^2 published, sigma_i exact, R_i (tight Delta)`.
TABLE = """
1 128 0.00390625 512 55 43.1032 0.231039 55
2 64 0.03125 64 23 68.2755 0.298812 23
3 32 0.25 8 12 136.532 0.431673 11
4 16 2 1 10 449.544 0.788124 7
5 8 16 0.125 10 1798.17 1.57625 5
6 4 128 0.015625 11 7963.16 3.30636 4
7 2 1024 0.00195312 11 31852.6 6.61273 2
8 1 8192 0.000244141 12 139809 13.8135 1
"""
ROWS = [line.split() for line in TABLE.split("\n") if line]


def problem(n=256, silos=16, epsilon=2.0, delta=1e-5, calibration="exact", **changes):
    sizes = [n] * silos if isinstance(n, int) else n
    values = {"dim": 20, "clip": 1.0, "smoothness": 0.25, "diameter": 4.0, "participants": len(sizes)} | changes
    facts = tuple(SiloFacts(f"s{i}", size) for i, size in enumerate(sizes))
    return problem_of(facts, budget=Budget(epsilon, delta, calibration), **values)


def digits(text):
    """Half a unit of the last published digit, relative."""
    mantissa = text.split("e")[0]
    places = len(mantissa.partition(".")[2])
    return 0.5 * 10.0**-places / float(text)


@pytest.mark.parametrize("gap", ["paper", "tight"])
def test_phase_table_of_the_spec(gap):
    plan = LocalizedAccelerated(gap=gap).plan(problem())
    published = LocalizedAccelerated(gap=gap).plan(problem(calibration="paper"))
    assert len(plan.phases) == len(ROWS) == 8
    for row, phase, paper in zip(ROWS, plan.phases, published.phases, strict=True):
        index, n, lam, radius, rounds, variance, sigma, tight_rounds = row
        assert (phase.index, phase.n, phase.batch) == (int(index), int(n), int(n))
        assert phase.subproblem.lam == float(lam)
        assert phase.subproblem.radius == pytest.approx(float(radius), rel=1e-5)
        assert phase.rounds == int(tight_rounds if gap == "tight" else rounds)
        if gap == "paper":
            # All sensitivities carry the documented slack of 1e-6 for rounding.
            assert phase.sigma / (1 + 1e-6) == pytest.approx(float(sigma), rel=digits(sigma))
            assert paper.sigma**2 == pytest.approx(float(variance), rel=digits(variance))
        assert sum(stage[0] for stage in phase.settings["stages"]) == phase.rounds


def test_localized_mbsgd_has_the_same_schedule():
    ours, theirs = LocalizedMbsgd().plan(problem()), LocalizedAccelerated().plan(problem())
    for a, b in zip(ours.phases, theirs.phases, strict=True):
        assert (a.n, a.rounds, a.subproblem.lam, a.subproblem.radius, a.sigma) == (
            b.n,
            b.rounds,
            b.subproblem.lam,
            b.subproblem.radius,
            b.sigma,
        )
        assert a.settings["step"] == pytest.approx(4.0 / (1 + 4.0 * a.subproblem.lam), rel=1e-14)


def test_base_weight_by_hand():
    # sqrt(d ln(1/delta)) / eps = sqrt(20 * 11.51...) / 0.5 = 30.35 beats sqrt(256) = 16.
    (phase,) = LocalizedMbsgd(max_phases=1).plan(problem(epsilon=0.5)).phases
    assert phase.subproblem.lam == pytest.approx(math.sqrt(20 * math.log(1e5)) / 0.5 / (4 * 256 * 4), rel=1e-14)
    (phase,) = LocalizedMbsgd(max_phases=1).plan(problem(epsilon=None)).phases
    assert phase.subproblem.lam == pytest.approx(16 / (4 * 256 * 4), rel=1e-14)


def test_participation_adds_the_subsampling_rounds():
    # M < N: at least eps^2 n_i / (d ln(1/delta)) rounds; eps = 60, n_1 = 128, d = 2.
    (phase,) = LocalizedMbsgd(max_phases=1, lam=1e3).plan(problem(epsilon=60.0, dim=2, participants=8)).phases
    assert phase.rounds == math.ceil(3600 * 128 / (2 * math.log(1e5)))
    (phase,) = LocalizedMbsgd(max_phases=1, lam=1e3).plan(problem(epsilon=60.0, dim=2)).phases
    assert phase.rounds < 40


def test_schedule_helpers():
    assert [phase_count(n) for n in (2, 3, 4, 255, 256, 257)] == [1, 1, 2, 7, 8, 8]
    assert growth_exponent(256, 16) == 3.0
    assert growth_exponent(2, 2**10) == pytest.approx(6.0, rel=1e-14)  # M > n^4
    assert [rounds_of((5, 3), i) for i in (1, 2, 3)] == [5, 3, 3]
    assert rounds_of(7, 4) == 7 and rounds_of(None, 1) is None
    # Example of the spec: n = 100 gives 50, 25, 12, 6, 3, 1 with three records unused.
    unequal = problem(n=[100, 256])
    found = [shards(unequal, i) for i in range(1, 7)]
    assert [p["s0"] for p in found] == [(0, 50), (50, 25), (75, 12), (87, 6), (93, 3), (96, 1)]
    assert [p["s1"] for p in found] == [(0, 128), (128, 64), (192, 32), (224, 16), (240, 8), (248, 4)]
    plan = LocalizedMbsgd().plan(unequal)
    assert [phase.n for phase in plan.phases] == [50, 25, 12, 6, 3, 1]
    assert all(phase.sigma == phase.by_silo["s0"].sigma > phase.by_silo["s1"].sigma for phase in plan.phases)


@given(st.integers(2, 5000))
def test_pieces_never_overlap_and_leave_the_ones_of_n_in_binary(n):
    facts = problem(n=[n])
    end = 0
    for i in range(1, phase_count(n) + 1):
        start, size = shards(facts, i)["s0"]
        assert start == end and size >= 1
        end = start + size
    assert n - end == bin(n).count("1")


# Noise by hand


@pytest.mark.parametrize("epsilon, delta", [(0.5, 1e-5), (2.0, 1e-5), (6.0, 1e-4)])
def test_exact_sigma_by_hand(epsilon, delta):
    mu = mu_by_hand(epsilon, delta)
    whole = Mbsgd(rounds=30).plan(problem(epsilon=epsilon, delta=delta, clip=0.5)).phases[0]
    assert whole.sigma == pytest.approx(2 * 0.5 * math.sqrt(30) / (256 * mu), rel=3e-6)
    blocks = OnePassMbsgd(rounds=10).plan(problem(epsilon=epsilon, delta=delta, clip=0.5)).phases[0]
    assert (blocks.batch, blocks.rounds) == (25, 10)
    assert blocks.sigma == pytest.approx(2 * 0.5 / (25 * mu), rel=3e-6)  # each record is in one answer only


def test_printed_sigmas_by_hand():
    budget = Budget(1.5, 1e-6, "paper")
    multi = 256 * 0.5**2 * 30 * math.log(2.5 * 30 / 1e-6) * math.log(2 / 1e-6) / (200**2 * 1.5**2)
    assert budget.sigma("multi-pass", 0.5, 200, 30, 200) ** 2 == pytest.approx(multi, rel=1e-13)
    one = 32 * 0.5**2 * math.log(1.25 / 1e-6) / (20**2 * 1.5**2)
    assert budget.sigma("one-pass", 0.5, 20, 10, 200) ** 2 == pytest.approx(one, rel=1e-13)
    assert paper_formula("one-pass", 0.5, 20, 10, 1e-6).epsilon(math.sqrt(one)) == pytest.approx(1.5, rel=1e-13)
    assert paper_formula("one-pass", 0.5, 20, 10, 1e-6).epsilon(0.0) == math.inf


EXPERIMENTS = {
    0.75: (0.06801, 0.05388),
    1.5: (0.03401, 0.02830),
    3: (0.01700, 0.01501),
    6: (0.00850, 0.00811),
    12: (0.00425, 0.00450),
    18: (0.00283, 0.00325),
}
"""By epsilon, sigma / L of the experiments' formula and the exact one, for full batches: table 7.5 of the spec."""


@pytest.mark.parametrize("epsilon", EXPERIMENTS)
def test_the_experiments_formula_has_its_own_name_and_its_plan_says_what_it_spends(epsilon):
    asked = problem(n=[1238], epsilon=epsilon, delta=1238**-2, calibration="experiments")
    plan, (printed, exact) = Mbsgd(rounds=35).plan(asked), EXPERIMENTS[epsilon]
    sigma = plan.phases[0].sigma
    assert sigma == pytest.approx(printed, abs=6e-6)
    assert sigma**2 == pytest.approx(8 * 35 * math.log(1238**2) / (1238 * epsilon) ** 2, rel=1e-12)
    assert plan.problem.budget.epsilon == epsilon
    assert plan.epsilon_accounted == pytest.approx(epsilon_of(2 * math.sqrt(35) / 1238 / sigma, 1238**-2), rel=1e-5)
    assert (plan.epsilon_accounted > epsilon) == (printed < exact) == (epsilon > 6)
    sampled = Mbsgd(rounds=35, batch=700).plan(asked).phases[0]
    assert sampled.sigma == sigma  # K cancels


def test_the_experiments_formula_is_refused_where_it_is_not_stated():
    asked = problem(n=[1238], epsilon=1.0, delta=1e-7, calibration="experiments")
    with pytest.raises(InputError, match=r"calibration = experiments is a formula for several passes, not for fresh"):
        OnePassMbsgd(rounds=5).plan(asked)
    with pytest.raises(InputError, match=r"calibration = experiments is a formula for minibatch SGD, without a proof"):
        Fedavg(rounds=5, local_steps=2).plan(asked)
    with pytest.raises(InputError, match=r"privacy\.epsilon = 3 is outside"):  # 4 R (K/n)^2 = 140 / 100
        Mbsgd(rounds=35, batch=124).plan(problem(n=[1240], epsilon=3.0, delta=1e-7, calibration="experiments"))


def test_printed_constants_are_about_thirty_times_too_large():
    published, exact = (Mbsgd(rounds=20).plan(problem(epsilon=1.0, calibration=c)) for c in ("paper", "exact"))
    assert 29 <= published.phases[0].sigma / exact.phases[0].sigma <= 34
    assert published.epsilon_accounted == pytest.approx(0.025, abs=0.005)
    assert published.epsilon_paper == pytest.approx(1.0, rel=1e-12)
    assert exact.epsilon_paper > 29  # what the published formula would claim for the noise that is really needed


schedules = st.sampled_from(["multi-pass", "one-pass"])


@given(st.floats(-2, 1), st.floats(-12, -2), st.integers(1, 500), st.integers(1, 400), schedules)
def test_a_printed_formula_never_spends_more_than_it_claims(share, log_delta, rounds, batch, schedule):
    delta = 10**log_delta
    formula = paper_formula(schedule, 1.0, batch, rounds, delta)
    epsilon = formula.limit * 10 ** min(share, 0.0)
    answers = rounds if schedule == "multi-pass" else 1
    mu = 2.0 / batch / formula.sigma(epsilon) * math.sqrt(answers)
    assert epsilon_of(mu, delta) <= epsilon


def test_range_of_the_printed_formulas():
    delta = 1e-5
    cases = [("multi-pass", 100, 2 * math.log(2 / delta)), ("one-pass", 3, 8 * math.log(1 / delta))]
    # One round: K >= eps n / (4 sqrt(2 R ln(2/delta))) with K = n is the narrower limit.
    cases.append(("multi-pass", 1, 4 * math.sqrt(2 * math.log(2 / delta))))
    for schedule, rounds, limit in cases:
        formula = paper_formula(schedule, 1.0, 50, rounds, delta)
        assert formula.sigma(limit * (1 - 1e-12)) > 0
        for outside in (limit * (1 + 1e-9), 0.0, -1.0, math.nan):
            with pytest.raises(InputError, match=r"^privacy\.epsilon = .* is outside the range"):
                formula.sigma(outside)


@given(st.floats(0.01, 50), st.integers(2, 1000), st.integers(1, 300))
def test_calibrate_then_account_returns_epsilon(epsilon, n, rounds):
    budget = Budget(epsilon, None)
    sigma = budget.sigma("multi-pass", 2.0, n, rounds, n)
    accounted = spent([GaussianRelease(0, n, 4.0 * (1 + 1e-6) / n, sigma, rounds)], budget.delta(n))
    assert accounted == pytest.approx(epsilon, rel=1e-9) and accounted <= epsilon * (1 + 1e-11)


@given(st.floats(0.02, 20), st.floats(1e-6, 1), st.integers(1, 99), st.integers(1, 99))
def test_noise_is_monotone(e_a, more, r_a, further):
    e_b, r_b = e_a * (1 + more), r_a + further

    def sigma(epsilon, rounds, batch=50, delta=1e-5):
        return Budget(epsilon, delta).sigma("multi-pass", 1.0, batch, rounds, 100)

    assert sigma(e_a, r_a) > sigma(e_b, r_a)
    assert sigma(e_a, r_a) < sigma(e_a, r_b)
    assert sigma(e_a, r_a) < sigma(e_a, r_a, batch=49)
    assert sigma(e_a, r_a) < sigma(e_a, r_a, delta=1e-6)


def test_budget_of_each_silo():
    own = Budget(1.0)
    assert own.delta(10) == 0.01 and own.delta(100) == 1e-4
    own.check("a", 2)
    for wrong in (Budget(1.0, 0.1), Budget(1.0, 0.5)):
        with pytest.raises(InputError, match=r"privacy\.delta = .* silo north \(n = 10 records\)"):
            wrong.check("north", 10)
    Budget(1.0, 0.099).check("north", 10)
    none = Budget(None, 0.5)
    none.check("north", 10)
    assert not none.private and none.sigma("multi-pass", 1.0, 5, 5, 5) == 0.0
    plan = Mbsgd().plan(problem(epsilon=None))
    assert plan.epsilon_accounted == math.inf
    totals = plan.as_json()["totals"]
    assert (totals["epsilon_accounted"], totals["epsilon_target"], totals["calibration"]) == (None, None, "none")


def test_one_pass_needs_a_record_for_each_round():
    with pytest.raises(InputError, match=r"silo s1: 7 records .* algorithm\.rounds = 8 .* at most 7"):
        OnePassMbsgd(rounds=8).plan(problem(n=[9, 7]))
