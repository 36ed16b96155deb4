"""Every method with evaluations between its phases: training is the same and ignores held-out records."""

import math

import numpy as np
import pytest
from scipy import optimize, stats

from fedcore.algorithms.statistics.evaluated import evaluated, histograms_of
from fedcore.errors import SiloError
from fedcore.losses import Logistic
from fedcore.messages import Query
from fedcore.planning.evaluation import Evaluation, held_out
from fedcore.state import dump_state, load_state
from tests.releases import columns

HELD = 5
CLASSES = {"ash": 16, "birch": 21, "cedar": 19}


@pytest.fixture
def classed(toy):
    """The toy's records with labels of two classes."""
    return {name: (X, np.where(y > 0, 1.0, -1.0)) for name, (X, y) in toy.items()}


@pytest.fixture
def evaluates(federate, classed):
    """Factory of federations that evaluate, of other records or another target where given."""

    def make(method, data=None, every="phase", epsilon=1.0, **more):
        evaluation = Evaluation(epsilon, every, 2)
        return federate(
            method, data or classed, loss=Logistic(), held=HELD, evaluation=evaluation, epsilon=epsilon, **more
        )

    return make


def played(federation):
    return [(query, releases, state) for query, releases, state in federation.play()]


def changed(data, rows, seed=1):
    """The records with those at these rows of each silo replaced."""
    rng, found = np.random.default_rng(seed), {}
    for name, (X, y) in data.items():
        X, y, at = X.copy(), y.copy(), rows(name, len(y))
        X[at], y[at] = rng.standard_normal((len(at), X.shape[1])), -y[at]
        found[name] = X, y
    return found


def of_training(name, n):
    return np.setdiff1d(np.arange(n), held_out(name, n, HELD))


def payloads(federation, evaluates):
    phases = federation.plan.phases
    return [
        release.payload.tobytes()
        for query, releases, _ in played(federation)
        for release in releases
        if phases[query.phase - 1].evaluates == evaluates
    ]


def test_training_answers_are_the_same_bits_whatever_is_held_out(method, evaluates, classed):
    """Held-out records are in no sum of training: noise is keyed by the exact sum."""
    first = payloads(evaluates(method), False)
    other = payloads(evaluates(method, changed(classed, lambda name, n: held_out(name, n, HELD))), False)
    assert first == other and len(first) >= len(classed)
    assert first != payloads(evaluates(method, changed(classed, of_training)), False)


def test_a_histogram_is_the_same_bits_whatever_was_trained_on(method, evaluates, classed):
    """About one model: asked in the first phase's place, before any training."""

    def histograms(data):
        federation = evaluates(method, data, "end")
        context = federation.context
        phase = federation.plan.phases[-1]
        w = np.array([0.5, -0.2, 0.1, 0.3])
        query = Query("run", federation.plan.digest, phase.index, 1, tuple(data), {"evaluated": w}, {})
        assert context.plan.phases[-1].evaluates
        return [release.payload.tobytes() for release in federation.ask(query)]

    assert histograms(classed) == histograms(changed(classed, of_training))
    assert histograms(classed) != histograms(changed(classed, lambda name, n: held_out(name, n, HELD)))


def test_without_noise_every_histogram_counts_the_held_out_records(method, evaluates, classed):
    federation = evaluates(method, epsilon=None)
    after = {query.phase: state for query, _, state in played(federation)}
    run_method, last = federation.context.method, after[max(after)]
    phases = [phase for phase in federation.plan.phases if phase.evaluates]
    assert len(histograms_of(last)) == len(phases) == len(federation.plan.phases) // 2
    for phase, found in zip(phases, histograms_of(last), strict=True):
        w = run_method.output(after[phase.index])
        for (name, (X, y)), histogram in zip(classed.items(), found, strict=True):
            at = held_out(name, len(y), HELD)
            counts = histogram.reshape(2, -1) * HELD
            wrong = np.where(X[at] @ w >= 0, 1.0, -1.0) != y[at]
            assert counts.sum() == pytest.approx(HELD)
            assert counts[0, 2:].sum() + counts[1, :2].sum() == pytest.approx(wrong.sum())
            assert counts.sum(axis=1) == pytest.approx([(y[at] < 0).sum(), (y[at] > 0).sum()])


def test_phases_alternate_and_their_states_survive_a_checkpoint(method, evaluates):
    federation = evaluates(method)
    flags = [phase.evaluates for phase in federation.plan.phases]
    assert flags == [False, True] * (len(flags) // 2)
    assert [phase.index for phase in federation.plan.phases] == list(range(1, len(flags) + 1))
    kind, first = federation.context.method.state, played(federation)
    for query, releases, state in first:
        again = load_state(kind, dump_state(state))
        assert dump_state(again).keys() == dump_state(state).keys()
        for name, array in dump_state(state).items():
            assert dump_state(again)[name].tobytes() == array.tobytes()
        if federation.plan.phases[query.phase - 1].evaluates:
            assert len(releases) == len(CLASSES)
    middle = load_state(kind, dump_state(first[len(first) // 2][2]))
    resumed = evaluates(method)
    ending = federation.context.method.output(first[-1][2])
    list(resumed.play())
    assert resumed.final(middle).tobytes() == ending.tobytes()


def mu_at(epsilon, delta):
    """The mu of Gaussian DP that is (epsilon, delta)-DP (Dong, Roth, Su 2022, Corollary 1)."""

    def excess(mu):
        first = stats.norm.cdf(-epsilon / mu + mu / 2)
        return first - math.exp(epsilon) * stats.norm.cdf(-epsilon / mu - mu / 2) - delta

    return optimize.brentq(excess, 1e-3, 50.0, xtol=1e-14)


@pytest.mark.parametrize("every", ["phase", "end"])
def test_all_evaluations_together_spend_their_target_and_a_record_pays_for_one_piece(full_method, evaluates, every):
    federation = evaluates(full_method, every=every, epsilon=1.0)
    plan = federation.plan
    evaluations = [phase for phase in plan.phases if phase.evaluates]
    assert len(evaluations) == (len(plan.phases) // 2 if every == "phase" else 1)
    for name, n in CLASSES.items():
        events = [event for phase in evaluations for event in phase.events(name)]
        assert {(event.start, event.stop) for event in events} == {(n - HELD, n)}
        mu = math.sqrt(sum((math.sqrt(2.0) * (1 + 1e-6) / HELD / event.sigma) ** 2 for event in events))
        assert mu == pytest.approx(mu_at(1.0, 1e-5), rel=1e-6)
        training = [event for phase in plan.phases if not phase.evaluates for event in phase.events(name)]
        assert all(event.stop <= n - HELD for event in training)
        assert plan.silo_epsilon(name) == pytest.approx(1.0, abs=1e-3)
        list(federation.play())
    for silo in federation.silos.values():
        silo.close_run("run")
        (charge,) = silo.ledger.charges().values()
        assert charge.mu_squared == pytest.approx(mu_at(1.0, 1e-5) ** 2, rel=2e-3)


def test_all_silos_evaluate_whichever_take_part_in_rounds(method, evaluates):
    if method.needs_all_silos:
        pytest.skip("all silos take part")
    federation = evaluates(method, participants=2)
    for query, releases, _ in federation.play():
        answers = len(releases)
        assert answers == 3 if federation.plan.phases[query.phase - 1].evaluates else answers <= 2


def test_a_silo_takes_no_other_array_in_an_evaluation(evaluates, asker):
    federation = evaluates(asker, every="end")
    last = federation.plan.phases[-1].index
    for arrays in ({"w": np.zeros(4)}, {}, {"evaluated": np.zeros(8)}, {"evaluated": np.full(4, 1e6)}):
        query = Query("run", federation.plan.digest, last, 1, ("ash",), arrays, {})
        with pytest.raises(SiloError, match=r"query"):
            federation.ask(query)
    wrapped = evaluated(asker, federation.plan.problem)
    assert wrapped.asks == (*asker.asks, "histogram") and wrapped.name == asker.name


def test_a_driver_refuses_a_payload_of_the_other_length_that_answers_may_have(evaluates, asker):
    """A site accepts bytes of both lengths; only the phase determines the round's length."""
    federation = evaluates(asker, every="end")
    context, cells = federation.context, federation.plan.phases[-1].question.cells
    for query, releases, state in federation.play():
        evaluation = federation.plan.phases[query.phase - 1].evaluates
        other = np.zeros(4 if evaluation else cells)
        before = context.method.init(np.zeros(4)) if not evaluation else state
        bent = columns([release._replace(payload=other) for release in releases])
        with pytest.raises(SiloError, match=rf"sent {len(other)} numbers in place of {cells if evaluation else 4}"):
            context.fold(before, query, bent)
