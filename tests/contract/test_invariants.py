"""Invariants of plans: faults planted into every method's plan, and into own methods, are refused."""

import dataclasses
import re

import numpy as np
import pytest

from fedcore.accounting.calibration import Budget
from fedcore.algorithms import Mbsgd
from fedcore.algorithms.statistics.evaluated import evaluated
from fedcore.data.records import Records
from fedcore.errors import InputError, SiloError
from fedcore.ledger.memory import MemoryLedger
from fedcore.losses import Logistic, Squared
from fedcore.optim.averaging import mean_message
from fedcore.optim.sgd import sgd_update
from fedcore.planning.evaluation import Evaluation
from fedcore.planning.phases.evaluation_phase import evaluation_phase
from fedcore.planning.phases.training_phase import make_phase
from fedcore.planning.plan import Plan
from fedcore.planning.problem import SiloFacts
from fedcore.planning.questions.statistics import HistogramQuestion
from fedcore.planning.schedule import Part
from fedcore.planning.whole_silo import planned
from fedcore.silo.agreement import Agreement
from fedcore.silo.keys import SecretKeys
from fedcore.silo.private_silo import PrivateSilo
from fedcore.silo.site import Site
from tests.contract.methods import PAGE
from tests.problems import changed, changed_phase, problem_of

N, HELD, DIM = 40, 8, 4
SILOS = tuple(SiloFacts(name, N, HELD) for name in ("ash", "birch"))


AT_END = Evaluation(1.0, "end", 2)
HISTOGRAM = HistogramQuestion(clip=0.5**0.5, cells=8)


def problem(evaluation=AT_END, **changes):
    held = 0 if evaluation is None else HELD
    silos = tuple(dataclasses.replace(silo, held=held) for silo in SILOS)
    values = {"budget": Budget(1.0, 1e-5), "evaluation": evaluation} | changes
    return problem_of(silos, DIM, 1.0, 1.0, 10.0, 2, **values)


def site():
    rng = np.random.default_rng(0)
    return Site(
        [
            PrivateSilo(
                facts.name,
                Records(rng.standard_normal((N, DIM)), np.ones(N)),
                SecretKeys(b"key"),
                MemoryLedger(facts.name),
            )
            for facts in SILOS
        ]
    )


def check_refused(method, problem, sentence, loss=None):
    """Checks that driver and silos refuse the plan with a sentence, and that no run is opened."""
    with pytest.raises(InputError, match=sentence):
        planned(evaluated(method, problem), problem)
    try:
        digest = evaluated(method, problem).plan(problem).digest
    except InputError:
        digest = "0" * 64
    here = site()
    with pytest.raises(SiloError, match=sentence) as caught:
        here.agree(Agreement("run", problem, method, loss or Logistic(), digest))
    assert caught.value.code == "plan" and not here._approved


@dataclasses.dataclass(frozen=True)
class Planted(Mbsgd):
    """Minibatch SGD whose phases are those of `made`."""

    made: object = None

    def plan(self, problem):
        return Plan(problem, self.made(problem))


def planted(made):
    method = Planted(rounds=8)
    object.__setattr__(method, "made", made)
    return method


def whole(problem, more=0):
    return {silo.name: (0, silo.trained + more) for silo in problem.silos}


def later(phase, start, n, first, every=10**9):
    """The phase with a part that asks other records, from its round `first` on."""
    shares = tuple(dataclasses.replace(share, start=start, n=n) for share in phase.shares)
    return dataclasses.replace(phase, parts=(Part(first, every, phase.question, shares),))


def blocks_of_all(problem):
    return (make_phase(problem, 1, 5, {silo.name: (0, silo.n) for silo in problem.silos}, blocks=5),)


def blocks_that_run_over(problem):
    """Seven blocks of the size of an eighth of all records, of which the last one is held out."""
    (phase,) = blocks_of_all(problem)
    shares = tuple(dataclasses.replace(share, n=32, batch=5) for share in phase.shares)
    return (changed_phase(phase, rounds=7, shares=shares),)


RANGES = {
    "all records": (lambda p: (make_phase(p, 1, 3, whole(p, HELD)),), "1 to 40, and 33 to 40"),
    "one too many": (lambda p: (make_phase(p, 1, 3, whole(p, 1)),), "1 to 33, and 33 to 33"),
    "samples": (lambda p: (make_phase(p, 1, 3, whole(p, 1), batch=4),), "1 to 33, and 33 to 33"),
    "held out alone": (
        lambda p: (make_phase(p, 1, 3, {silo.name: (silo.trained, 4) for silo in p.silos}),),
        "33 to 36, and 33 to 36",
    ),
    "round 7": (lambda p: (later(make_phase(p, 1, 8, whole(p)), 32, 8, 7),), "33 to 40, and 33 to 40"),
    "fresh blocks": (blocks_of_all, "1 to 40, and 33 to 40"),
    "a last fresh block": (blocks_that_run_over, "1 to 35, and 33 to 35"),
    "a second phase": (
        lambda p: (make_phase(p, 1, 3, whole(p)), make_phase(p, 2, 1, whole(p, 2))),
        "1 to 34, and 33 to 34",
    ),
}


@pytest.mark.parametrize("case", RANGES)
def test_a_phase_of_training_about_held_out_records_is_refused_by_plan_and_silo(case):
    made, sentence = RANGES[case]
    index = 2 if case == "a second phase" else 1
    sentence = rf"phase {index} asks silo ash about records {sentence} are among its 8 that are held out .* first 32"
    check_refused(planted(made), problem(), sentence)


def test_records_that_a_silo_does_not_have_are_refused():
    made = {silo.name: (0, N + 1) for silo in SILOS}
    sentence = "phase 1 asks silo ash about records 1 to 41, and it has 40"
    check_refused(planted(lambda p: (make_phase(p, 1, 3, made),)), problem(None), sentence)


def test_a_method_plans_no_evaluations_itself():
    def more(p):
        return (make_phase(p, 1, 3, whole(p)), evaluation_phase(p, p.evaluation, 2, 1))

    check_refused(planted(more), problem(), r"2 phases ask held-out records, and evaluation.every = end has 1")

    def part(p):
        share = evaluation_phase(p, p.evaluation, 2, 1).shares
        phase = make_phase(p, 1, 8, whole(p))
        return (dataclasses.replace(phase, parts=(Part(7, 99, HISTOGRAM, share),)),)

    check_refused(planted(part), problem(), "phase 1 asks silo ash about records 33 to 40 to evaluate a model")
    check_refused(
        planted(
            lambda p: (
                dataclasses.replace(make_phase(p, 1, 3, whole(p)), question=HistogramQuestion(clip=0.5**0.5, cells=8)),
            )
        ),
        problem(None),
        "phase 1 asks silo ash about records 1 to 40 to evaluate a model",
    )


def quieter(phase, factor):
    shares = tuple(dataclasses.replace(share, sigma=factor * share.sigma) for share in phase.shares)
    return dataclasses.replace(phase, shares=shares)


LIES = {
    "less noise": (lambda p: (quieter(make_phase(p, 1, 3, whole(p)), 0.999),), "phase 1: records 1 to 32"),
    "much less noise": (lambda p: (quieter(make_phase(p, 1, 3, whole(p)), 0.1),), "phase 1: records 1 to 32"),
    "less noise of samples": (
        lambda p: (quieter(make_phase(p, 1, 3, whole(p), batch=4), 0.9),),
        "phase 1: records 1 to 32",
    ),
    "more rounds": (lambda p: (changed_phase(make_phase(p, 1, 3, whole(p)), rounds=4),), "phase 1: records 1"),
    "two phases at the target": (
        lambda p: (make_phase(p, 1, 3, whole(p)), make_phase(p, 2, 3, {s.name: (10, 5) for s in p.silos})),
        "phases 1, 2: records 11 to 15",
    ),
    "more answers in a round": (
        lambda p: (changed_phase(make_phase(p, 1, 3, whole(p)), answers=2),),
        "phase 1: records 1 to 32",
    ),
}


@pytest.mark.parametrize("case", LIES)
def test_a_plan_that_costs_a_record_more_than_the_agreed_target_is_refused(case):
    made, sentence = LIES[case]
    sentence = rf"{sentence}.* of silo ash pay epsilon (1\.\d*[1-9]|\d+\S*), above the agreed privacy.epsilon = 1:"
    check_refused(planted(made), problem(), sentence)


def test_noise_below_what_is_given_is_refused():
    agreed = problem(None, budget=Budget(None, 1e-5, multiplier=3.0))
    made = planted(lambda p: (quieter(make_phase(p, 1, 3, whole(p)), 0.5),))
    check_refused(made, agreed, r"phase 1: silo ash adds noise of 1.5 times .* about records 1 to 40, less than .* = 3")
    planned(planted(lambda p: (make_phase(p, 1, 3, whole(p)),)), agreed)


def test_an_evaluation_above_its_own_target_is_refused_whatever_training_may_cost():
    """With a plan that did not go through its class: each silo checks by itself."""
    agreed = problem(Evaluation(0.5, "end", 2))
    method = Mbsgd(rounds=3)
    plan = planned(evaluated(method, agreed), agreed)
    phases = (plan.phases[0], quieter(plan.phases[1], 0.6))
    silo = PrivateSilo("ash", Records(np.ones((N, DIM)), np.ones(N)), SecretKeys(b"key"), MemoryLedger("ash"))
    with pytest.raises(SiloError, match=r"phase 2: records 33 to 40 of silo ash pay .*evaluation.epsilon = 0.5"):
        silo.approve("run", dataclasses.replace(plan, phases=phases), method, Logistic())
    silo.approve("run", plan, method, Logistic())


def otherwise_weighted(phase):
    pairs = zip(phase.shares, (0.5, 1.5), strict=True)
    return dataclasses.replace(
        phase, shares=tuple(dataclasses.replace(share, weight=weight) for share, weight in pairs)
    )


def test_trust_weights_and_noise_of_another_kind_are_refused():
    cases = {
        "leaves its noise to an aggregator": lambda phase: changed_phase(phase, entrusted=True),
        "has other weights of silos": otherwise_weighted,
        "has discrete-gaussian noise": lambda phase: changed_phase(phase, mechanism="discrete-gaussian"),
    }
    for sentence, change in cases.items():
        made = planted(lambda p: (change(make_phase(p, 1, 3, whole(p))),))  # noqa: B023
        check_refused(made, problem(None), f"phase 1 {sentence}")


def moved(plan, change):
    """The plan with `change` made to every share of every kind of its rounds of training."""

    def of(shares):
        return tuple(change(share) for share in shares)

    phases = []
    for phase in plan.phases:
        parts = tuple(dataclasses.replace(p, shares=of(p.shares)) for p in phase.parts)
        made = dataclasses.replace(phase, shares=of(phase.shares), parts=parts)
        phases.append(phase if phase.evaluates else made)
    return tuple(phases)


def test_no_phase_of_any_method_reaches_a_held_out_record(method, federate, toy):
    """Moves training to the last records, for each method's rounds; also in a plan without its class."""
    data = {name: (X, np.where(y > 0, 1.0, -1.0)) for name, (X, y) in toy.items()}
    federation = federate(method, data, loss=Logistic(), held=5, evaluation=Evaluation(1.0, "end", 2))
    plan = federation.plan
    for silo in plan.problem.silos:
        events = [event for phase in plan.phases if not phase.evaluates for event in phase.events(silo.name)]
        assert max(event.stop for event in events) <= silo.trained
        last = max(event.stop for event in events)
        by = silo.trained - last + 1
        phases = moved(plan, lambda share: dataclasses.replace(share, start=share.start + by))  # noqa: B023
        with pytest.raises(InputError, match=r"phase \d+ asks silo \w+ about records .* (held out|has \d+)"):
            dataclasses.replace(plan, phases=phases)
    crafted = dataclasses.replace(plan)
    object.__setattr__(crafted, "phases", phases)
    name = plan.problem.silos[-1].name
    with pytest.raises(SiloError, match=r"phase \d+ asks silo \w+ about records") as caught:
        federation.silos[name].approve("other", crafted, method, Logistic())
    assert caught.value.code == "plan"


def test_no_method_may_add_less_noise_than_its_target_takes(full_method, federate, toy):
    federation = federate(full_method, toy)
    phases = moved(federation.plan, lambda share: dataclasses.replace(share, sigma=0.99 * share.sigma))
    crafted = dataclasses.replace(federation.plan, phases=phases)
    for name, silo in federation.silos.items():
        with pytest.raises(SiloError, match=rf"of silo {name} pay epsilon 1\.0.*above the agreed privacy.epsilon = 1"):
            silo.approve("other", crafted, full_method, Squared())


def test_persons_are_planned_for_as_records_are(method):
    """Numbers of records are numbers of persons, held-out ones too, and the sentences name persons."""
    agreed = problem()
    plan = planned(evaluated(method, agreed), agreed)
    agreed = changed(agreed, person="patient")
    of_persons = planned(evaluated(method, agreed), agreed)
    assert [phase.shares for phase in of_persons.phases] == [phase.shares for phase in plan.phases]
    with pytest.raises(InputError, match=r"asks silo ash about persons .* (held out|has 40)"):
        phases = moved(of_persons, lambda share: dataclasses.replace(share, start=share.start + N - HELD))
        dataclasses.replace(of_persons, phases=phases)


def unweighted(method, mean):
    """The method with a mean of its own, as if it forgot the silos' weights."""
    kind = type(method)
    return dataclasses.dataclass(frozen=True)(type(kind.__name__, (kind,), {"server_update": mean}))()


def test_a_mean_without_the_silos_weights_is_refused_or_seen(federate, toy):
    """A mean over plain dictionaries raises; one by NumPy ends elsewhere than at the weighted minimiser."""
    weights = (2.0, 0.5, 0.5)

    def plain(self, state, messages, phase):
        return sgd_update(state, mean_message(dict(messages)), phase, self.average)

    with pytest.raises(TypeError, match="know their silos' weights"):
        federate(unweighted(Mbsgd(), plain), toy, weights=weights).final()

    def ignored(self, state, messages, phase):
        return sgd_update(state, np.mean(list(messages.values()), axis=0), phase, self.average)

    def final(method, weights):
        return federate(method, toy, epsilon=None, weights=weights).final()

    wanted = final(Mbsgd(), weights)
    assert np.linalg.norm(wanted - final(Mbsgd(), None)) > 1e-3
    np.testing.assert_allclose(final(unweighted(Mbsgd(), ignored), weights), final(Mbsgd(), None), rtol=1e-12)


def test_the_page_on_methods_names_no_range_that_a_method_must_not_plan():
    assert not re.search(r"\(0, silo\.n\)", PAGE.read_text()) and "silo.trained" in PAGE.read_text()
