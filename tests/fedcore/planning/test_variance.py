"""The variance of the mean message: by hand, and as it is seen over rounds of silos that answer and are averaged."""

import dataclasses
import itertools
import math

import numpy as np
import pytest

from fedcore.accounting.calibration import Budget
from fedcore.algorithms import LocalizedAccelerated, Mbsgd
from fedcore.optim.averaging import Messages, mean_message
from fedcore.planning.phases.training_phase import make_phase
from fedcore.planning.problem import SiloFacts
from fedcore.planning.stages import gradient_variance
from tests.problems import problem_of


def of(dim, sigmas, clip, M, batches, records, weights=None, drawn_points=False, blocks=None):
    """V^2 of silos with these noises and batches, M of them in a round."""
    silos = tuple(SiloFacts(f"s{i}", n) for i, n in enumerate(records))
    problem = problem_of(silos, dim, clip, 1.0, 4.0, M, Budget(None, 1e-5), weights=weights, drawn_points=drawn_points)
    phase = make_phase(problem, 1, blocks or 1, {silo.name: (0, silo.n) for silo in silos}, blocks=blocks)
    shares = [
        dataclasses.replace(share, sigma=sigma, batch=K)
        for share, sigma, K in zip(phase.shares, sigmas, batches, strict=True)
    ]
    return gradient_variance(problem, dataclasses.replace(phase, shares=tuple(shares)))


def test_equal_silos_by_hand():
    # d sigma^2 / M = 5 * 4 / 3; L^2 / (M K) = 9 / 30; (L^2 / M)(N - M)/(N - 1) = 3 * 4 / 6.
    assert of(5, [2.0] * 3, 3.0, 3, [10] * 3, [10] * 3) == 20 / 3
    assert of(5, [2.0] * 3, 3.0, 3, [10] * 3, [11] * 3) == pytest.approx(20 / 3 + 0.3)
    assert of(5, [2.0] * 7, 3.0, 3, [10] * 7, [11] * 7) == pytest.approx(20 / 3 + 0.3 + 2.0)
    assert of(5, [0.0], 3.0, 1, [10], [10]) == 0.0
    # Drawn points vary with all records, too, and so do fresh blocks, even if there is one: it stands for its source.
    assert of(3, [2.0] * 5, 1.0, 5, [20] * 5, [20] * 5, drawn_points=True) == pytest.approx(2.4 + 0.01)
    assert of(3, [2.0] * 5, 1.0, 5, [20] * 5, [20] * 5, blocks=1) == pytest.approx(2.4 + 0.01)


def test_unequal_silos_by_hand():
    """Weights 1/2, 1/2, 2 of three silos, two of which take part.

    d mean(c^2 sigma^2) / M = 5 (1/4 + 4/4 + 4 * 9) / 3 / 2; mean(1{K < n} c^2 L^2 / K) / M = (0 + 4/4/2 + 4 * 4/8) / 3
    / 2; mean(c^2) = 4.5 / 3, times L^2 / M = 2, times (3 - 2) / 2.
    """
    found = of(5, [1.0, 2.0, 3.0], 2.0, 2, [9, 2, 8], [9, 4, 12], weights=(0.5, 0.5, 2.0))
    assert found == pytest.approx(5 * 37.25 / 6 + (0.5 + 2.0) / 6 + 1.5, rel=1e-13)


WEIGHTS = (0.4, 1.9, 0.7, 1.0)
SIZES = (6, 30, 15, 60)


@pytest.fixture
def silos():
    rng = np.random.default_rng(5)
    return {f"s{i}": (rng.standard_normal((n, 3)), 4 * rng.standard_normal(n)) for i, n in enumerate(SIZES)}


def gradients(federation):
    """Each silo's clipped gradients at 0, record by record."""
    for silo in federation.silos.values():
        records = silo._runs["run"]
        g = -records.y[:, None] * records.X
        yield g * np.minimum(1, 1 / np.linalg.norm(g, axis=1))[:, None]


def between(means, M):
    """(N - M)/((N - 1) M) times the variance of the silos' weighted gradients."""
    N, centre = len(means), np.mean(means, axis=0)
    return (N - M) / ((N - 1) * M) * np.mean([((g - centre) ** 2).sum() for g in means])


def seen(federation, rounds):
    """Mean of |mean message - true gradient|^2 over a run whose model does not move, and its standard error."""
    true = np.mean([c * g.mean(0) for c, g in zip(WEIGHTS, gradients(federation), strict=True)], axis=0)
    errors = []
    for _, releases, _ in federation.play():
        messages = {
            federation.plan.problem.silos.index(federation.plan.problem.facts[each.silo]): each.payload
            for each in releases
        }
        errors.append(((mean_message(Messages(messages, WEIGHTS)) - true) ** 2).sum())
    assert len(errors) == rounds
    return np.mean(errors), np.std(errors) / math.sqrt(rounds)


@pytest.mark.parametrize("numbers", [(1,), (2,), (4,), (1, 2, 4)])
def test_noise_of_unequal_silos_is_what_is_seen_and_below_the_published_bound(federate, silos, numbers):
    """Also with a new number of participants in each round, each of these equally likely."""
    rounds, M = 1500, 1 / np.mean([1 / m for m in numbers])
    method = Mbsgd(step=1e-12, rounds=rounds)
    asked = numbers if len(numbers) > 1 else numbers[0]
    federation = federate(method, silos, participants=asked, epsilon=3.0, delta=None, weights=WEIGHTS)
    phase = federation.plan.phases[0]
    own = [c**2 * share.sigma**2 for c, share in zip(WEIGHTS, phase.shares, strict=True)]
    assert max(own) > 5 * min(own)
    exact = 3 * np.mean(own) / M
    means = [c * g.mean(0) for c, g in zip(WEIGHTS, gradients(federation), strict=True)]
    found, error = seen(federation, rounds)
    assert abs(found - exact - between(means, M)) < 4 * error < 0.25 * exact
    V2 = gradient_variance(federation.plan.problem, phase)
    assert found <= V2 + 4 * error
    # d min{Sigma^2 / M', sigma_max^2 / M}, Sigma^2 of the means of the M_r largest.
    Sigma2 = math.sqrt(np.mean([np.mean(sorted(own)[-m:]) ** 2 for m in numbers]))
    published = 3 * min(Sigma2 * math.sqrt(np.mean([m**-2 for m in numbers])), max(own) / M)
    assert V2 - np.mean(np.square(WEIGHTS)) * (4 - M) / (3 * M) == pytest.approx(exact, rel=1e-9)
    assert exact <= published * (1 + 1e-12)
    if M < 4:
        assert exact < 0.8 * published


def test_samples_of_unequal_silos_stay_below_their_bound(federate, silos):
    """Without noise: the rest of the variance is from participation and coins, both known exactly here."""
    rounds, M = 1500, 2
    federation = federate(
        Mbsgd(step=1e-12, rounds=rounds, batch=2), silos, participants=M, epsilon=None, weights=WEIGHTS
    )
    phase = federation.plan.phases[0]
    own = list(gradients(federation))
    coins = np.mean(
        [  # (1 - q) / (q n^2) times the sum of squares: each record's own coin of probability q
            c**2 * (1 - share.rate) / share.rate * (g**2).sum() / share.n**2
            for c, share, g in zip(WEIGHTS, phase.shares, own, strict=True)
        ]
    )
    expected = coins / M + between([c * g.mean(0) for c, g in zip(WEIGHTS, own, strict=True)], M)
    found, error = seen(federation, rounds)
    assert abs(found - expected) < 4 * error < 0.2 * expected
    assert found < gradient_variance(federation.plan.problem, phase)


def test_with_a_random_number_of_participants_M_is_the_harmonic_mean():
    """The exact expectation, over the numbers 1 and 3 and all subsets, of noise and of who takes part; 1/M = 2/3."""
    silos = tuple(SiloFacts(f"s{i}", n) for i, n in enumerate((20, 9, 30)))
    problem = problem_of(silos, 2, 1.0, 1.0, 4.0, (1, 3), Budget(1.0, 1e-5), weights=(0.5, 1.5, 1.0))
    phase = make_phase(problem, 1, 3, {silo.name: (0, silo.n) for silo in silos})
    rng = np.random.default_rng(0)
    g = rng.standard_normal((3, 2))
    g /= np.linalg.norm(g, axis=1)[:, None]
    own = np.array(problem.weights)[:, None] * g
    noise = np.array([c**2 * share.sigma**2 * 2 for c, share in zip(problem.weights, phase.shares, strict=True)])
    expected = spread = 0.0
    for M in (1, 3):
        subsets = list(itertools.combinations(range(3), M))
        for subset in map(list, subsets):
            expected += noise[subset].sum() / M**2 / len(subsets) / 2
            spread += ((own[subset].mean(0) - own.mean(0)) ** 2).sum() / len(subsets) / 2
    V2 = gradient_variance(problem, phase)
    assert expected < expected + spread <= V2
    # Silos that pull in opposite directions: what V^2 has beside noise is mean(c^2)(N - M)/((N - 1) M).
    assert V2 - expected == pytest.approx(np.mean(np.square(problem.weights)) * 1.5 / (2 * 1.5), rel=1e-12)


UNEQUAL = tuple(SiloFacts(f"s{i}", n) for i, n in enumerate((64, 80, 200)))
EQUAL = tuple(SiloFacts(f"s{i}", 64) for i in range(5))


@pytest.mark.parametrize(
    "hyper, changes, digest",
    [
        ({}, {}, "2889b0b391ebcb753b71b25b0dbda88b6a9ea259af647358efaeaae8f915b241"),
        ({"rounds": (40, 20)}, {}, "45fd20710e27e3ad5c571fbe4400ac2e297932fb9adb3a47adea3343e92a45e5"),
        (
            {"gap": "paper", "rounds": 9},
            {"participants": 3},
            "4fc5919c33b798980de86456453f8c2e9ec745626aacd193988cb31deda9e6cf",
        ),
        ({"rounds": (40, 20)}, {"ridge": 0.05}, "135b208e2d7bb808d36dccc71451df65771bf83c6ecf96b807a3a79cee95be17"),
        (
            {"rounds": (40, 20)},
            {"drawn_points": True},
            "d3ce645babfdb4fb9d51abfc3af0e1618b6d26dc60f642a1a4aaa91ceac67283",
        ),
        ({}, {"budget": Budget(None, 1e-5)}, "5ffd2ab3e53a469b119083262f0c3a51420f51f5ba240dda8f9338bc21746090"),
    ],
)
def test_equal_silos_keep_their_plans(hyper, changes, digest):
    """Digests of schema 3, which no later change may move under this schema: run keys follow from them."""
    given = {"participants": 5, "budget": Budget(1.0, 1e-5)} | changes
    problem = problem_of(EQUAL, 6, 1.0, 0.25, 8.0, **given)
    assert LocalizedAccelerated(**hyper).plan(problem).digest == digest


def test_equal_silos_with_samples_keep_every_bit():
    """Sigma of samples is searched, and its last bits are the processor's: so V^2 as it was, of the same sigma."""
    problem = problem_of(EQUAL, 6, 1.0, 0.25, 8.0, 3, Budget(1.0, 1e-5))
    phase = LocalizedAccelerated(rounds=12, batch=8, lam=0.1, max_phases=1).plan(problem).phases[0]
    assert phase.settings["variance"] == 6 * phase.sigma**2 / 3 + 1.0 / (3 * 8) + 1.0 / 3 * (5 - 3) / max(5 - 1, 1)


def test_unequal_silos_have_a_plan_for_less_variance_than_that_of_the_noisiest():
    problem = problem_of(UNEQUAL, 6, 1.0, 0.25, 8.0, 3, Budget(1.0, 1e-5))
    phase = LocalizedAccelerated(rounds=9, max_phases=1).plan(problem).phases[0]
    noisiest = 6 * phase.sigma**2 / 3
    assert phase.settings["variance"] == pytest.approx(6 * np.mean([s.sigma**2 for s in phase.shares]) / 3, rel=1e-13)
    assert phase.settings["variance"] < 0.6 * noisiest
