"""DIFF2 against hand-worked numbers, gradient descent, and a second implementation of its algorithms."""

import dataclasses
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest

from fedcore.algorithms import Diff2, Diff2Bvr, Mbsgd
from fedcore.errors import InputError, SiloError
from fedcore.losses import Squared
from fedcore.messages import Query
from fedcore.models import SoftmaxRegression

ONE = {"a": (np.ones((1, 1)), [4.0]), "b": (np.ones((2, 1)), [-2.0, 0.0])}
"""Records of the losses (w - 4)^2 / 2; (w + 2)^2 / 2 and w^2 / 2."""


def rough(rng, silos=3, d=4):
    """Silos of unequal sizes whose gradients are long."""
    return {
        f"s{i}": (3 * rng.standard_normal((9 + 4 * i, d)), 5 * rng.standard_normal(9 + 4 * i)) for i in range(silos)
    }


def test_the_recursion_by_hand_with_both_bounds_at_work(federate):
    """By hand with C_1 = 3, C_2 = 1/2, eta = 1/2, T = 3, from 0: see the comments."""
    method = Diff2(rounds=5, period=3, step=0.5, slope=0.5)
    federation = federate(method, ONE, epsilon=None, clip=3.0, diameter=100.0)
    found = [(float(s.w[0]), float(s.estimate[0])) for _, _, s in federation.play()]
    wanted = [
        (0.5, -1.0),  # a: -4 held at -3; b: (2 + 0) / 2 = 1; mean -1
        (0.875, -0.75),  # a step of 1/2: each record's difference 1/2 held at 1/4
        (1.15625, -0.5625),  # a step of 3/8: 3/16
        (1.34765625, -0.3828125),  # anew, a: -2.84375; b: (3.15625 held at 3 + 1.15625) / 2 = 2.078125
        (1.4912109375, -0.287109375),  # a step of 0.19140625: half of it
    ]
    np.testing.assert_allclose(found, wanted, rtol=1e-13)


def test_a_period_of_one_is_noisy_gradient_descent(federate):
    """The same noise as mbsgd is planned, and the same models follow: without noise, and from the same messages."""
    data = rough(np.random.default_rng(1))
    plain = Mbsgd(rounds=12, step=0.3, average="last")
    one = Diff2(rounds=12, period=1, step=0.3)
    for changes in ({"epsilon": None}, {"epsilon": 2.0}):
        theirs, mine = (federate(method, data, **changes) for method in (plain, one))
        assert [phase.parts for phase in mine.plan.phases] == [()]
        for name in data:
            assert mine.plan.silo_events(name) == theirs.plan.silo_events(name)
        before = np.zeros(4)
        for query, releases, state in mine.play():
            assert set(query.arrays) == {"w"}
            mean = sum(release.payload for release in releases) / len(releases)
            wanted = before - 0.3 * mean
            wanted *= min(1.0, 5.0 / np.linalg.norm(wanted))
            np.testing.assert_allclose(state.w, wanted, rtol=1e-12)
            before = state.w
    quiet = [federate(method, data, epsilon=None).final() for method in (plain, one)]
    np.testing.assert_allclose(quiet[1], quiet[0], rtol=1e-12)


@pytest.mark.parametrize("period", [1, 2, 3, 7, 30, None])
def test_without_noise_and_bounds_the_estimate_is_the_gradient_whatever_the_period(period, federate):
    data = rough(np.random.default_rng(2))
    method = Diff2(rounds=30, period=period, step=0.02, slope=1e6)
    federation = federate(method, data, epsilon=None, clip=1e6, diameter=1e3)
    for _, _, state in federation.play():
        gradients = [X.T @ (X @ state.before - y) / len(y) for X, y in data.values()]
        np.testing.assert_allclose(state.estimate, np.mean(gradients, axis=0), rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("weights", [None, (0.5, 1.5, 1.0)])
def test_each_noise_stays_in_the_estimate_until_the_next_restart(weights, federate):
    """The base of a difference is the estimate with its noise: all messages since the restart add up to it."""
    data = rough(np.random.default_rng(3))
    federation = federate(Diff2(rounds=11, period=4, step=0.05), data, epsilon=1.0, weights=weights)
    p, kept, before = weights or (1.0, 1.0, 1.0), [], None
    for number, (query, releases, state) in enumerate(federation.play()):
        assert set(query.arrays) == ({"w", "before"} if number % 4 else {"w"})
        if number % 4:
            np.testing.assert_array_equal(query.arrays["before"], before)
        kept = kept * bool(number % 4) + [sum(w * r.payload for w, r in zip(p, releases, strict=True)) / 3]
        np.testing.assert_allclose(state.estimate, sum(kept), rtol=1e-12)
        before = query.arrays["w"]


def test_differences_are_noised_in_proportion_to_the_step(federate):
    data = {name: (np.zeros((10, 400)), np.ones(10)) for name in "ab"}  # whose gradients are all zero
    federation = federate(Diff2(rounds=40, period=40, step=0.01, split=0.5), data, epsilon=1.0, diameter=1e3)
    seen = []
    for query, releases, _ in federation.play():
        if "before" not in query.arrays:
            continue
        length = np.linalg.norm(query.arrays["w"] - query.arrays["before"])
        sigma = federation.plan.phases[0].shares[0].sigma * length
        seen += [release.payload / sigma for release in releases]
    assert np.mean(np.square(seen)) == pytest.approx(1.0, abs=6 * np.sqrt(2 / np.size(seen)))
    assert np.abs(np.corrcoef(seen) - np.eye(len(seen))).max() < 6 / np.sqrt(400)


def test_a_step_of_length_zero_is_answered_with_zeros_and_charged(federate):
    federation = federate(Diff2(rounds=4, period=2), rough(np.random.default_rng(4)), epsilon=1.0)
    w = np.full(4, 0.5)
    query = Query("run", federation.plan.digest, 1, 2, ("s0", "s1", "s2"), {"w": w, "before": w.copy()})
    assert all(not release.payload.any() for release in federation.ask(query))
    (row,) = federation.silos["s0"].ledger.rows("run")
    assert row.event == federation.plan.phases[0].event("s0", 2) and row.event.gdp_mu_squared > 0


def test_a_silo_is_asked_about_the_models_of_the_round_and_no_others(federate):
    federation = federate(Diff2(rounds=4, period=2), rough(np.random.default_rng(5)))
    w, names, plan = np.full(4, 0.5), ("s0", "s1", "s2"), federation.plan.digest
    for round, arrays in ((1, {"w": w, "before": w}), (2, {"w": w}), (2, {"w": w, "before": 100 * w})):
        with pytest.raises(SiloError, match="query"):
            federation.ask(Query("run", plan, 1, round, names, arrays))


def test_the_drawn_model_is_one_of_the_first_iterates_and_each_is_as_likely(federate):
    data, seen = rough(np.random.default_rng(6)), []
    for seed in range(60):
        federation = federate(Diff2(rounds=5, period=2, step=0.05, model="drawn", draw=seed), data)
        states = [federation.start, *(state for *_, state in federation.play())]
        drawn = federation.context.method.output(states[-1])
        matches = [number for number, state in enumerate(states) if np.array_equal(state.w, drawn)]
        assert len(matches) == 1
        seen.append(matches[0])
    assert set(seen) == set(range(5))  # x_0 .. x_(R-1); x_R never
    assert max(np.bincount(seen)) < 26  # 12 expected


def test_partial_participation_is_refused(federate):
    with pytest.raises(InputError, match="silos_per_round = 2 of 3"):
        federate(Diff2(), rough(np.random.default_rng(7)), participants=2)


class Naive:
    """Algorithms 1 and 4 of the paper for least squares without noise, all records in each local step."""

    def __init__(self, data, C1, C2, C3, T, eta, K):
        self.data, self.C1, self.C2, self.C3, self.T, self.eta, self.K = list(data.values()), C1, C2, C3, T, eta, K

    @staticmethod
    def clipped(rows, bound):
        total = np.zeros(rows.shape[1])
        for row in rows:
            norm = np.linalg.norm(row)
            total += row * (min(bound / norm, 1.0) if norm else 0.0)
        return total / len(rows)

    def gradients(self, p, x):
        X, y = self.data[p]
        return (X @ x - np.asarray(y))[:, None] * X

    def run(self, R, x):
        P, before, estimate, xs = len(self.data), None, None, [x]
        for r in range(1, R + 1):
            if (r - 1) % self.T == 0:
                sent = [self.clipped(self.gradients(p, x), self.C1) for p in range(P)]
                estimate = sum(sent) / P
            else:
                bound = self.C2 * np.linalg.norm(x - before)
                sent = [self.clipped(self.gradients(p, x) - self.gradients(p, before), bound) for p in range(P)]
                estimate = estimate + sum(sent) / P
            before, points, v = x, [x, x - self.eta * estimate], estimate
            acting = (1 + r % P) - 1
            for _ in range(2, self.K + 1):
                bound = self.C3 * np.linalg.norm(points[-1] - points[-2])
                pair = self.gradients(acting, points[-1]) - self.gradients(acting, points[-2])
                v = v + self.clipped(pair, bound)
                points.append(points[-1] - self.eta * v)
            x = points[-1]
            xs.append(x)
        return xs


@pytest.mark.parametrize("period", [1, 3, 8])
def test_local_steps_are_those_of_a_naive_implementation(period, federate):
    rng = np.random.default_rng(8)
    data = {name: (2 * rng.standard_normal((12, 3)), 4 * rng.standard_normal(12)) for name in "abc"}
    method = Diff2Bvr(
        rounds=8, period=period, step=0.05, slope=3.0, local_slope=2.0, local_steps=4, batch=12, split=0.5
    )
    federation = federate(method, data, epsilon=None, clip=2.0, diameter=1e3)
    found = [state.w for query, _, state in federation.play() if query.round % 2 == 0]
    wanted = Naive(data, 2.0, 3.0, 2.0, period, 0.05, 4).run(8, np.zeros(3))
    np.testing.assert_allclose(found, wanted[1:], rtol=1e-11)


def test_turns_go_round_from_the_second_silo_and_only_it_answers_and_is_charged(federate):
    data = {name: (np.ones((12, 2)), np.arange(12.0)) for name in "abc"}
    method = Diff2Bvr(rounds=7, period=3, local_steps=3, batch=4, split=0.5)
    federation = federate(method, data, epsilon=1.0)
    turns = [query.participants for query, _, _ in federation.play() if query.round % 2 == 0]
    assert turns == [("b",), ("c",), ("a",), ("b",), ("c",), ("a",), ("b",)]
    for name, mine in (("a", 2), ("b", 3), ("c", 2)):
        rows = federation.silos[name].ledger.rows("run")
        assert len(rows) == 7 + mine
        local = [row.event for row in rows if row.round % 2 == 0]
        assert {(e.count, e.sampling, e.rate) for e in local} == {(2, "without-replacement", 4 / 12)}
        assert 0.99 <= federation.plan.silo_epsilon(name) <= 1.0  # each is calibrated for its own turns


def test_a_silo_refuses_another_silos_turn(federate):
    data = {name: (np.ones((12, 2)), np.arange(12.0)) for name in "abc"}
    federation = federate(Diff2Bvr(rounds=7, period=3, local_steps=3, batch=4, split=0.5), data, epsilon=1.0)
    w = np.zeros(2)
    query = Query("run", federation.plan.digest, 1, 2, ("a",), {"w": w, "before": w}, {"a": {"estimate": w}})
    with pytest.raises(SiloError, match=r"round 1\.2 is the turn of silo b"):
        federation.ask(query)
    assert not federation.silos["a"].ledger.rows("run")


def test_the_second_model_of_a_turn_is_one_that_its_steps_went_through(federate):
    rng, places = np.random.default_rng(9), []
    data = {name: (rng.standard_normal((12, 3)), rng.standard_normal(12)) for name in "ab"}
    method = Diff2Bvr(rounds=40, period=5, step=0.1, slope=2.0, local_steps=3, batch=12, split=0.5)
    federation = federate(method, data, epsilon=None, clip=5.0, diameter=1e3)
    for query, releases, _ in federation.play():
        if query.round % 2:
            continue
        (name,) = query.participants
        X, y = data[name]
        x0, x1, v = query.arrays["before"], query.arrays["w"], query.own[name]["estimate"]
        bound = 2.0 * np.linalg.norm(x1 - x0)
        pair = ((X @ x1 - y)[:, None] - (X @ x0 - y)[:, None]) * X
        points = [x0, x1, x1 - 0.1 * (v + Naive.clipped(pair, bound))]
        out = releases[0].payload[3:]
        places += [at for at, point in enumerate(points) if np.allclose(out, point, rtol=1e-9)]
    assert len(places) == 40 and set(places) == {0, 1, 2}  # x_(k-1), k = 1 .. K


@pytest.mark.parametrize(
    "change, message",
    [
        ({"batch": 13}, "batch = 13 is more than the 12 records of silo a"),
        ({"period": 9}, "period = 9 must be at most algorithm.rounds = 8"),
    ],
)
def test_what_does_not_fit_the_silos_is_said(change, message, federate):
    data = {name: (np.ones((12, 2)), np.arange(12.0)) for name in "ab"}
    with pytest.raises(InputError, match=message):
        federate(dataclasses.replace(Diff2Bvr(rounds=8, period=4), **change), data)


def test_a_model_of_several_classes_takes_it_too(federate):
    rng = np.random.default_rng(10)
    data = {name: (rng.standard_normal((20, 3)), rng.integers(0, 3, 20).astype(float)) for name in "ab"}
    method = Diff2(rounds=20, period=6, step=0.2, slope=50.0)
    still = federate(method, data, epsilon=None, loss=SoftmaxRegression(3), clip=50.0, smoothness=np.inf)
    plain = federate(
        Mbsgd(rounds=20, step=0.2, average="last"),
        data,
        epsilon=None,
        loss=SoftmaxRegression(3),
        clip=50.0,
        smoothness=np.inf,
    )
    np.testing.assert_allclose(still.final(), plain.final(), rtol=1e-9)


def test_hand_worked_fractions_agree():
    """The numbers of the first test once more, in exact arithmetic."""
    labels, C1, C2, eta = [[4], [-2, 0]], Fraction(3), Fraction(1, 2), Fraction(1, 2)
    x, before, v, seen = Fraction(0), Fraction(0), Fraction(0), []
    for r in range(5):
        if r % 3 == 0:
            v = sum(sum(max(-C1, min(C1, x - y)) for y in mine) / len(mine) for mine in labels) / 2
        else:
            bound = C2 * abs(x - before)
            v += max(-bound, min(bound, x - before))
        before, x = x, x - eta * v
        seen.append(float(x))
    assert seen == [0.5, 0.875, 1.15625, 1.34765625, 1.4912109375]
    assert Squared().residual(np.zeros(1), np.array([4.0])) == [-4.0]


def test_a_rounds_curve_by_hand(federate):
    """Each round of the recursion above: restart or not, step, bound, noise, and norm of the estimate."""
    method = Diff2(rounds=5, period=3, step=0.5, slope=0.5)
    federation = federate(method, ONE, epsilon=None, clip=3.0, diameter=100.0)
    states = [method.init(np.zeros(1)), *(state for _, _, state in federation.play())]
    found = [list(method.curve(*pair, federation.plan.phases[0]).values()) for pair in pairwise(states)]
    wanted = [
        (1, 0, 3, 0, 1),
        (0, 0.5, 0.25, 0, 0.75),
        (0, 0.375, 0.1875, 0, 0.5625),
        (1, 0.28125, 3, 0, 0.3828125),
        (0, 0.19140625, 0.095703125, 0, 0.287109375),
    ]
    np.testing.assert_allclose(found, wanted, rtol=1e-13)


@pytest.mark.parametrize(
    "method", [Diff2(rounds=9, period=4, step=0.01), Diff2Bvr(rounds=9, period=4, step=0.01, local_steps=3, batch=2)]
)
def test_the_noise_of_a_rounds_curve_is_that_of_the_mean_of_its_answers(method, federate):
    """With records whose gradients are all zero, answers are noise. Turns of local steps have no such number."""
    data = {name: (np.zeros((10, 2000)), np.ones(10)) for name in "abc"}
    federation = federate(method, data, epsilon=1.0, diameter=1e6)
    (phase,), before, looked = federation.plan.phases, method.init(np.zeros(2000)), 0
    for query, releases, state in federation.play():
        curve = method.curve(before, state, phase)
        if len(releases) == 1:
            assert curve == {}
        else:
            mean = sum(release.payload for release in releases) / 3
            step = np.linalg.norm(query.arrays["w"] - query.arrays.get("before", query.arrays["w"]))
            assert curve["estimate/restart"] == float("before" not in query.arrays)
            assert "before" not in query.arrays or curve["estimate/step_norm"] == pytest.approx(step, rel=1e-12)
            assert mean.std() == pytest.approx(curve["estimate/noise"], rel=0.1)
            looked += 1
        before = state
    assert looked == 9


def test_alpha_is_the_papers_order_of_the_target(federate):
    """Table of the spec: 9 at (3, 1e-5), 6 at (5, 1e-5)."""
    for epsilon, order in ((3.0, 9), (5.0, 6), (None, None)):
        federation = federate(Diff2(rounds=4), rough(np.random.default_rng(1)), epsilon=epsilon)
        share = federation.plan.phases[0].shares[0]
        phase = dataclasses.replace(federation.plan.phases[0], shares=(dataclasses.replace(share, delta=1e-5),))
        assert Diff2(rounds=4).shown(phase).get("alpha") == order
