"""The check that stops a run whose beta is too small: its findings, its silence about records, its requirements."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from fedcore.accounting.calibration import Budget
from fedcore.algorithms import AcceleratedMbsgd, LocalizedAccelerated, LocalizedMbsgd, OnePassAcceleratedMbsgd
from fedcore.algorithms.statistics.watched import Watched, watched
from fedcore.arrays import pack, unpack
from fedcore.errors import InputError
from fedcore.optim.acceleration import AccelerationCoefficients
from fedcore.optim.averaging import Messages
from fedcore.optim.curvature import certified_curvature, message_variance, sampling_error
from fedcore.planning.phases.training_phase import make_phase
from fedcore.planning.problem import SiloFacts
from fedcore.state import dump_state, load_state
from tests.problems import changed, problem_of

N, DIM = 64, 4


def problem(epsilon=None, silos=4, participants=None, clip=1e3, weights=None, n=N):
    facts = tuple(SiloFacts(f"silo-{k}", n) for k in range(silos))
    budget = Budget(epsilon, None if epsilon is None else 1e-5)
    return problem_of(facts, DIM, clip, 100.0, 100.0, participants or silos, budget, weights=weights)


def quadratics(method, plan, eigenvalues, seed=0, noise=True, start=1.0):
    """All rounds of a method on (1/2) w' H w, H of these eigenvalues at every silo, with the planned noise."""
    rng, asking = np.random.default_rng(seed), watched(method, plan)
    state = asking.init(np.full(DIM, start))
    H = np.asarray(eigenvalues)
    while state.phase <= len(plan.phases):
        phase = plan.phases[state.phase - 1]
        (w,) = asking.broadcast(state, phase).values()
        sigmas = [share.sigma * noise for share in phase.shares]
        messages = Messages((k, H * w + s * rng.standard_normal(DIM)) for k, s in enumerate(sigmas))
        state = asking.server_update(state, messages, phase)
        state = load_state(asking.state, unpack(pack(dump_state(state))))  # as after a resume
    return asking.output(state)


def simulated_stage(curvature, rounds, upsilon, mu):
    """|w_ag| after each round of AC-SA from 1 on (curvature / 2) w^2, by the argmin of its own definition."""
    w = aggregate = 1.0
    found = []
    for r in range(1, rounds + 1):
        alpha, eta = 2 / (r + 1), 4 * upsilon / (r * (r + 1))
        den = eta + (1 - alpha**2) * mu
        middle = ((1 - alpha) * (mu + eta) * aggregate + alpha * ((1 - alpha) * mu + eta) * w) / den
        w = (alpha * mu * middle + ((1 - alpha) * mu + eta) * w - alpha * curvature * middle) / (mu + eta)
        aggregate = alpha * w + (1 - alpha) * aggregate
        found.append(abs(aggregate))
    return found


@pytest.mark.parametrize("upsilon", [0.3, 2.0])
def test_steps_of_a_long_stage_are_unstable_from_four_thirds_of_upsilon_on(upsilon):
    ends = [simulated_stage(factor * upsilon, 600, upsilon, 0.0)[-1] for factor in (1.0, 1.3, 1.37, 1.6)]
    assert max(ends[:2]) < 1e-6 and min(ends[2:]) > 1e3
    late = AccelerationCoefficients.at(600, upsilon, 0.0)
    assert late.amplification(1.32 * upsilon) <= 1 < late.amplification(1.345 * upsilon)
    # At twice the planned beta, upsilon itself, nothing is ever amplified: a number that is half of the truth is safe.
    assert max(AccelerationCoefficients.at(r, upsilon, 0.0).amplification(upsilon) for r in range(1, 200)) <= 1 + 1e-12


@pytest.mark.parametrize(("r", "mu", "curvature"), [(1, 0.0, 7.0), (4, 0.0, 5.0), (7, 0.2, 2.0), (30, 0.01, 9.0)])
def test_a_rounds_amplification_is_the_spectral_radius_of_its_step(r, mu, curvature):
    """The largest eigenvalue by the power method on the server's own step."""
    at = AccelerationCoefficients.at(r, 1.5, mu)

    def step(pair):
        w, aggregate = pair[:1], pair[1:]
        middle = at.middle(aggregate, w)
        after = at.unprojected(middle, w, curvature * middle)
        return np.concatenate([after, at.alpha * after + (1 - at.alpha) * aggregate])

    matrix = np.column_stack([step(np.array([1.0, 0.0])), step(np.array([0.0, 1.0]))])
    radius = at.amplification(curvature)
    left = np.linalg.norm(np.linalg.matrix_power(matrix / radius, 800)) ** (1 / 800)
    assert left == pytest.approx(1.0, rel=0.02)


def test_a_number_that_is_far_too_small_ends_with_the_sentence_and_what_it_names_runs():
    method = LocalizedAccelerated(rounds=30, lam=1e-3, max_phases=1, smoothness=0.01)
    sentence = r"algorithm.smoothness = 0.01 is less than the curvature .* in round 1\."
    with pytest.raises(InputError, match=sentence) as raised:
        quadratics(method, method.plan(problem()), [1.0, 0.5, 0.01, 0.0])
    words = str(raised.value).split()
    named = float(words[words.index("least") + 1].rstrip(","))
    assert 0.01 * 8 / 3 < named <= 1.0 + 1e-9
    enough = replace(method, smoothness=max(named, 0.5))
    end = quadratics(enough, enough.plan(problem()), [1.0, 0.5, 0.01, 0.0])
    assert np.abs(end[:2]).max() < 0.2


def test_with_noise_it_is_seen_too_where_the_noise_lets_it_be():
    method = LocalizedAccelerated(rounds=30, lam=1e-3, max_phases=1, smoothness=0.01)
    made = problem(epsilon=8.0, clip=1.0, n=20_000)
    with pytest.raises(InputError, match="give at least"):
        quadratics(method, method.plan(made), [1.0, 0.5, 0.01, 0.0])


@pytest.mark.parametrize("seed", range(30))
def test_a_number_that_is_right_is_never_stopped_however_loud_the_noise(seed):
    """Phases of ever fewer records and ever more noise; H has exactly that beta, so every alarm would be false."""
    method = LocalizedAccelerated(rounds=12, lam=1e-3, smoothness=1.0)
    quadratics(method, method.plan(problem(epsilon=0.5, clip=1.0)), [1.0, 1.0, 0.3, 0.0], seed)


def test_half_of_the_truth_is_stable_and_is_not_stopped():
    method = LocalizedAccelerated(rounds=60, lam=1e-4, max_phases=1, smoothness=0.5)
    end = quadratics(method, method.plan(problem()), [1.0, 0.5, 0.01, 0.0])
    assert np.abs(end[:2]).max() < 1e-2


def test_the_worst_case_and_other_methods_are_not_watched():
    for method in (LocalizedAccelerated(rounds=3, lam=0.1), LocalizedMbsgd(rounds=3, lam=0.1, step=1.0)):
        assert watched(method, method.plan(problem())) is method
    known = LocalizedAccelerated(rounds=3, lam=0.1, smoothness=0.1)
    assert isinstance(watched(known, known.plan(problem())), Watched)


def test_watching_changes_no_bit_of_what_is_asked_and_made():
    method = LocalizedAccelerated(rounds=7, lam=0.01, smoothness=1.0)
    plan = method.plan(problem(epsilon=1.0, clip=1.0))
    asking, rng = watched(method, plan), np.random.default_rng(0)
    state, plain = asking.init(np.ones(DIM)), method.init(np.ones(DIM))
    while plain.phase <= len(plan.phases):
        phase = plan.phases[plain.phase - 1]
        messages = Messages((k, rng.standard_normal(DIM)) for k in range(4))
        assert asking.broadcast(state, phase)["w"].tobytes() == method.broadcast(plain, phase)["w"].tobytes()
        state, plain = asking.server_update(state, messages, phase), method.server_update(plain, messages, phase)
        assert asking.output(state).tobytes() == method.output(plain).tobytes()
        assert state.asked.size == (0 if plain.round == 1 else DIM)


def test_a_certificate_is_wrong_as_seldom_as_it_says():
    """Messages of curvature 2 in every direction, so any excess is noise; level 5 %, over 4,000 draws."""
    rng, alarms = np.random.default_rng(1), 0
    for _ in range(4000):
        asked = rng.standard_normal(6)
        answered = 2.0 * asked + math.sqrt(0.3) * rng.standard_normal(6)
        alarms += certified_curvature(asked, answered, 0.3, 0.0, 0.05) > 2.0
    assert alarms / 4000 < 0.05
    noises = math.sqrt(0.3) * rng.standard_normal((4000, 6))
    pure = [certified_curvature(np.ones(6), noise, 0.3, 0.0, 0.05) > 0 for noise in noises]
    assert abs(np.mean(pure) - 0.05) < 4 * math.sqrt(0.05 * 0.95 / 4000)
    assert certified_curvature(np.zeros(6), np.ones(6), 0.0, 0.0, 0.05) == 0.0


def test_the_variance_of_a_mean_message_is_that_of_draws():
    weights = (0.4, 1.0, 1.2, 1.4)
    made = problem(epsilon=1.0, clip=1.0, weights=weights)
    phase = make_phase(made, 1, 3, {silo.name: (0, silo.n) for silo in made.silos})
    rng, places = np.random.default_rng(2), [0, 2, 3]
    scales = [weights[k] * phase.shares[k].sigma for k in places]
    draws = sum(scale * rng.standard_normal(20_000) for scale in scales) / len(places)
    assert message_variance(phase, places) == pytest.approx(np.var(draws), rel=0.05)


@pytest.mark.parametrize(("participants", "batch"), [(4, 8), (2, None), (2, 8)])
def test_the_error_of_drawn_silos_and_records_is_bounded_as_often_as_said(participants, batch):
    """Records all of norm C, half of each silo's opposite to the rest, silos different: level 5 %, 2,000 draws."""
    made = problem(clip=1.0, participants=participants)
    phase = make_phase(made, 1, 3, {silo.name: (0, silo.n) for silo in made.silos}, batch=batch)
    rng, rate = np.random.default_rng(3), phase.rate
    G = rng.standard_normal((4, N, DIM)) + 3 * rng.standard_normal((4, 1, DIM))
    G /= np.linalg.norm(G, axis=2, keepdims=True)
    mean, errors = G.mean(axis=(0, 1)), []
    for _ in range(2000):
        drawn = rng.permutation(4)[:participants]
        coins = rng.random((participants, N)) < rate
        sums = np.einsum("ij,ijk->ik", coins, G[drawn]) / (rate * N)
        errors.append(np.linalg.norm(sums.mean(axis=0) - mean))
    bound = sampling_error(phase, range(participants), False, 0.05)
    assert np.mean(np.array(errors) > bound) <= 0.05
    assert bound < 25 * np.mean(errors)  # and it is of use


def test_nothing_that_is_not_drawn_is_allowed_for():
    made = problem(clip=1.0)
    phase = make_phase(made, 1, 3, {silo.name: (0, silo.n) for silo in made.silos})
    assert sampling_error(phase, range(4), False, 1e-9) == 0.0
    assert sampling_error(phase, range(4), True, 1e-9) > 0.0


@pytest.mark.parametrize("form", ["one-stage", "regularised", "multi-stage"])
@pytest.mark.parametrize("kind", [AcceleratedMbsgd, OnePassAcceleratedMbsgd])
def test_every_accelerated_method_takes_the_known_beta(kind, form):
    """The run equals one with the worst case as beta; a beta that is too small stops it."""
    ridge = 0.01 if form == "multi-stage" else 0.0
    asked = changed(problem(clip=1.0), ridge=ridge)
    given, worst = (kind(form=form, rounds=40, smoothness=each) for each in (0.5, "worst-case"))
    plan = given.plan(asked)
    assert plan.phases == worst.plan(changed(asked, smoothness=0.5)).phases != worst.plan(asked).phases
    small = kind(form=form, rounds=40, smoothness=0.01)
    with pytest.raises(InputError, match=r"algorithm\.smoothness = 0\.01 is less than"):
        quadratics(small, small.plan(asked), [5.0, 1.0, 1.0, 1.0])
