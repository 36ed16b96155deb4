"""A trusted aggregator, simulated: silos send exact means, one noise protects all of them, and only its sum goes on."""

import math

import numpy as np
import pytest

from fedcore.accounting.calibration import Budget
from fedcore.algorithms import Diff2, Diff2Bvr, Mbsgd
from fedcore.data.records import Records
from fedcore.errors import InputError, SiloError
from fedcore.ledger.memory import MemoryLedger
from fedcore.losses import Squared
from fedcore.planning.aggregated import aggregated_sigma
from fedcore.planning.evaluation import Evaluation
from fedcore.planning.problem import SiloFacts
from fedcore.planning.shuffle import Shuffle
from fedcore.silo.agreement import Agreement
from fedcore.silo.keys import SecretKeys
from fedcore.silo.private_silo import PrivateSilo
from fedcore.silo.site import Site
from tests.problems import problem_of

D = 600
METHOD = Diff2(rounds=9, period=3, split=0.5, step=0.05, slope=2.0)
METHODS = [METHOD, Mbsgd(rounds=5, step=0.3), Mbsgd(rounds=5, step=0.3, batch=5)]


@pytest.fixture
def wide():
    rng = np.random.default_rng(0)
    return {name: (rng.standard_normal((n, D)) / 10, rng.standard_normal(n)) for name, n in (("a", 20), ("b", 30))}


def clipped_mean(silo, w, before=None):
    """Of the silo's records, one by one, with bound 1 on a gradient and 2 per unit of the step on a difference."""
    run = silo._runs["run"]
    total = np.zeros(D)
    for x, y in zip(run.X, run.y, strict=True):
        row = (x @ w - y) * x if before is None else (x @ (w - before)) * x
        bound = 1.0 if before is None else 2.0 * np.linalg.norm(w - before)
        total += row * min(1.0, bound / np.linalg.norm(row))
    return total / len(run.y)


def test_silos_send_exact_means_and_one_noise_of_the_planned_size_is_added(wide, federate):
    federation = federate(METHOD, wide, aggregator=True, diameter=1e3)
    state, seen = federation.start, []
    for query, releases, after in federation.play():
        arrays = query.arrays
        for release in releases:
            wanted = clipped_mean(federation.silos[release.silo], arrays["w"], arrays.get("before"))
            np.testing.assert_allclose(release.payload, wanted, rtol=1e-9, atol=1e-12)
        kind = federation.plan.phases[0].at(query.round)
        base = state.estimate if "before" in arrays else 0.0
        unit = np.linalg.norm(arrays["w"] - arrays["before"]) if "before" in arrays else 1.0
        noise = after.estimate - base - sum(release.payload for release in releases) / 2
        seen.append(noise / (aggregated_sigma(kind.sigmas, kind.weights) * unit))
        state = after
    assert np.mean(np.square(seen)) == pytest.approx(1.0, abs=6 * math.sqrt(2 / np.size(seen)))
    assert np.abs(np.corrcoef(seen) - np.eye(len(seen))).max() < 6 / math.sqrt(D)


@pytest.mark.parametrize("method", METHODS, ids=lambda method: f"{method.name}-{getattr(method, 'batch', None)}")
def test_each_silo_is_charged_what_the_released_mean_tells_of_it(wide, federate, method):
    federation = federate(method, wide, aggregator=True, epsilon=2.0)
    for _ in federation.play():
        pass
    spent = {account.silo: account.epsilon for account in federation.sites[0].accounts("run")}
    assert spent["a"] == pytest.approx(2.0, rel=2e-3) and spent["b"] < 1.6  # 20 and 30 records
    for name, epsilon in spent.items():
        assert epsilon <= federation.plan.silo_epsilon(name) * (1 + 1e-9) <= 2.0 * (1 + 1e-9)


def test_it_has_less_noise_than_silos_have_together(wide, federate):
    central, apart = (federate(METHOD, wide, aggregator=trusted) for trusted in (True, False))
    for mine, theirs in zip(central.plan.phases[0].kinds, apart.plan.phases[0].kinds, strict=True):
        own = math.sqrt(sum(share.sigma**2 for share in theirs.shares)) / 2
        sigma = aggregated_sigma(mine.sigmas, mine.weights)
        assert sigma < own
        assert sigma == pytest.approx(max(share.sigma for share in theirs.shares) / 2)


def test_a_round_that_is_asked_again_has_the_same_noise_and_another_seed_another(wide, federate):
    federation = federate(METHOD, wide, aggregator=True)
    query = federation.context.query(federation.start)
    first, again = (federation.context.fold(federation.start, query, federation.ask(query)) for _ in range(2))
    assert first.estimate.tobytes() == again.estimate.tobytes()
    other = federate(METHOD, wide, aggregator=True, seed=1)
    asked = other.context.query(other.start)
    elsewhere = other.context.fold(other.start, asked, other.ask(asked))
    exact = sum(clipped_mean(silo, np.zeros(D)) for silo in federation.silos.values()) / 2
    noise = [state.estimate - exact for state in (first, elsewhere)]
    assert abs(np.corrcoef(*noise)[0, 1]) < 6 / math.sqrt(D)


def test_weights_are_applied_once_by_the_aggregator(wide, federate):
    quiet = {"weights": (0.5, 1.5), "epsilon": None}
    central, apart = (federate(METHOD, wide, aggregator=trusted, **quiet) for trusted in (True, False))
    np.testing.assert_allclose(central.final(), apart.final(), rtol=1e-9)


def test_local_steps_are_noised_by_their_silo_whoever_is_trusted(wide, federate):
    method = Diff2Bvr(rounds=4, period=2, split=0.5, local_steps=3, batch=5)
    central, apart = (federate(method, wide, aggregator=trusted) for trusted in (True, False))
    turns = [kind for plan in (central.plan, apart.plan) for kind in plan.phases[0].kinds if kind.schedule.in_turn]
    assert not any(kind.noise.entrusted for kind in turns)
    np.testing.assert_allclose(turns[0].shares[0].sigma, turns[1].shares[0].sigma, rtol=1e-9)
    others = [kind.noise.entrusted for kind in central.plan.phases[0].kinds if not kind.schedule.in_turn]
    assert others == [True, True]


def problem(**changes):
    plain = {
        "silos": (SiloFacts("a", 20), SiloFacts("b", 30)),
        "dim": 3,
        "clip": 1.0,
        "smoothness": 1.0,
        "diameter": 10.0,
        "participants": 2,
        "budget": Budget(1.0, 1e-5),
        "aggregator": True,
    }
    return problem_of(**{**plain, **changes})


EVALUATED = {"silos": (SiloFacts("a", 20, 5), SiloFacts("b", 30, 5)), "evaluation": Evaluation(1.0, "end", 2)}


@pytest.mark.parametrize("method", [METHOD, Mbsgd(rounds=3)], ids=lambda method: method.name)
@pytest.mark.parametrize(
    "changes, message",
    [
        ({"budget": Budget(1.0, 1e-5, mechanism="discrete-gaussian")}, "guarded silos trust no aggregator"),
        (EVALUATED, "no evaluation"),
        ({"participants": 1}, "silos_per_round"),
        ({"silos": (SiloFacts("a", 20), SiloFacts("b", 20)), "shuffle": Shuffle(2)}, "shuffler"),
    ],
)
def test_what_an_aggregator_does_not_go_with_is_refused(method, changes, message):
    with pytest.raises(InputError, match=message):
        method.plan(problem(**changes))


def test_a_guarded_silo_refuses_to_entrust_a_sum():
    """Also for a forged plan with its own mechanism."""
    made = problem()
    plan = METHOD.plan(made)
    silo = PrivateSilo(
        "a", Records(np.ones((20, 3)), np.ones(20)), SecretKeys(b"k" * 32), MemoryLedger("a"), guarded=True
    )
    with pytest.raises(SiloError, match="it trusts no aggregator"):
        silo.approve("run", plan, METHOD, Squared())
    with pytest.raises(SiloError, match="it trusts no aggregator"):
        Site([silo]).agree(Agreement("run", made, METHOD, Squared(), plan.digest))
    assert not silo.ledger.rows("run")
