"""Subgradient methods and smoothing: schedules by hand, second implementations, and optima found by other means."""

import dataclasses
import math

import numpy as np
import pytest
from scipy.optimize import linprog, minimize

from fedcore.accounting.calibration import Budget
from fedcore.algorithms import LocalizedAccelerated, LocalizedMbsgd, LocalizedSubgradient, Mbsgd, with_trait
from fedcore.algorithms.mb_subgradient import MbSubgradient
from fedcore.errors import InputError
from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.experiment import Experiment
from fedcore.experiment.problem import training_loss
from fedcore.federation.rounds import rounds
from fedcore.home import LedgerFolders
from fedcore.losses import Absolute, Convolution, Hinge, Moreau, Quantile, unsmoothed
from fedcore.models.smoothing import ConvolutionSmoothing, MoreauSmoothing
from fedcore.optim.averaging import Messages
from fedcore.planning.problem import SiloFacts
from tests.problems import problem_of
from tests.selection import some_in_make_test


def problem(n=256, silos=16, d=20, L=1.0, D=4.0, epsilon=2.0, delta=1e-5, participants=None, calibration="exact"):
    """A problem with a nonsmooth loss; by default the worked example of spec section 4."""
    facts = tuple(SiloFacts(f"s{i}", n) for i in range(silos))
    return problem_of(facts, d, L, math.inf, D, participants or silos, Budget(epsilon, delta, calibration))


# Schedules


def test_the_schedule_of_algorithm_4_by_hand():
    """eta = 16 min(1/16, 2/sqrt(20 ln 1e5) = 0.1318) = 1, so eta_i = 8^-i and lambda_i = 8^i / n_i."""
    plan = LocalizedSubgradient().plan(problem())
    assert [phase.n for phase in plan.phases] == [128, 64, 32, 16, 8, 4, 2, 1]
    lam = [8 / 128, 64 / 64, 512 / 32, 4096 / 16, 32768 / 8, 262144 / 4, 2097152 / 2, 16777216]
    np.testing.assert_allclose([phase.subproblem.lam for phase in plan.phases], lam, rtol=1e-12)
    np.testing.assert_allclose(
        [phase.subproblem.radius for phase in plan.phases], [2 / value for value in lam], rtol=1e-12
    )
    # min(M n_i, M eps^2 n_i^2 / d): the first term up to phase 5, then 64 n_i^2 / 20 = 51.2, 12.8, 3.2.
    assert [phase.rounds for phase in plan.phases] == [2049, 1025, 513, 257, 129, 52, 13, 4]
    # Exact noise for all rounds of the phase: 2 L sqrt(R_i) / (n_i mu*), mu*(2, 1e-5) = 0.501552 (spec 10.1).
    sigmas = [2 * math.sqrt(R) / (n * 0.501552) for R, n in ((2049, 128), (1025, 64), (4, 1))]
    np.testing.assert_allclose([plan.phases[i].sigma for i in (0, 1, 7)], sigmas, rtol=1e-5)


def test_the_schedule_with_the_printed_noise():
    plan = LocalizedSubgradient().plan(problem(calibration="paper"))
    ln = math.log
    for phase in plan.phases:
        variance = 256 * phase.rounds * ln(2.5 * phase.rounds / 1e-5) * ln(2 / 1e-5) / (phase.n**2 * 4)
        assert phase.sigma == pytest.approx(math.sqrt(variance), rel=1e-12)


def test_the_schedule_rounds_pieces_down_and_knows_where_noise_decides():
    plan = LocalizedSubgradient().plan(problem(n=100, epsilon=0.5, L=3.0, participants=4))
    # eta = (4 sqrt(4) / 3) min(1/10, 0.5 / sqrt(20 ln 1e5) = 0.0329505)
    eta = 8 / 3 * 0.5 / math.sqrt(20 * math.log(1e5))
    n = [50, 25, 12, 6, 3, 1]
    np.testing.assert_allclose(
        [p.subproblem.lam for p in plan.phases], [8**i / (eta * m) for i, m in enumerate(n, 1)], rtol=1e-12
    )
    np.testing.assert_allclose([p.subproblem.radius * p.subproblem.lam for p in plan.phases], 6.0, rtol=1e-12)
    # 4 * 0.25 * n_i^2 / 20 = 125, 31.25, 7.2, 1.8, 0.45, 0.05 and 4 n_i = 200, 100, ...
    assert [phase.rounds for phase in plan.phases] == [126, 32, 8, 2, 1, 1]
    starts = [phase.by_silo["s0"].start for phase in plan.phases]
    assert starts == [0, 50, 75, 87, 93, 96]


def test_the_schedule_without_noise_and_with_a_users_numbers():
    plan = LocalizedSubgradient().plan(problem(epsilon=None))
    assert [phase.rounds for phase in plan.phases][:2] == [16 * 128 + 1, 16 * 64 + 1]
    assert plan.phases[0].subproblem.lam == pytest.approx(1 / 16)
    plan = LocalizedSubgradient(lam=0.5, exponent=1.0, rounds=(7, 3), max_phases=3).plan(problem())
    assert [phase.subproblem.lam for phase in plan.phases] == [
        0.5 * 256 * 2 / 128,
        0.5 * 256 * 4 / 64,
        0.5 * 256 * 8 / 32,
    ]
    assert [phase.rounds for phase in plan.phases] == [7, 3, 3]
    asked = LocalizedSubgradient(rounds=(7, 3, 1), index="textbook", max_phases=3).plan(problem())
    assert [phase.rounds for phase in asked.phases] == [6, 2, 1]
    assert asked.phases[0].sigma == pytest.approx(2 * math.sqrt(6) / (128 * 0.501552), rel=1e-5)


def test_the_weight_of_the_one_phase_method_by_hand():
    (phase,) = MbSubgradient(rounds=35).plan(problem(epsilon=None, L=3.0)).phases
    assert phase.subproblem.lam == pytest.approx(4 * 3 / (4 * 6))  # 4 L / (D sqrt(36))
    assert (phase.rounds, phase.n, phase.subproblem.radius) == (35, 256, math.inf)
    (phase,) = MbSubgradient(rounds=35).plan(problem()).phases
    sigma = 2 * math.sqrt(35) / (256 * 0.501552)
    assert phase.subproblem.lam == pytest.approx(4 * math.sqrt(1 + 20 * sigma**2 / 16) / 24, rel=1e-6)
    # No other weight makes bias and bound together smaller.
    bound = lambda lam: lam * 2 / 1 + 2 * (1 + 20 * sigma**2 / 16) / (lam * 36)  # noqa: E731
    assert bound(phase.subproblem.lam) <= min(bound(0.99 * phase.subproblem.lam), bound(1.01 * phase.subproblem.lam))
    (phase,) = MbSubgradient(lam=0.7).plan(problem()).phases
    assert phase.subproblem.lam == 0.7


def test_theory_of_smoothing_by_hand():
    """b = (L sqrt(M)/D) min(sqrt(n), eps n / sqrt(d ln(1/delta))); s = (D/sqrt(M))(1/sqrt(n) + ...) (spec 7.4, 7.6)."""
    noise = math.sqrt(20 * math.log(1e5))  # 15.174
    assert MoreauSmoothing().of(Hinge(), problem(), 1.0).weight == pytest.approx(16.0)  # 1 * 4 / 4 * min(16, 33.7)
    assert MoreauSmoothing().of(Hinge(), problem(L=3.0), 3.0).weight == pytest.approx(48 / 9)
    assert MoreauSmoothing().of(Hinge(), problem(epsilon=0.1), 1.0).weight == pytest.approx(25.6 / noise)
    assert MoreauSmoothing(beta=5.0).of(Hinge(), problem(), 2.0).weight == 1.25
    loss = ConvolutionSmoothing().of(Absolute(), problem(), 3.0)
    assert (loss.loss, loss.dim) == (Absolute(), 20)
    assert loss.reach == pytest.approx(3 * (1 / 16 + noise / 512))
    assert ConvolutionSmoothing().of(Hinge(), problem(epsilon=None), 1.0).reach == pytest.approx(1 / 16)
    assert ConvolutionSmoothing(radius=0.25).of(Hinge(), problem(), 2.0).reach == 0.5


# Whole methods against second implementations


def ball(z, r):
    return z * min(1.0, r / max(np.linalg.norm(z), 1e-300))


def absolute_gradient(silo, w, start, stop, clip):
    X, y = silo.X[start:stop], silo.y[start:stop]
    g = np.sign(X @ w - y)[:, None] * X
    return (g * np.minimum(1, clip / np.linalg.norm(g, axis=1))[:, None]).mean(0)


@pytest.mark.parametrize("index", ["paper", "textbook"])
def test_localized_subgradient_by_hand(federate, toy, index):
    method = LocalizedSubgradient(rounds=(6, 4, 2), lam=0.02, exponent=1.0, index=index)
    federation = federate(method, toy, epsilon=None, loss=Absolute(), clip=1.2, diameter=1e6, smoothness=math.inf)
    silos, centre = [silo._runs["run"] for silo in federation.silos.values()], np.zeros(4)
    sizes, bound = (16, 21, 19), 0
    for i, R in ((1, 6), (2, 4), (3, 2), (4, 2)):  # n = 16 at the smallest silo: four phases
        lam, seen = 0.02 * 16 * 2**i / (16 // 2**i), []
        w = centre
        if index == "textbook":
            seen.append(w)
        for r in range(1 if index == "textbook" else 0, R):
            spans = [(sum(n // 2**j for j in range(1, i)), n // 2**i) for n in sizes]
            g = [absolute_gradient(s, w, at, at + n, 1.2) for s, (at, n) in zip(silos, spans, strict=True)]
            g = np.mean(g, axis=0) + lam * (w - centre)
            z = w - 2 / (lam * (r + 1)) * g
            w = centre + ball(z - centre, 2 * 1.2 / lam)
            bound += not np.allclose(w, z)
            seen.append(w)
        assert len(seen) == R
        centre = sum(r * w for r, w in enumerate(seen, 1)) * 2 / (R * (R + 1))
    np.testing.assert_allclose(federation.final(), centre, rtol=1e-9)


@pytest.mark.parametrize("index, asked", [("paper", 9), ("textbook", 8)])
def test_mb_subgradient_by_hand(federate, toy, index, asked):
    method = MbSubgradient(rounds=9, lam=0.3, index=index)
    federation = federate(method, toy, epsilon=None, loss=Quantile(tau=0.8), clip=9.0, diameter=1.5)
    assert federation.plan.rounds == asked
    w, seen = np.zeros(4), []
    if index == "textbook":
        seen.append(w)
    for k in range(2 if index == "textbook" else 1, 10):
        g = 0.3 * w
        for X, y in toy.values():
            # rho(y - z) = max(tau (y - z), (tau - 1)(y - z)): slope -tau below y, 1 - tau above.
            slope = np.where(X @ w < y, -0.8, np.where(X @ w > y, 0.2, 0.0))
            g = g + slope @ X / len(y) / 3
        w = ball(w - 2 / (0.3 * k) * g, 0.75)
        seen.append(w)
    wanted = np.average(seen, axis=0, weights=range(1, 10))
    np.testing.assert_allclose(federation.final(), wanted, rtol=1e-10)


def test_noise_stays_below_the_error_bound(federate):
    """2 B^2 / (lambda (R+1)) on a strongly convex, nonsmooth objective, mean of 60 runs, both indices."""
    lam, R, d, sigma = 0.5, 30, 5, 0.4
    rng = np.random.default_rng(2)
    for index in ("paper", "textbook"):
        method = MbSubgradient(rounds=R, lam=lam, index=index)
        (phase,) = method.plan(dataclasses.replace(problem(d=d, D=20.0, epsilon=None), participants=1)).phases
        gaps = []
        for _ in range(60):
            state = method.init(np.zeros(d))
            while state.phase == 1:
                w = method.broadcast(state, phase)["w"]
                # f = sqrt(d) mean |w_j - 1| is 1-Lipschitz; f + lam/2 |w|^2 is least at w_j = min(1, 1/(sqrt(d) lam)).
                noisy = np.sign(w - 1) / math.sqrt(d) + sigma * rng.standard_normal(d)
                state = method.server_update(state, Messages({0: noisy}), phase)
            gaps.append(np.abs(state.mean - 1).sum() / math.sqrt(d) + lam / 2 * state.mean @ state.mean)
        star = np.full(d, min(1.0, 1 / (math.sqrt(d) * lam)))
        least = np.abs(star - 1).sum() / math.sqrt(d) + lam / 2 * star @ star
        bound = 2 * ((1 + lam * 10) ** 2 + d * sigma**2) / (lam * (R + 1))
        assert 0 < np.mean(gaps) - least <= bound


# Known optima without noise


def one_record_silos(x, y, copies=64):
    """Silo l repeats the record (x_l, y_l), so every shard is the same problem with weight 1/N per record."""
    pairs = enumerate(zip(x, y, strict=True))
    return {f"s{i:02}": (np.tile(row, (copies, 1)), np.full(copies, label)) for i, (row, label) in pairs}


METHODS = [LocalizedSubgradient(lam=0.002, exponent=1.0, rounds=(800, 400, 200, 100)), MbSubgradient(rounds=2000)]


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_absolute_loss_ends_at_the_weighted_median(federate, method):
    """sum |x_l w - y_l| = sum x_l |w - y_l / x_l|: a median of y / x with weights x."""
    x, y = np.array([[1.0], [2], [1], [5], [2]]), np.array([-3.0, 1, 0.5, 4, 6])
    # y / x = -3 (1), 0.5 (2), 0.5 (1), 0.8 (5), 3 (2): total 11, the weight passes 5.5 at 0.8.
    federation = federate(method, one_record_silos(x, y), epsilon=None, loss=Absolute(), clip=5.0, diameter=8.0)
    assert federation.final()[0] == pytest.approx(0.8, abs=0.02)


QUANTILES = [(method, *of) for method in METHODS for of in ((0.15, 1.0), (0.5, 5.0), (0.77, 8.0))]


@pytest.mark.parametrize("method, tau, wanted", some_in_make_test(QUANTILES, [QUANTILES[0], QUANTILES[5]]))
def test_quantile_loss_ends_at_the_quantile(federate, method, tau, wanted):
    """Eleven equally likely labels 0, 1, ..., 10: the tau-quantile is the k-th with k = floor(11 tau)."""
    data = one_record_silos(np.ones((11, 1)), np.arange(11.0)[::-1])
    federation = federate(method, data, epsilon=None, loss=Quantile(tau=tau), clip=1.0, diameter=24.0)
    assert math.floor(11 * tau) == wanted
    assert federation.final()[0] == pytest.approx(wanted, abs=0.06)


@pytest.fixture(scope="module")
def separator():
    """24 records that no plane separates, and the least mean hinge loss by linear programming: (X, y, least, w)."""
    rng = np.random.default_rng(21)
    X = rng.standard_normal((24, 3))
    X /= np.linalg.norm(X, axis=1)[:, None]
    y = np.where(X @ [2.0, -1, 0.5] + 1.2 * rng.standard_normal(24) > 0, 1.0, -1.0)
    # min mean t, t_j >= 1 - y_j <x_j, w>, t >= 0, over (w, t).
    solved = linprog(
        np.r_[np.zeros(3), np.full(24, 1 / 24)],
        A_ub=np.c_[-y[:, None] * X, -np.eye(24)],
        b_ub=-np.ones(24),
        bounds=[(None, None)] * 3 + [(0, None)] * 24,
    )
    assert solved.status == 0 and solved.fun > 0.1 and np.linalg.norm(solved.x[:3]) < 6
    return X, y, solved.fun, solved.x[:3]


def hinge_loss(X, y, w):
    return np.maximum(0, 1 - y * (X @ w)).mean()


@pytest.mark.parametrize("method", some_in_make_test(METHODS, METHODS[:1]), ids=lambda method: method.name)
def test_hinge_loss_comes_to_the_optimum_of_the_linear_program(federate, separator, method):
    X, y, least, _ = separator
    federation = federate(method, one_record_silos(X, y), epsilon=None, loss=Hinge(), clip=1.0, diameter=12.0)
    gap = hinge_loss(X, y, federation.final()) - least
    assert -1e-9 <= gap <= 5e-3


@pytest.mark.parametrize("R", [10, 100, 1000])
def test_the_one_phase_method_keeps_its_bound(federate, separator, R):
    """lambda D^2 / 8 + 2 (L + lambda D / 2)^2 / (lambda (R + 1)), without noise, against the linear program."""
    X, y, least, _ = separator
    federation = federate(MbSubgradient(rounds=R), one_record_silos(X, y), epsilon=None, loss=Hinge(), diameter=12.0)
    lam = federation.plan.phases[0].subproblem.lam
    gap = hinge_loss(X, y, federation.final()) - least
    assert gap <= lam * 18 + 2 * (1 + lam * 6) ** 2 / (lam * (R + 1))


SMOOTH = [
    LocalizedAccelerated(lam=0.002, exponent=0.0, rounds=200),
    Mbsgd(step=0.5, rounds=3000, average="last"),
    LocalizedMbsgd(step=0.5, lam=0.002, exponent=0.0, rounds=(2000, 200), average="last"),
]


@pytest.mark.parametrize("loss", [Moreau(Hinge(), 2.0), Convolution(Hinge(), 0.5, 3)], ids=["moreau", "convolution"])
@pytest.mark.parametrize("method", some_in_make_test(SMOOTH, SMOOTH[:1]), ids=lambda method: method.name)
def test_smooth_methods_solve_the_smoothed_problem(federate, separator, method, loss):
    """The minimum of the smoothed loss, by a quasi-Newton method on its values; within `gap` of the linear program."""
    X, y, least, start = separator
    solved = minimize(lambda w: loss.value(X @ w, y).mean(), start, method="BFGS", options={"gtol": 1e-9})
    federation = federate(
        method, one_record_silos(X, y), epsilon=None, loss=loss, clip=1.0, diameter=12.0, smoothness=loss.smoothness
    )
    w = federation.final()
    assert loss.value(X @ w, y).mean() == pytest.approx(solved.fun, abs=1e-4)
    assert -1e-9 <= hinge_loss(X, y, w) - least <= loss.gap + 1e-4


# What is refused, and what is agreed


def config(loss, algorithm, smoothing=None, **changes):
    return ExperimentConfig.model_validate(
        {
            "data": {"source": "synthetic", "silos": 3, "records": 40, "features": 4, "test_records": 50},
            "model": {"loss": loss, "smoothing": smoothing, "diameter": 4.0, "feature_bound": 2.0},
            "privacy": {"epsilon": 2.0},
            "algorithm": {"name": algorithm, **changes},
        }
    )


@pytest.mark.parametrize("loss", ["hinge", "absolute", "quantile"])
@pytest.mark.parametrize("method", ["mbsgd", "one-pass-mbsgd", "localized-mbsgd", "localized-accelerated"])
def test_a_smooth_method_refuses_a_nonsmooth_loss_by_name(method, loss):
    with pytest.raises(ValueError) as caught:
        config({"name": loss}, method)
    others = with_trait("takes_nonsmooth")
    for part in (f"algorithm.name = {method!r}", repr(loss), *others, "model.smoothing.name=moreau"):
        assert part in str(caught.value)
    for smoothing in ("moreau", "convolution"):
        assert config({"name": loss}, method, {"name": smoothing}).model.smooth
    for name in with_trait("takes_nonsmooth"):
        assert not config({"name": loss}, name).model.smooth


def test_a_smooth_loss_needs_no_smoothing():
    with pytest.raises(ValueError, match=r"model\.smoothing must be null: loss 'logistic' is smooth"):
        config({"name": "logistic"}, "mbsgd", {"name": "moreau"})
    assert config({"name": "logistic"}, "mb-subgradient").model.smooth  # a subgradient method takes any convex loss


@pytest.mark.parametrize("method", [LocalizedAccelerated(), LocalizedMbsgd(), LocalizedAccelerated(rounds=3)])
def test_without_a_config_the_schedules_refuse_too(method):
    with pytest.raises(InputError, match=r"needs? a smooth loss.*subgradient method.*Moreau"):
        method.plan(problem())


SMOOTHINGS = [
    {"name": "moreau"},
    {"name": "convolution"},
    {"name": "moreau", "beta": 3.0},
    {"name": "convolution", "estimate": "sampled"},
]


@pytest.mark.parametrize("smoothing", SMOOTHINGS)
def test_an_experiment_trains_on_the_smoothed_loss_and_reports_the_loss(smoothing, tmp_path):
    made = config({"name": "hinge"}, "localized-accelerated", smoothing, rounds=2)
    experiment = Experiment.prepare(made, tmp_path)
    loss, plan = experiment.agreement.loss, experiment.plan
    assert loss == training_loss(made, plan.problem) and unsmoothed(loss) == Hinge() == unsmoothed(Hinge())
    assert plan.problem.objective.smoothness == pytest.approx(4 * loss.smoothness)  # feature_bound = 2
    assert plan.problem.objective.drawn_points == ("estimate" in smoothing)
    if smoothing.get("beta"):
        assert plan.problem.objective.smoothness == 3.0
    backend = experiment.in_process(LedgerFolders(tmp_path, tmp_path))
    backend.open()
    try:
        for query, releases, _ in rounds(experiment.context, made.algorithm.init(experiment.start()), backend.ask):
            assert len(releases) == 3 and query.phase
        # At w = 0 every hinge loss is 1; the envelope's is 1 - 1/(2 weight) or less, the convolution's 1 or more.
        shown = backend.simulated(experiment.run, experiment.start())
        assert [(n, total) for n, total, _ in shown] == [(40, 40.0)] * 3
    finally:
        backend.close()


def test_a_silo_answers_with_the_smoothed_derivative(federate):
    """One record x = (0.5,), y = 1 at w = 1: the hinge has slope -1, its envelope of weight 1 `-min(1, 1 - 0.5)`."""
    data = {"a": (np.full((4, 1), 0.5), np.ones(4))}
    for loss, slope in ((Hinge(), -1.0), (Moreau(Hinge(), 1.0), -0.5), (Convolution(Hinge(), 1.0, 1), -0.75)):
        federation = federate(Mbsgd(rounds=1), data, epsilon=None, loss=loss, smoothness=1.0)
        query = dataclasses.replace(federation.context.query(federation.start), arrays={"w": np.array([1.0])})
        assert federation.ask(query)[0].payload[0] == pytest.approx(0.5 * slope)
