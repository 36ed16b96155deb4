"""The theorems' batch sizes and their effect on a schedule, against numbers by hand."""

from __future__ import annotations

import math

import pytest

from fedcore.accounting.calibration import Budget
from fedcore.algorithms import LocalizedAccelerated, LocalizedMbsgd, LocalizedSubgradient, Mbsgd, MbSubgradient
from fedcore.errors import InputError
from fedcore.planning.batches import gradient_minimal_batch, least_batch, minibatch_sgd_batch
from fedcore.planning.problem import SiloFacts
from fedcore.planning.theorems.localization import localization, theory_rounds
from tests.problems import problem_of

E8 = math.exp(-8)


def problem(n=256, M=16, d=16, epsilon=1.0, delta=E8, D=4.0, beta=0.25, participants=None, **more):
    silos = tuple(SiloFacts(f"s{i}", n) for i in range(M))
    return problem_of(silos, d, 1.0, beta, D, participants or M, Budget(epsilon, delta), **more)


# Q = sqrt(0.25 * 4) * 16^(1/4) = 2, ln(1/delta) = 8; 256^(1/4) = 4, 256^(7/4) = 16384.


@pytest.mark.parametrize(
    "changes, K",
    [
        # `K_a = (1/4) 16384 / (2 * 256 * 8) = 1, K_b = 128 / sqrt(2 * 4 * 8) = 16`: 9 * 16 = 144 gradients; d costs
        # 256 + 16384 / 2048 = 264.
        ({"epsilon": 0.5, "d": 256}, 16),
        # K_a = 16384 / 256 = 64, 9 * 64 = 576; d costs 16 + 65536 / 128 = 528.
        ({"d": 16}, 16),
        # M = 1: Q = 1; K_a = 4, K_b = 128 / sqrt(32) = 22.6: 5 * 22.6 = 113; d costs 128 + 16 = 144.
        ({"epsilon": 0.5, "d": 128, "M": 1}, 23),
        # epsilon 8, d = 16: K_a = 4096 > n, so d.
        ({"epsilon": 8.0}, 16),
        # d > n = 16: K_c = 64 / (2 * 64) = 0.5; K_d = 8 * 2^(5/8) / (2^(1/2) * 2^(9/8)) = 4.
        ({"n": 16, "d": 32}, 4),
        # K_c = 160^1.5 / 128 = 15.8 <= 16; K_d = 160^(3/4) 2^(5/8) / 2^(13/8) = 22.5: all records.
        ({"n": 16, "d": 32, "epsilon": 10.0}, 16),
        # K_c = 18.2 > n: all records.
        ({"n": 16, "d": 32, "epsilon": 11.0}, 16),
    ],
)
def test_the_batch_with_the_fewest_gradients_by_hand(changes, K):
    asked = problem(**changes)
    assert gradient_minimal_batch(asked, asked.n) == K


def test_the_least_batch_by_hand():
    """ln(2/delta) = 8, R = 4: 4 sqrt(2 * 4 * 8) = 32, so K = 1000 / 32 = 31.25, rounded up. And the spec's example."""
    assert least_batch(problem(n=1000, delta=2 * math.exp(-8)), 1000, 4) == 32
    assert least_batch(problem(n=1000, delta=2 * math.exp(-8), epsilon=0.032), 1000, 4) == 1
    assert least_batch(problem(n=1000, delta=2 * math.exp(-8), epsilon=64.0), 1000, 4) == 1000
    spec = problem(n=1000, d=20, delta=1e-6, D=2.0, beta=1.0)
    assert least_batch(spec, 1000, 253) == 3  # 2.92 (spec isrl-dp-fl 6.1)


def test_the_batch_of_minibatch_sgd_by_hand():
    # B = 1e6 / (20 ln(2.5e6) ln(2e6)) = 233.9 at R = 1, so one round needs all 234 of them; K >= 10^3 / 21.5 = 46.4.
    assert minibatch_sgd_batch(problem(n=1000, d=20, delta=1e-6), 1) == 234
    # B = 1e6 / (20 ln(2.5 * 100 / 1e-6) ln(2e6)) = 178.2 over 100 rounds: 1.8; and 1000 / (4 sqrt(200 * 14.51)) = 4.64.
    assert minibatch_sgd_batch(problem(n=1000, d=20, delta=1e-6), 100) == 5
    # B is at most n: epsilon 10 and d = 1 make 356,000, so 1000 / 8 rounds = 125; 10^4 / (4 sqrt(16 * 14.51)) = 164.1.
    assert minibatch_sgd_batch(problem(n=1000, d=1, delta=1e-6, epsilon=10.0), 8) == 165
    phase = Mbsgd(rounds=100, batch="theory").plan(problem(n=1000, d=20, delta=1e-6)).phases[0]
    assert (phase.batch, phase.rate) == (5, 0.005)


def test_a_localized_schedule_takes_the_theorems_batches_phase_by_phase():
    """n = 512, so the first shard has 256 records; the larger of the count's K and the published noise's least one."""
    asked = problem(n=512, M=1, d=128, epsilon=0.5)
    phase = LocalizedAccelerated(rounds=4, max_phases=1, batch="theory").plan(asked).phases[0]
    # 0.5 * 256 / (4 sqrt(2 * 4 * 8.69)) = 3.8 is less than 22.6.
    assert (phase.n, phase.batch, phase.rate) == (256, 23, 23 / 256)
    # With one round at epsilon 4 the published noise decides: `4 * 256 / (4 sqrt(2 * 8.69)) = 61.4` is above d = 16.
    strong = problem(n=512, M=16, d=16, epsilon=4.0)
    assert LocalizedAccelerated(rounds=1, max_phases=1, batch="theory").plan(strong).phases[0].batch == 62
    # Algorithm 4: `K_i = epsilon n_i / (4 sqrt(2 R ln(2/delta)))`: `256 / (4 sqrt(8 * 8)) = 8`, and 128 / 32 = 4, 2, 1.
    plan = LocalizedSubgradient(rounds=4, batch="theory").plan(problem(n=512, M=2, delta=2 * math.exp(-8)))
    assert [phase.batch for phase in plan.phases] == [8, 4, 2, 1, 1, 1, 1, 1, 1]
    assert [phase.rate for phase in plan.phases] == [1 / 32] * 4 + [1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0]
    # The textbook's index asks one round less, and so many are noised: 256 / (4 sqrt(2 * 3 * 8)) = 9.2.
    fewer = LocalizedSubgradient(rounds=4, batch="theory", index="textbook", max_phases=1)
    assert fewer.plan(problem(n=512, M=2, delta=2 * math.exp(-8))).phases[0].batch == 10


def test_samples_add_rounds_where_the_theorem_says_so():
    """epsilon^2 n_i^2 / (K_i d ln(1/delta)) = 128^2 / (4 * 16 * 8) = 32 as soon as a record may be left out."""
    asked = problem()
    (local,) = localization(asked, lam=100.0, max_phases=1)
    assert theory_rounds(asked, local, 1e-6) == 1  # the accelerated term: ln of less than 1
    assert theory_rounds(asked, local, 1e-6, batch=4) == 32
    assert theory_rounds(asked, local, 1e-6, batch=128) == theory_rounds(asked, local, 1e-6, batch=999) == 1
    # Algorithm 6 has no indicator: drawn points vary with all records too. 128^2 / (128 * 16 * 8) = 1.
    drawn = problem(drawn_points=True, epsilon=4.0)
    assert theory_rounds(drawn, local, 1e-6) == 16
    assert theory_rounds(problem(participants=8, epsilon=4.0), local, 1e-6) == 16
    # And less silos and fewer records together: M K < N n.
    assert theory_rounds(problem(participants=8, epsilon=4.0), local, 1e-6, batch=64) == 32


def test_samples_add_variance():
    """d sigma^2 / M + L^2 / (M K)."""
    plan = LocalizedAccelerated(rounds=4, lam=1.0, max_phases=1, batch=8).plan(problem(M=5))
    phase = plan.phases[0]
    assert phase.settings["variance"] == pytest.approx(16 * phase.sigma**2 / 5 + 1 / 40, rel=1e-12)


def test_the_subgradient_methods_weight_knows_of_the_samples_variance():
    """lambda = 4 B / (D sqrt(R + 1)), B^2 = L^2 + d sigma^2 / M + L^2 / (M K)."""
    phase = MbSubgradient(rounds=8, batch=64).plan(problem(M=2)).phases[0]
    second_moment = 1 + 16 * phase.sigma**2 / 2 + 1 / 128
    assert phase.subproblem.lam == pytest.approx(4 * math.sqrt(second_moment) / (4 * 3), rel=1e-12)


@pytest.mark.parametrize(
    "method, changes, sentence",
    [
        (Mbsgd(batch="theory"), {"epsilon": None}, r"needs privacy\.epsilon"),
        (LocalizedAccelerated(batch="theory"), {"epsilon": None}, r"needs privacy\.epsilon"),
        (LocalizedAccelerated(batch="theory"), {"participants": 8}, r"participation\.silos_per_round = 8 of 16"),
        (LocalizedAccelerated(batch="theory"), {"beta": math.inf}, "smooth"),
        (LocalizedSubgradient(batch="theory"), {"epsilon": None}, r"needs privacy\.epsilon"),
        (LocalizedMbsgd(batch="theory"), {}, "no theorem gives localized-mbsgd"),
        (MbSubgradient(batch="theory"), {}, "no theorem gives mb-subgradient"),
    ],
)
def test_theory_is_refused_where_there_is_none(method, changes, sentence):
    with pytest.raises(InputError, match=sentence):
        method.plan(problem(**changes))
