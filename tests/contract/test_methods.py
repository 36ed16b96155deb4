"""Every registered method through one set of tests: its limit, its messages, its continuation."""

import dataclasses
import itertools
import math
from collections import Counter

import numpy as np
import pytest

from fedcore.algorithms import ALGORITHMS
from fedcore.arrays import pack, unpack
from fedcore.errors import InputError
from fedcore.optim.averaging import Messages
from fedcore.planning.participation import Binomial
from fedcore.state import dump_state, load_state
from tests.contract.epsilon_by_hand import events_by_hand
from tests.contract.methods import EXACT, QUICK, lengths
from tests.selection import some_in_make_test


def test_says_what_it_is(method):
    kind = type(method)
    assert ALGORITHMS[method.name] is kind
    assert kind.title and kind.source
    with pytest.raises(dataclasses.FrozenInstanceError):
        method.name = "other"
    assert kind(**dataclasses.asdict(method)) == method


def test_says_whether_it_sends_arrays_to_single_silos(method, federate, toy):
    """A shuffler cannot carry a broadcast with a row for each silo."""
    own = [bool(query.own) for query, _, _ in federate(method, toy).play()]
    assert any(own) == type(method).sends_own_arrays


WEIGHTS = (0.25, 0.25, 0.25, 0.75, 0.75, 3.75)
QUADRATICS = list(itertools.product(sorted(ALGORITHMS), [0.0, 0.2], [None, WEIGHTS]))
TWINS = [("fedavg", WEIGHTS), ("fedprox", None)]
"""Thousands of rounds of two methods that differ by one term: the one with weights and the other without are enough."""


@pytest.mark.parametrize(
    ("name", "ridge", "weights"),
    some_in_make_test(QUADRATICS, [case for case in QUADRATICS if case[1] and (case[0], case[2]) not in TWINS]),
)
def test_without_noise_it_reaches_the_minimiser_of_a_quadratic(name, ridge, weights, federate):
    """Each silo repeats one record, so all of its shards are one problem; silos contradict each other.

    The ridge term is not clipped. With it the minimiser solves (X'PX/6 + ridge) w = X'Py/6, with the silos' weights P.
    """
    hyper, tolerance = EXACT.get(name, ({}, 1e-2))
    if weights is not None:  # a worse conditioned problem, whose answer differs by 12 %
        tolerance = max(tolerance, 1e-6)
    rng = np.random.default_rng(3)
    X = np.linalg.qr(rng.standard_normal((6, 3)))[0] * math.sqrt(6) * np.array([1.0, 0.8, 0.6])
    y = X @ [1.0, -2.0, 3.0] + rng.standard_normal(6)
    P = np.diag(weights or (1.0,) * 6)
    wanted = np.linalg.solve(X.T @ P @ X / 6 + ridge * np.eye(3), X.T @ P @ y / 6)
    data = {f"s{i}": (np.tile(X[i], (64, 1)), np.full(64, y[i])) for i in range(6)}
    federation = federate(
        ALGORITHMS[name](**hyper),
        data,
        epsilon=None,
        clip=1e3,
        smoothness=(X**2).sum(1).max(),
        diameter=1e3,
        ridge=ridge,
        weights=weights,
    )
    assert np.linalg.norm(federation.final() - wanted) <= tolerance * np.linalg.norm(wanted)


def test_one_silo_is_the_centralised_method(full_method, federate):
    """The method's own server side, with a naive clipped mean over the records of the plan's positions."""
    rng = np.random.default_rng(4)
    X, y = 2 * rng.standard_normal((23, 3)), rng.standard_normal(23)
    federation = federate(full_method, {"only": (X, y)}, epsilon=None, clip=1.5)
    # The split is a permutation of rows; labels that are row numbers show it.
    probe = federate(full_method, {"only": (X, np.arange(23.0))}, epsilon=None, clip=1.5)
    order = probe.silos["only"]._runs["run"].y.astype(int)
    state = federation.start
    for index, round, start, stop, K, _ in events_by_hand(federation.plan, "only"):
        phase = federation.plan.phases[index - 1]

        class Naive:
            ridge, rows, divisor = 0.0, order[start:stop], K

            def ask(self, kind, w, before=None):
                assert (kind == "gradient") == (before is None)
                total, bound = np.zeros(3), phase.at(round).question.clip  # noqa: B023
                bound *= 1.0 if before is None else np.linalg.norm(w - before)
                for j in self.rows:
                    g = (X[j] @ w - y[j]) * X[j]
                    if before is not None:
                        g = g - (X[j] @ before - y[j]) * X[j]
                    total += g * min(1.0, bound / max(np.linalg.norm(g), 1e-300))
                return total / self.divisor

        sent = {key: array.reshape(-1, 3)[0] for key, array in full_method.broadcast(state, phase).items()}
        state = full_method.server_update(state, Messages({0: full_method.silo_step(sent, Naive())}), phase)
    np.testing.assert_allclose(federation.final(), full_method.output(state), rtol=1e-10, atol=1e-12)


def test_identical_silos_act_as_one(full_method, federate):
    X, y = np.tile([0.6, -0.8], (16, 1)), np.full(16, 2.0)
    one = federate(full_method, {"a": (X, y)}, epsilon=None)
    four = federate(full_method, {name: (X, y) for name in "abcd"}, epsilon=None)
    if one.plan.as_json()["phases"][0]["lam"] == four.plan.as_json()["phases"][0]["lam"]:  # lambda may depend on M
        np.testing.assert_allclose(four.final(), one.final(), rtol=1e-12, atol=1e-14)
    else:
        assert QUICK.get(full_method.name, {}).get("lam") is None


def test_models_stay_in_the_domain_and_in_the_phases_ball(method, federate, toy):
    federation = federate(method, toy, epsilon=0.01, diameter=1.0, seed=1)
    state = federation.start
    centre, closest = method.output(state), 0.0
    for _, _, after in federation.play():
        phase = federation.plan.phases[state.phase - 1]
        sent = method.broadcast(state, phase)["w"]
        reach = [sent, method.output(state), method.output(after)]
        # Points by the names of the house; a direction (velocity, control variate) need not lie in the domain.
        points = (getattr(after, name, None) for name in ("w", "aggregate", "centre", "mean"))
        reach += [value for value in points if value is not None and np.any(value)]
        for w in reach:
            assert np.linalg.norm(w) <= 0.5 * (1 + 1e-9)
            assert np.linalg.norm(w - centre) <= phase.subproblem.radius * (1 + 1e-9) + 1e-12
            closest = max(closest, np.linalg.norm(w) / 0.5, np.linalg.norm(w - centre) / phase.subproblem.radius)
        if after.round == 1:
            centre = method.output(after)
        state = after
    assert closest > 0.999  # enough noise that the constraints are active


def test_messages_are_float64_vectors_of_public_size(method, federate, toy):
    federation = federate(method, toy)
    for query, releases, state in federation.play():
        assert [release.silo for release in releases] == list(query.participants)
        numbers = lengths(method, federation.plan.phases[query.phase - 1].at(query.round), 4)
        for release in releases:
            assert isinstance(release.payload, np.ndarray)
            assert (release.payload.dtype, release.payload.shape) == (np.float64, (numbers,))
            assert np.isfinite(release.payload).all()
        assert isinstance(state, type(method).state)


def test_regulariser_and_constraint_do_not_reach_the_silos(full_method, federate, toy):
    """The same query has the same answer before noise, whatever lambda the server uses."""
    if not hasattr(full_method, "lam"):
        pytest.skip("no lambda")
    first = federate(dataclasses.replace(full_method, lam=0.1), toy, epsilon=None)
    other = federate(dataclasses.replace(full_method, lam=10.0), toy, epsilon=None)
    w = np.array([0.3, -0.1, 0.2, 0.9])
    orders = [f.silos["ash"]._runs["run"] for f in (first, other)]
    for federation, order in zip((first, other), orders, strict=True):
        share = federation.plan.phases[0].by_silo["ash"]
        X, y = order.X[: int(share.batch)], order.y[: int(share.batch)]
        g = (X @ w - y)[:, None] * X
        g *= np.minimum(1, 1 / np.linalg.norm(g, axis=1))[:, None]
        query = dataclasses.replace(federation.context.query(federation.start), arrays={"w": w})
        np.testing.assert_allclose(federation.ask(query)[0].payload, g.mean(0), rtol=1e-10)


@pytest.mark.parametrize("participants", [1, 2, (1, 4), Binomial(0.3)], ids=str)
def test_only_the_planned_silos_take_part(method, federate, participants):
    rng = np.random.default_rng(0)
    data = {name: (rng.standard_normal((16, 3)), rng.standard_normal(16)) for name in "abcde"}
    if method.needs_all_silos:
        with pytest.raises(InputError, match=r"participation\.silos_per_round = .* of 5 leaves some out"):
            federate(method, data, participants=participants)
        return
    federation = federate(method, data, participants=participants)
    questions = Counter()
    allowed = {1: [1], 2: [2], (1, 4): [1, 4]}.get(participants, range(1, 6))
    for query, releases, _ in federation.play():
        assert len(set(query.participants)) == len(query.participants) in allowed
        assert [release.silo for release in releases] == list(query.participants)
        questions.update(query.participants)
    assert {name: len(silo.ledger.rows("run")) for name, silo in federation.silos.items()} == {
        name: questions[name] for name in data
    }
    # Noise is for the largest number of answers of a silo, not for the average one.
    for name in data:
        assert federation.plan.silo_epsilon(name) == pytest.approx(1.0, rel=1e-3)
        spent = {account.silo: account.epsilon for account in federation.sites[0].accounts("run")}[name]
        assert spent <= federation.plan.silo_epsilon(name)


def test_state_survives_its_byte_form(method, federate, toy):
    for _, _, state in federate(method, toy).play():
        data = pack(dump_state(state))
        copy = load_state(type(method).state, unpack(data))
        assert pack(dump_state(copy)) == data
        for field in dataclasses.fields(state):
            before, after = getattr(state, field.name), getattr(copy, field.name)
            assert type(before) is type(after)
            assert np.asarray(before).tobytes() == np.asarray(after).tobytes()


@pytest.mark.parametrize("participants", [None, 2, (1, 1, 3)], ids=str)
def test_resume_from_every_round_ends_with_the_same_bits(method, federate, toy, participants):
    if method.needs_all_silos and participants is not None:
        pytest.skip("all silos take part")
    whole = federate(method, toy, participants=participants)
    receipts, checkpoints = [], [(pack(dump_state(whole.start)), [])]
    for _, releases, state in whole.play():
        receipts += releases.receipts
        checkpoints.append((pack(dump_state(state)), list(receipts)))
    wanted = method.output(state).tobytes()
    for data, receipts in checkpoints:
        fresh = federate(method, toy, participants=participants)
        for site in fresh.sites:
            site.restore("run", receipts)
        assert fresh.final(load_state(type(method).state, unpack(data))).tobytes() == wanted
        for name, silo in fresh.silos.items():
            rows, all_rows = silo.ledger.rows("run"), whole.silos[name].ledger.rows("run")
            assert [row[:5] for row in rows] == [row[:5] for row in all_rows]
