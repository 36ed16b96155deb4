"""Weights of silos: their effect, their limits, and refusals."""

import itertools

import numpy as np
import pytest

from fedcore.accounting.calibration import Budget
from fedcore.algorithms import Mbsgd, Scaffold
from fedcore.configfile.reading import validated
from fedcore.errors import InputError
from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.experiment import make_plan
from fedcore.experiment.loading import load_experiment
from fedcore.optim.averaging import Messages, mean_message
from fedcore.planning.problem import SiloFacts
from fedcore.silo.agreement import Agreement
from tests.problems import problem_of


def test_by_records_the_minimiser_is_that_of_all_records_in_one_place(toy, federate):
    sizes = np.array([len(y) for _, y in toy.values()], dtype=float)
    method = Mbsgd(step=0.3, rounds=2000, average="last")
    federation = federate(
        method, toy, epsilon=None, clip=1e6, smoothness=50.0, diameter=1e3, weights=tuple(sizes * 3 / sizes.sum())
    )
    X, y = (np.concatenate([part[k] for part in toy.values()]) for k in (0, 1))
    np.testing.assert_allclose(federation.final(), np.linalg.lstsq(X, y, rcond=None)[0], atol=1e-9)


@pytest.mark.parametrize("method", [Mbsgd(rounds=4), Scaffold(rounds=4, local_steps=2, sampling_rate=0.5)])
def test_weights_change_no_answer_and_no_charge_of_the_first_round(toy, federate, method):
    """Each silo's first release: same event, and noise of its own run key, which covers the agreed weights."""
    plain = federate(method, toy, epsilon=None)
    weighed = federate(method, toy, epsilon=None, weights=(2.0, 0.5, 0.5))
    for name in toy:
        assert plain.plan.silo_events(name) == weighed.plan.silo_events(name)
    assert plain.plan.digest != weighed.plan.digest  # silos agree to how they count
    first = [next(federation.play())[1] for federation in (plain, weighed)]
    if not method.several_answers:  # without samples there is no randomness left
        for a, b in zip(*first, strict=True):  # the order of records is another, so sums differ in their last bits
            np.testing.assert_allclose(a.payload, b.payload, rtol=1e-12)


def test_as_a_weight_falls_to_0_the_run_becomes_one_without_that_silo(toy, federate):
    without = {name: toy[name] for name in ("ash", "birch")}
    method = Mbsgd(step=0.3, rounds=7)
    alone = federate(method, without, epsilon=None)
    ignored = federate(method, toy, epsilon=None, weights=(1.5, 1.5, 1e-200))
    np.testing.assert_allclose(ignored.final(), alone.final(), rtol=1e-12)


def test_over_draws_of_participants_the_expected_message_is_the_weighted_one(toy):
    rng = np.random.default_rng(1)
    weights = (2.0, 0.25, 0.75)
    messages = Messages(enumerate(rng.normal(size=(3, 4))), weights)
    pairs = [messages.changed({k: messages[k] for k in pair}) for pair in itertools.combinations(range(3), 2)]
    expected = np.mean([mean_message(pair) for pair in pairs], axis=0)
    np.testing.assert_allclose(expected, np.average(list(messages.values()), axis=0, weights=weights), rtol=1e-12)
    ones = Messages(messages, (1.0, 1.0, 1.0))
    np.testing.assert_allclose(mean_message(ones), mean_message(Messages(messages)), rtol=0)


def test_a_mean_of_messages_that_lost_their_weights_is_refused():
    with pytest.raises(TypeError, match="know their silos' weights"):
        mean_message({0: np.ones(2), 1: np.zeros(2)})


def test_agreements_carry_weights(toy, federate):
    for weights in (None, (2.0, 0.5, 0.5)):
        agreement = federate(Mbsgd(rounds=2), toy, weights=weights).agreement
        data = agreement.to_bytes()
        assert Agreement.from_bytes(data) == agreement and agreement.problem.weights == weights


@pytest.mark.parametrize("weights", [(1.0, 2.0), (-1.0, 3.0), (float("nan"), 1.0), (float("inf"), 0.0), (2.0, 0.0)])
def test_a_problem_refuses_what_are_no_weights(weights):
    with pytest.raises(InputError, match="weight"):
        problem_of((SiloFacts("a", 9), SiloFacts("b", 9)), 2, 1.0, 1.0, 5.0, 2, Budget(1.0, 1e-4), weights=weights)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("[1, 2]", "participation.weights has 2 numbers, and there are 25 silos"),
        (f"{[0] * 25}", "participation.weights add up to 0 and must to 1, to 1e-06: divide each by their sum"),
        (f"{[0.05] * 25}", "^participation.weights add up to 1.25 and must to 1"),
        (f"{[0.04] * 24 + [0.03]}", "^participation.weights add up to 0.99 and must to 1"),
        (f"{[0.04] * 24 + [0.040002]}", "^participation.weights add up to 1.000002 and must to 1"),
        (f"{[1e308] * 25}", "participation.weights add up to inf and must to 1"),
        (f"{[7] * 10_000}", "^participation.weights has 10000 numbers, and there are 25 silos: give one for each$"),
        (f"{[1 / 24] * 24 + [0]}", "silo o9e8 has weight 0; it would answer and be charged for nothing, so leave it"),
        (f"{[0] + [1 / 24] * 24}", "silo o1e0 has weight 0"),
        ("[]", "participation.weights has 0 numbers"),
        ("[-1]", "participation.weights"),
        ("size", "participation.weights"),
    ],
)
def test_weights_that_do_not_fit_are_refused_by_their_key(file, given, words):
    with pytest.raises(InputError, match=words):
        make_plan(load_experiment(file, [f"participation.weights={given}"]))


def test_numbers_are_brought_to_mean_1_and_records_are_sizes(file):
    problem = make_plan(load_experiment(file, ["participation.weights=records"])).problem
    sizes = np.array([silo.n for silo in problem.silos])
    np.testing.assert_allclose(problem.weights, sizes / sizes.mean(), rtol=1e-12)
    given = f"participation.weights={[k / 325 for k in range(1, 26)]}"
    np.testing.assert_allclose(make_plan(load_experiment(file, [given])).problem.weights, np.arange(1, 26) / 13)
    rounded = [*[0.041667] * 23, 0.041659, 1e-9]  # as a person writes them: they add up to 1.000000001
    written = make_plan(load_experiment(file, [f"participation.weights={rounded}"])).problem.weights
    np.testing.assert_allclose(written, np.array(rounded) * 25 / 1.000000001, rtol=1e-12)
    config = load_experiment(file, [given])
    assert validated(ExperimentConfig, config.model_dump(mode="json"), "again") == config
