"""Choices of the theorems on minibatch SGD, against a second computation from their text and numbers by hand."""

import dataclasses
import math

import numpy as np
import pytest

from fedcore.accounting.calibration import Budget
from fedcore.algorithms import AcceleratedMbsgd, Mbsgd, OnePassAcceleratedMbsgd, OnePassMbsgd
from fedcore.configfile.reading import validated
from fedcore.errors import InputError
from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.experiment import make_plan
from fedcore.losses import Logistic
from fedcore.planning.batches import least_records, minibatch_sgd_batch, one_pass_batch
from fedcore.planning.participation import Participation
from fedcore.planning.problem import SiloFacts
from fedcore.planning.theorems.minibatch import (
    Rates,
    accelerated_batch,
    accelerated_rounds,
    least_rounds,
    sgd_batch,
    sgd_rounds,
)
from fedcore.planning.theorems.noise_level import NoiseLevel, level_of, switch
from fedcore.silo.agreement import terms
from tests.problems import problem_of


def problem(n=1000, N=16, M=None, d=20, epsilon=1.0, delta=1e-6, L=1.0, beta=1.0, D=2.0, mu=0.0, **more):
    sizes = n if isinstance(n, tuple) else (n,) * N
    silos = tuple(SiloFacts(f"s{i}", size) for i, size in enumerate(sizes))
    return problem_of(silos, d, L, beta, D, M or len(sizes), Budget(epsilon, delta), ridge=mu, **more)


# A second computation, line by line from the theorems (Lowy and Razaviyayn 2023), for a fixed number of participants.


def psi_by_hand(sizes, weights, L, epsilon, deltas, R, M):
    """(Mt, psit): of unequal silos the mean of the M largest over M is never above the largest over M."""
    psi = [
        (c * L / (n * epsilon)) ** 2 * math.log(2.5 * R / delta) * math.log(2 / delta)
        for n, c, delta in zip(sizes, weights, deltas, strict=True)
    ]
    return M, sum(sorted(psi)[-M:]) / M


def rounds_by_hand(first, sampled=lambda R: 0.0):
    """The least R that is at least what the theorem wants of it."""
    return next(R for R in range(1, 10**6) if max(first(R), sampled(R)) * (1 - 1e-12) <= R)


def test_the_spec_s_example_without_logarithms():
    """n = 1000, d = 20, L = beta = 1, D = 2, M = 16, epsilon = 1, delta = 1e-6; `2 * 4 * min(31.6, 223.6) = 252.98`."""
    asked = problem()
    rates = Rates(1000, 20, 1.0, 2.0, 1.0, 0.0, lambda R: NoiseLevel(16.0, 1e-6))
    R = least_rounds(rates.sgd_rounds, "rounds")
    assert R == math.ceil(1.0 * 2.0 * math.sqrt(16) / 1.0 * min(math.sqrt(1000), 1000 / math.sqrt(20))) == 253
    # K >= 1000 / (4 sqrt(2 * 253 ln(2e6))) = 2.92, and >= 1000 / 253 = 3.95.
    assert least_records(asked, 1000, R) == pytest.approx(2.92, abs=5e-3)
    assert minibatch_sgd_batch(asked, R, rates.enough(R)) == 4


CASES = [
    {},
    {"epsilon": 8.0},
    {"epsilon": 0.05},
    {"M": 5},
    {"D": 30.0, "L": 0.5},
    {"beta": 0.01},
    {"n": 60, "d": 300},
    {"n": (60, 70, 700), "epsilon": 4.0},
    {"n": (60, 70, 700), "M": 2, "epsilon": 4.0, "delta": None},
    {"n": (60, 700, 700), "weights": (0.5, 0.5, 2.0), "M": 2},
]


@pytest.fixture(params=CASES, ids=str)
def case(request):
    """The problem, and its theorem's constants by hand: n, d, L, beta, D, Mt and d psit for R rounds."""

    def make(mu):
        asked = problem(**request.param, mu=mu)
        sizes = [silo.n for silo in asked.silos]
        weights = asked.weights or (1,) * len(sizes)
        deltas = [1 / n**2 if asked.budget.fixed_delta is None else 1e-6 for n in sizes]
        level = lambda R: psi_by_hand(  # noqa: E731
            sizes, weights, asked.objective.clip, asked.budget.epsilon, deltas, R, asked.participants
        )
        return (
            asked,
            min(sizes),
            asked.objective.dim,
            asked.objective.clip * max(weights),
            asked.objective.diameter,
            max(weights),
            level,
        )

    return make


def test_the_switch_between_silos_by_hand(case):
    asked, *_, level = case(0.0)
    for R in (1, 250):
        found = level_of(asked, R, "key")
        assert (found.participants, found.psi) == (level(R)[0], pytest.approx(level(R)[1], rel=1e-12))


def test_the_switch_with_a_random_number_of_participants():
    """M_r uniform on {5, 10, 20}: M = 8.5714, M' = 7.5593 (spec isrl-dp-fl 6.9)."""
    law = Participation.of((5, 10, 20), 20)
    equal = switch([2.0] * 20, law)  # Psi = psi_max, and M' < M
    assert (equal.participants, equal.psi) == (pytest.approx(8.5714, abs=5e-5), 2.0)
    noisy = [16.0] + [1.0] * 19  # means of the 5, 10 and 20 largest: 4, 2.5 and 1.75
    found = switch(noisy[::-1], law)
    assert found.participants == pytest.approx(7.5593, abs=5e-5)
    assert found.psi == pytest.approx(math.sqrt((16 + 6.25 + 3.0625) / 3), rel=1e-13)


@pytest.mark.parametrize("mu", [0.0, 0.02, 1.5])
def test_rounds_and_batch_of_minibatch_sgd(case, mu):
    asked, n, d, L, D, most, level = case(mu)
    beta = most * asked.objective.smoothness + mu

    def accuracy(R):
        return max(1 / math.sqrt(n), math.sqrt(d * level(R)[1]) / L)

    def first(R):
        M, psi = level(R)
        if mu == 0:
            return beta * D * math.sqrt(M) / (L * accuracy(R))
        return 8 * beta / mu * math.log(beta * D**2 * mu * M / (d * psi))

    R = rounds_by_hand(first)
    phase = Mbsgd(rounds=None).plan(asked).phases[0]
    assert (phase.rounds, phase.batch, phase.rate) == (R, n, 1.0)
    given = Mbsgd(rounds=None, batch=3).plan(dataclasses.replace(asked, budget=Budget(None, 1e-5))).phases[0]
    assert given.batch == 3  # without noise, so that no accountant is asked
    with_few = rounds_by_hand(first, lambda R: 1 / (accuracy(R) ** 2 * 3))
    # The accountant of samples would take minutes over all cases, so no plan from here on.
    assert sgd_rounds(asked, beta, 3) == with_few >= R
    epsilon, log = asked.budget.epsilon, math.log(2 / asked.delta)
    while True:
        K = max(epsilon * n / (4 * math.sqrt(2 * R * log)), 1 / (accuracy(R) ** 2 * R), 1)
        if math.ceil(K * (1 - 1e-12)) <= n:
            break
        R = math.ceil(1.1 * R)
    assert sgd_rounds(asked, beta, "theory") == R
    assert sgd_batch(asked, R) == math.ceil(K * (1 - 1e-12))


def test_where_the_published_noise_is_stated_for_no_batch_rounds_grow():
    """epsilon 100: with R = 8 even all records are too few, 100 / (4 sqrt(2 * 8 * ln(2e6))) = 1.64 of them."""
    asked = problem(n=100, d=1, epsilon=100.0, beta=0.1)
    assert sgd_rounds(asked, 0.1, None) == 8
    # Rounds 8, 9, 10, 11, 13, 15, 17, 19, 21, 24: `100 / (4 sqrt(42 * 14.5)) = 1.013`, and 0.947 with 48 for 42.
    assert sgd_rounds(asked, 0.1, "theory") == 24


@pytest.mark.parametrize("rounds", [None, 7])
def test_the_theorems_step(case, rounds):
    for mu in (0.0, 0.02):
        asked, n, d, L, D, most, level = case(mu)
        phase = Mbsgd(rounds=rounds, step="theory").plan(asked).phases[0]
        R, beta = phase.rounds, most * asked.objective.smoothness + mu
        M, psi = level(R)
        if mu == 0:
            step = D * math.sqrt(M) / (L * R) * min(math.sqrt(n), L / math.sqrt(d * psi))
        else:
            weights = asked.weights or (1.0,) * len(asked.silos)
            noise = d * np.mean([(c * s.sigma) ** 2 for c, s in zip(weights, phase.shares, strict=True)]) / M
            drawn = (
                4
                * np.mean([(c * asked.objective.clip) ** 2 / s.n for c, s in zip(weights, phase.shares, strict=True)])
                / M
            )
            step = math.log(max(2, mu**2 * D**2 * R**2 / (2 * (drawn + noise)))) / (mu * R)
        assert phase.settings["step"] == pytest.approx(min(1 / (4 * beta), step), rel=1e-12)


def test_a_step_may_be_longer_than_the_noise_allows_by_smoothness_alone():
    """Both sides of the minimum: at 7 rounds smoothness decides, at 5000 the noise."""
    steps = [
        Mbsgd(rounds=R, step="theory").plan(problem(mu=mu)).phases[0].settings["step"]
        for mu in (0.0, 0.02)
        for R in (7, 5000)
    ]
    assert steps[0] == 1 / 4 and steps[2] == 1 / (4 * 1.02)
    assert steps[1] < 1 / 4 and steps[3] < 1 / (4 * 1.02)


# Algorithm 2


@pytest.mark.parametrize("mu", [0.0, 0.02, 1.5])
def test_rounds_and_batch_of_accelerated_sgd(case, mu):
    asked, n, d, L, D, _, level = case(mu)
    beta = asked.objective.smoothness + mu
    whole = asked.objective.clip + mu * D / 2  # gradient of the objective, ridge included
    gap = min(whole * D, whole**2 / (2 * mu)) if mu else whole * D
    some = asked.participants < len(asked.silos)

    def first(R):
        M, psi = level(R)
        if mu == 0:
            return math.sqrt(beta * D * math.sqrt(M) / math.sqrt(d * psi))
        return math.sqrt(beta / mu) * math.log(gap * mu * M / (d * psi))

    def sampled(K, varies):
        return lambda R: L**2 / (K * d * level(R)[1]) if varies else 0.0

    R = rounds_by_hand(first, sampled(n, some))
    assert AcceleratedMbsgd().plan(asked).phases[0].rounds == R
    assert accelerated_rounds(asked, beta, gap, mu > 0, 5) == rounds_by_hand(first, sampled(5, True)) >= R
    K = max(asked.budget.epsilon * n / (4 * math.sqrt(2 * R * math.log(2 / asked.delta))), L**2 / (d * level(R)[1] * R))
    assert accelerated_batch(asked, R) == min(math.ceil(K * (1 - 1e-12)), n)


def test_the_paper_s_gap_makes_more_rounds():
    tight, paper = (AcceleratedMbsgd(gap=gap).plan(problem(mu=1.5)).phases[0] for gap in ("tight", "paper"))
    assert paper.rounds > tight.rounds and paper.settings["gap"] == pytest.approx(2.0 * (1 + 1.5))


@pytest.mark.parametrize("epsilon", [0.1, 1.0, None])
def test_the_batch_of_one_pass_by_hand(epsilon):
    """Convex: K^(5/2) = (L / (beta D)) n^(3/2) (d ln(1/delta))^(1/2) / (epsilon M^(1/2))."""
    asked = problem(n=5000, beta=0.3, D=3.0, L=2.0, epsilon=epsilon)
    if epsilon is None:
        assert one_pass_batch(asked, 0.3, None) == 1  # of noise that falls to nothing
    else:
        K = ((2 / 0.9) * 5000**1.5 * math.sqrt(20 * math.log(1e6)) / (epsilon * 4)) ** 0.4
        assert one_pass_batch(asked, 0.3, None) == math.ceil(K)
        phase = OnePassAcceleratedMbsgd().plan(asked).phases[0]
        assert (phase.rounds, phase.batch) == (5000 // math.ceil(K), 5000 // (5000 // math.ceil(K)))
    # Strongly: n / (sqrt(kappa) ln(mu Delta min{(epsilon n)^2 M / (L^2 d ln(1/delta)), n M / phi^2})).
    strong, gap = problem(n=5000, beta=0.3, D=3.0, L=2.0, epsilon=epsilon, mu=0.01), 6.0
    floor = 5000 * 16 / 4
    if epsilon is not None:
        floor = min(floor, (epsilon * 5000) ** 2 * 16 / (4 * 20 * math.log(1e6)))
    K = 5000 / (math.sqrt(0.31 / 0.01) * math.log(0.01 * gap * floor))
    assert one_pass_batch(strong, 0.31, gap) == math.ceil(K)
    assert one_pass_batch(strong, 0.31, 1e-9) == 5000  # nothing to gain from a second round


# Smoothing


def nonsmooth(algorithm, ridge=0.0, **changes):
    return validated(
        ExperimentConfig,
        {
            "data": {"source": "synthetic", "silos": 4, "records": 100, "features": 4, "test_records": 50},
            "model": {
                "loss": {"name": "hinge"},
                "smoothing": {"name": "moreau"},
                "diameter": 4.0,
                "feature_bound": 2.0,
                "ridge": ridge,
            },
            "privacy": {"epsilon": 2.0, "delta": 1e-5} | changes,
            "algorithm": algorithm,
        },
        "here",
    )


@pytest.mark.parametrize("ridge", [0.0, 0.05])
def test_the_envelope_is_that_of_the_methods_theorem(ridge):
    """Theorems 2.2 and 2.4 at `M = 4, n = 100, d = 5` with a bias, `L = 2, D = 4, epsilon = 2`."""

    def noise(R):
        return 5 * psi_by_hand([100] * 4, [1] * 4, 2.0, 2.0, [1e-5] * 4, R, 4)[1]

    phase = (plan := make_plan(nonsmooth({"name": "mbsgd", "rounds": None}, ridge))).phases[0]
    enough = lambda R: min(100, 4 / noise(R))  # noqa: E731
    if ridge == 0:
        R = rounds_by_hand(lambda R: 4 * enough(R))
        assert phase.rounds == R
        b = 2 / 4 * math.sqrt(4 * enough(R))
    else:
        # The ridge is added to the smoothed loss: beta = b + mu, where the paper's f_b itself is strongly convex.

        def wanted(R):
            return 8 * (4 * enough(R) + 1) * math.log((0.05 * 4 * enough(R) + 0.05) * 16 * 0.05 * 4 / noise(R))

        R = rounds_by_hand(wanted)
        assert phase.rounds == R
        b = 0.05 * 4 * enough(R)
    assert plan.problem.objective.smoothness == pytest.approx(b, rel=1e-12)
    # Given rounds move its logarithms only; with a step by hand, too, it is what it always was.
    given = make_plan(nonsmooth({"name": "mbsgd", "rounds": 12, "step": "theory"}, ridge)).problem.objective.smoothness
    assert given == pytest.approx(0.05 * 4 * enough(12) if ridge else math.sqrt(4 * enough(12)) / 2, rel=1e-12)
    by_hand = make_plan(nonsmooth({"name": "mbsgd", "rounds": 12}, ridge)).problem.objective.smoothness
    assert by_hand == pytest.approx(2 / 4 * 2 * min(10, 2 * 100 / math.sqrt(5 * math.log(1e5))), rel=1e-12)

    plan = make_plan(nonsmooth({"name": "accelerated-mbsgd"}, ridge))
    if ridge == 0:
        R = rounds_by_hand(lambda R: 2 * math.sqrt(4 / noise(R)))
        b = 4 * 2 / (4 * math.sqrt(noise(R)))
    else:
        gap = min((2 + 0.05 * 2) * 4, (2 + 0.05 * 2) ** 2 / 0.1)
        wanted = lambda R: math.sqrt(4 * 4 / noise(R) + 1) * math.log(gap * 0.05 * 4 / noise(R))  # noqa: E731
        R = rounds_by_hand(wanted)
        b = 0.05 * 4 * 4 / noise(R)
    assert plan.phases[0].rounds == R
    assert plan.problem.objective.smoothness == pytest.approx(b, rel=1e-12)


def test_beta_that_is_given_stays():
    config = nonsmooth({"name": "mbsgd", "rounds": None, "step": "theory", "average": "theory"})
    values = config.model_dump(mode="json")
    values["model"]["smoothing"]["beta"] = 3.5
    assert make_plan(validated(ExperimentConfig, values, "here")).problem.objective.smoothness == 3.5


# What is refused, and what stays


@pytest.mark.parametrize(
    "method, changes, sentence",
    [
        (Mbsgd(rounds=None), {"beta": math.inf}, "mbsgd needs a smooth loss"),
        (Mbsgd(rounds=None, batch="theory"), {"epsilon": None}, r"algorithm\.batch = theory needs privacy\.epsilon"),
        (Mbsgd(rounds=None), {"beta": 1.7e308}, r"algorithm\.rounds = null: the constants give no finite number"),
        (Mbsgd(rounds=None), {"beta": 1e20}, r"algorithm\.rounds: a phase has at most 1000000000 rounds"),
        (Mbsgd(average="theory"), {"mu": 0.3}, r"average = theory needs a step below 1 / model\.ridge = 3\.3"),
        (AcceleratedMbsgd(form="multi-stage"), {}, r"model\.ridge = 0 .*algorithm\.form = multi-stage"),
        (AcceleratedMbsgd(), {"beta": math.inf}, "accelerated-mbsgd needs a smooth loss"),
        (AcceleratedMbsgd(rounds=9, batch="theory"), {"epsilon": None}, r"algorithm\.batch = theory needs privacy"),
        (OnePassAcceleratedMbsgd(), {"M": 3}, r"participation\.silos_per_round = 3 of 16; give a number"),
        (OnePassAcceleratedMbsgd(rounds=1001), {}, r"silo s0: 1000 records cannot feed algorithm\.rounds = 1001"),
        (OnePassMbsgd(rounds=1001), {}, r"silo s0: 1000 records cannot feed algorithm\.rounds = 1001"),
    ],
)
def test_what_does_not_fit_is_refused_by_its_key(method, changes, sentence):
    with pytest.raises(InputError, match=sentence):
        method.plan(problem(**changes))


@pytest.mark.parametrize(
    "method", [Mbsgd(rounds=None), Mbsgd(step="theory"), AcceleratedMbsgd(), OnePassAcceleratedMbsgd()]
)
def test_a_theorem_takes_no_given_noise(method):
    asked = dataclasses.replace(problem(), budget=Budget(None, 1e-6, multiplier=3.0))
    with pytest.raises(InputError, match=r"needs privacy\.epsilon"):
        method.plan(asked)


def test_numbers_that_are_given_need_no_target():
    asked = dataclasses.replace(problem(), budget=Budget(None, 1e-6, multiplier=3.0))
    for method in (AcceleratedMbsgd(rounds=4), OnePassAcceleratedMbsgd(rounds=4)):
        assert method.from_theory == () and method.plan(asked).rounds == 4
    assert Mbsgd(rounds=None, step="theory", average="theory", batch="theory").from_theory == (
        "batch",
        "step",
        "average",
        "rounds",
    )


def test_without_noise_the_data_s_own_accuracy_takes_the_place_of_the_noise():
    """d psit = L^2 / n: mbsgd beta D sqrt(M n) / L = 252.98, accelerated its root, 15.9."""
    asked = problem(epsilon=None)
    assert Mbsgd(rounds=None).plan(asked).rounds == 253
    assert AcceleratedMbsgd().plan(asked).rounds == 16


def test_plans_and_agreements_keep_their_digests():
    """Digests of schema 3, of silos of 64, 80 and 200 records."""
    asked = problem((64, 80, 200), d=6, delta=1e-5, beta=0.25, D=8.0)
    before = {
        Mbsgd(): "b09205a491ca6ddd2019e09ec04a6ea68a1b7d74a0e1b23842b49c03936e17f8",
        Mbsgd(rounds=9, step=0.5, average="last"): "6e290a139707abfa1f45373c1b6ec40d264aee6f20c54989bc563818bae1faec",
        OnePassMbsgd(): "66fe166e97f8c17e606332510211dd5e31b6fd861919d23d84bc07a967802818",
    }
    for method, digest in before.items():
        assert terms(method.plan(asked).digest, method, Logistic()) == digest
