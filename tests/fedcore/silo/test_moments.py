"""The statistic behind released components: its sensitivity, its sum, the constants that follow from it."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from sklearn.decomposition import PCA

from fedcore.accounting.calibration import Budget
from fedcore.accounting.events import mean_sensitivity
from fedcore.algorithms import Mbsgd, SecondMoments
from fedcore.data.constants.pca import Projection
from fedcore.data.records import Records
from fedcore.errors import InputError, SiloError
from fedcore.experiment.released.noise import eigenvalue_noise
from fedcore.federation.in_process import InProcess
from fedcore.federation.rounds import RunContext, rounds
from fedcore.ledger.memory import MemoryLedger
from fedcore.mechanisms.grid import Grid, grid_sensitivity
from fedcore.planning.problem import SiloFacts
from fedcore.planning.sensitivity.moments import half_diameter, largest_norm, length, unpacked
from fedcore.silo.agreement import Agreement
from fedcore.silo.answers.moments import moment_sum
from fedcore.silo.keys import SecretKeys
from fedcore.silo.private_silo import PrivateSilo
from fedcore.silo.site import Site
from tests.gaussian_curve import mu_by_hand
from tests.problems import changed_phase, problem_of


def frobenius(x, y, bound):
    """|t(x) - t(y)| without the vector t: matrices in full, so no factor sqrt(2) of a triangle is needed."""
    return math.hypot(bound * np.linalg.norm(x - y), np.linalg.norm(np.outer(x, x) - np.outer(y, y)))


def adversarial(rng, features, bound):
    """Pairs of records within and beyond the bound: grids of angles and norms, opposites, axes, random ones."""
    plane = np.eye(features)[:2]
    for angle, norm in itertools.product(np.linspace(0, np.pi, 61), (0.0, 0.3, 0.7, 0.9, 1.0, 5.0)):
        yield bound * plane[0], norm * bound * (math.cos(angle) * plane[0] + math.sin(angle) * plane[1])
    for _ in range(300):
        x, y = rng.standard_normal((2, features)) * 10.0 ** rng.uniform(-3, 3, size=(2, 1)) * bound
        yield x, y
        yield x, -x
        yield x, np.zeros(features)
    yield np.full(features, 1e200), np.full(features, -1e200)
    yield np.full(features, 1e-200), np.full(features, 1.7e308)


@pytest.mark.parametrize(("features", "bound"), [(2, 1.0), (5, 0.01), (9, 30.0)])
def test_one_replaced_record_never_moves_the_sum_by_more_than_charged_and_nearly_as_much(features, bound):
    rng = np.random.default_rng(features)
    charged, worst = 2 * half_diameter(bound), 0.0
    rest = rng.standard_normal((6, features)) * bound
    for x, y in adversarial(rng, features, bound):
        one, other = (moment_sum(np.vstack([rest, record]), bound) for record in (x, y))
        moved = float(np.linalg.norm(one - other))
        assert moved <= charged * (1 + 1e-9)
        worst = max(worst, moved)
        # A sum over one record is t itself: it is within its stated norm, and agrees with full matrices.
        assert np.linalg.norm(moment_sum(x[None], bound)) <= largest_norm(bound) * (1 + 1e-12)
    assert worst >= charged * (1 - 1e-4)
    assert charged == pytest.approx(3 / math.sqrt(2) * bound**2, rel=1e-15)
    assert charged < 2 * largest_norm(bound)


def test_a_numerical_search_over_all_pairs_finds_the_proven_maximum():
    """Independent of the proof: gradient-free ascent over norms and angle, on full matrices."""
    from scipy.optimize import differential_evolution

    def moved(v):
        r, s, angle = v
        x, y = np.array([r, 0.0]), s * np.array([math.cos(angle), math.sin(angle)])
        return -frobenius(x, y, 1.0)

    found = differential_evolution(moved, [(0, 1), (0, 1), (0, math.pi)], seed=0, tol=1e-12)
    assert -found.fun == pytest.approx(2 * half_diameter(1.0), rel=1e-9)
    assert math.degrees(found.x[2]) == pytest.approx(120, abs=0.1)


@pytest.mark.parametrize("features", [1, 2, 7])
def test_the_sum_is_that_of_clipped_records_and_unpacks_to_their_moments(features):
    rng = np.random.default_rng(3)
    X = rng.standard_normal((40, features)) * np.geomspace(0.01, 100, 40)[:, None]
    X[7] = 0.0
    bound = 2.5
    clipped = np.array([x * min(1.0, bound / max(np.linalg.norm(x), 1e-300)) for x in X])
    total = moment_sum(X, bound)
    assert total.shape == (length(features),)
    mean, second = unpacked(total / len(X), features, bound)
    np.testing.assert_allclose(mean, clipped.mean(axis=0), rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(second, clipped.T @ clipped / len(X), rtol=1e-12, atol=1e-14)
    np.testing.assert_array_equal(second, second.T)
    with pytest.raises(ValueError, match=f"{length(features)} numbers"):
        unpacked(total[1:], features, bound)


def test_norms_of_the_vector_are_those_of_the_matrices():
    rng = np.random.default_rng(0)
    for x, y in rng.standard_normal((20, 2, 4)):
        x, y = x / np.linalg.norm(x), y / np.linalg.norm(y)
        moved = np.linalg.norm(moment_sum(x[None], 1.0) - moment_sum(y[None], 1.0))
        assert moved == pytest.approx(frobenius(x, y, 1.0), rel=1e-12)


def problem(bound=1.0, features=3, **change):
    values = dict(
        silos=(SiloFacts("a", 40), SiloFacts("b", 90)),
        dim=length(features),
        clip=half_diameter(bound),
        smoothness=math.inf,
        diameter=math.inf,
        participants=2,
        budget=Budget(1.0, 1e-5),
    )
    return problem_of(**{**values, **change})


def test_the_plan_is_one_answer_with_the_closed_formulas_noise():
    """sigma by hand: Balle and Wang's curve, solved for mu on the normal distribution function."""
    plan = SecondMoments(3, 1.0).plan(problem())
    (phase,) = plan.phases
    assert phase.rounds == plan.rounds == 1

    for share in phase.shares:
        sensitivity = 3 / math.sqrt(2) * (1 + 1e-6) / share.n
        assert share.sigma == pytest.approx(sensitivity / mu_by_hand(1.0, 1e-5), rel=1e-7)
        assert share.epsilon_accounted == pytest.approx(1.0, rel=1e-9) and share.epsilon_accounted <= 1
        assert (share.start, share.batch) == (0, share.n)
    assert plan.as_json()["totals"]["epsilon_paper"] is None


@pytest.mark.parametrize("change", [{"dim": 4}, {"clip": 0.5}, {"clip": 2.0}])
def test_a_problem_with_another_sensitivity_or_length_is_refused(change):
    with pytest.raises(InputError, match=r"moments of 3 features"):
        SecondMoments(3, 1.0).plan(problem(**change))


def test_silos_weigh_by_their_records():
    method, made = SecondMoments(2, 1.0), problem(features=2)
    (phase,) = method.plan(made).phases
    state = method.init(np.zeros(5))
    after = method.server_update(state, {0: np.full(5, 13.0), 1: np.zeros(5)}, phase)
    np.testing.assert_allclose(method.output(after), 4.0)  # 40 of 130 records


def angles(one, other):
    return np.arccos(np.clip(np.linalg.svd(one @ other.T, compute_uv=False), -1, 1))


def test_constants_of_exact_moments_are_those_of_the_records():
    rng = np.random.default_rng(5)
    X = rng.standard_normal((500, 6)) * np.array([5, 4, 3, 1, 0.5, 0.2]) @ np.linalg.qr(rng.standard_normal((6, 6)))[0]
    X += 2.0
    mean, second = X.mean(axis=0), X.T @ X / len(X)
    made, fitted = Projection.of_moments(mean, second, 3), Projection.fit([X], 3)
    np.testing.assert_allclose(made.components, fitted.components, atol=1e-10)
    assert made.divide_by == pytest.approx(fitted.divide_by, rel=1e-12)
    judge = PCA(3).fit(X)
    assert angles(made.components, judge.components_).max() < 1e-6
    # scikit-learn divides by n - 1.
    assert made.divide_by**2 == pytest.approx(judge.explained_variance_.sum() * 499 / 500, rel=1e-10)
    # Noise need not be symmetric: only the symmetric part counts.
    skew = np.triu(rng.standard_normal((6, 6)), 1)
    np.testing.assert_allclose(
        Projection.of_moments(mean, second + skew - skew.T, 3).components, made.components, atol=1e-9
    )


def test_variance_that_noise_has_swallowed_is_an_error_that_names_epsilon():
    with pytest.raises(InputError, match=r"data\.pca\.epsilon is too small: .* is -2, not positive; .* stays charged"):
        Projection.of_moments(np.zeros(3), -np.eye(3), 2)
    with pytest.raises(InputError, match="dimension = 4 is more than the 3 features"):
        Projection.of_moments(np.zeros(3), np.eye(3), 4)


# At a silo


def silo(X, guarded=False, **change):
    """A silo of these records, a statistics plan for it, and the query of its one round."""
    n, features = X.shape
    mechanism = "discrete-gaussian" if guarded else "gaussian"
    made = problem(
        features=features,
        silos=(SiloFacts("a", n),),
        participants=1,
        **{"budget": Budget(8.0, 1e-5, mechanism=mechanism), **change},
    )
    method = SecondMoments(features, 1.0)
    made_silo = PrivateSilo("a", Records(X, np.ones(n)), SecretKeys(b"k" * 32), MemoryLedger("a"), guarded=guarded)
    plan = method.plan(made)
    backend = InProcess(Site([made_silo]), Agreement("run", made, method, None, plan.digest))
    context = RunContext("run", plan, method, b"public")
    return backend, context, method


@pytest.mark.parametrize("guarded", [False, True])
def test_a_silos_answer_is_its_moments_with_the_planned_noise(guarded):
    rng = np.random.default_rng(1)
    X = rng.standard_normal((20_000, 4)) * np.array([0.6, 0.4, 0.1, 0.1])
    backend, context, method = silo(X, guarded)
    backend.open()
    ((_, (release,), state),) = rounds(context, method.init(np.zeros(length(4))), backend.ask)
    clipped = X * np.minimum(1, 1 / np.linalg.norm(X, axis=1))[:, None]
    share, phase = context.plan.phases[0].shares[0], context.plan.phases[0]
    deviation = (release.payload - moment_sum(clipped, 1.0) / len(X)) / share.sigma
    assert 0.3 < deviation.std() < 2 and np.abs(deviation).max() < 6
    mean, second = unpacked(state.moments, 4, 1.0)
    judge = PCA(2).fit(clipped)
    assert np.degrees(angles(Projection.of_moments(mean, second, 2).components, judge.components_).max()) < 1
    if guarded:
        grid = Grid.of(share.sigma * share.n, phase.question.clip, share.n, length(4), norm=largest_norm(1.0))
        steps = release.payload * share.n / grid.step
        assert np.abs(steps - np.rint(steps)).max() <= 2e-16 * np.abs(steps).max()
        charged = grid_sensitivity(mean_sensitivity(half_diameter(1.0), share.n), grid.step / share.n, length(4))
        assert charged <= phase.event("a", 1).sensitivity


def test_equal_records_of_the_largest_norm_are_answered_by_a_guarded_silo():
    """Their sum is n times the largest norm, beyond n times the clipping bound: no outcome may depend on that."""
    X = np.tile([1.0, 0, 0], (50, 1))
    backend, context, method = silo(X, guarded=True)
    backend.open()
    ((_, (release,), _),) = rounds(context, method.init(np.zeros(9)), backend.ask)
    assert np.linalg.norm(moment_sum(X, 1.0)) == pytest.approx(50 * largest_norm(1.0), rel=1e-12)
    assert np.isfinite(release.payload).all()


def test_a_record_that_is_not_finite_counts_as_zero():
    X = np.full((50, 3), 0.1)
    X[3, 1], X[4, 0] = np.nan, np.inf
    backend, context, method = silo(X, budget=Budget(None, 1e-5))
    backend.open()
    ((_, (release,), _),) = rounds(context, method.init(np.zeros(9)), backend.ask)
    X[3:5] = 0
    np.testing.assert_allclose(release.payload, moment_sum(X, 1.0) / 50, rtol=1e-13)


class Greedy(SecondMoments):
    """Plans for records of a larger norm than it charges for."""

    def plan(self, problem):
        made = super().plan(problem)
        return replace(made, phases=(changed_phase(made.phases[0], record_bound=1.01 * self.bound),))


class Prying(Mbsgd):
    """A training method that queries moments in a round that was planned for a gradient."""

    def silo_step(self, sent, silo):
        return silo.ask("moments")


def test_moments_that_the_plan_does_not_charge_for_are_refused(federate):
    backend, context, _ = silo(np.ones((50, 3)))
    greedy, problem = Greedy(3, 1.0), context.plan.problem
    with pytest.raises(SiloError, match="phase 1 does not charge for its answers, moments"):
        backend._site.agree(Agreement("other", problem, greedy, None, greedy.plan(problem).digest))
    made = federate(Prying(rounds=1), {"a": (np.ones((50, 3)), np.ones(50))}, clip=1.0)
    with pytest.raises(SiloError, match="asked for moments where gradient is planned"):
        made.final()


def test_the_stated_noise_of_eigenvalues_is_what_sampled_noise_does():
    rng = np.random.default_rng(0)
    features = 60
    made = problem(features=features)
    plan = SecondMoments(features, 1.0).plan(made)
    largest = []
    for _ in range(20):
        pooled = sum(s.n * s.sigma * rng.standard_normal(length(features)) for s in plan.phases[0].shares) / 130
        largest.append(np.abs(np.linalg.eigvalsh(unpacked(pooled, features, 1.0)[1])).max())
    assert eigenvalue_noise(plan) == pytest.approx(np.mean(largest), rel=0.1)
