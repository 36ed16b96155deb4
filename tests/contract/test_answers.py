"""Every registered answer through one set of tests: its sum, a record's influence, use by a silo.

The naive sums are those of `fedcore.audit.answers`, record by record. A new answer needs a row in ASKED.
"""

import dataclasses
import functools
import math

import numpy as np
import pytest

from fedcore.accounting.calibration import Budget
from fedcore.accounting.events import GaussianRelease
from fedcore.algorithms import ColumnMoments, Diff2, DpFcrn, LargestEigenvalue, Mbsgd, NoisedNewton, SecondMoments
from fedcore.algorithms.statistics.evaluated import evaluated
from fedcore.audit.answers import AUDITED
from fedcore.data.records import Records
from fedcore.errors import InputError, SiloError
from fedcore.ledger.memory import MemoryLedger
from fedcore.losses import Logistic, Squared
from fedcore.optim.random_mask import random_mask
from fedcore.planning.evaluation import Evaluation, guarded_held_out
from fedcore.planning.phases.training_phase import make_phase
from fedcore.planning.problem import SiloFacts
from fedcore.planning.sensitivity.moments import half_diameter
from fedcore.silo.agreement import Agreement
from fedcore.silo.answers import ANSWERS, Shard
from fedcore.silo.keys import SecretKeys
from fedcore.silo.private_silo import PrivateSilo
from fedcore.silo.question import RoundQuestion
from fedcore.silo.site import Site
from tests.problems import changed_phase, problem_of, question_of

N, HELD = 12, 5
EVALUATED = {"dim": 3, "evaluation": Evaluation(None, "end", 2), "silos": (SiloFacts("ash", N, HELD),)}

ASKED = {
    "gradient": (Mbsgd(rounds=2), Squared(), {"dim": 3}),
    "gradient-difference": (Diff2(rounds=4, period=3, split=0.5, slope=0.6), Squared(), {"dim": 3}),
    "gradient-and-hessian": (NoisedNewton(rounds=3, balance=1.5), Squared(), {"dim": 3, "smoothness": 0.6}),
    # A message is (2 / 3) scale / smoothness = 1 times its one answer, and points downhill.
    "gradient-and-hessian-vector": (
        DpFcrn(rounds=2, local_steps=2, kept=0.6, cubic=0.0, radius=1e6, scale=0.9, bound=0.7),
        Squared(),
        {"dim": 3, "smoothness": 0.6},
    ),
    "histogram": (Mbsgd(rounds=2), Logistic(), EVALUATED),
    "moments": (SecondMoments(3, 1.5), None, {"dim": 9, "clip": half_diameter(1.5), "diameter": math.inf}),
    "column-moments": (
        ColumnMoments(3),
        None,
        {"dim": 6, "clip": ColumnMoments(3).half_diameter, "diameter": math.inf},
    ),
    "largest-eigenvalue": (
        LargestEigenvalue(1.5),
        None,
        {"dim": 1, "clip": LargestEigenvalue(1.5).half_diameter, "diameter": math.inf},
    ),
}
"""By answer: a method that asks for it, its objective, and the settings of a problem."""
SENT = {"gradient-and-hessian-vector": -1.0}
"""Factor of a method on its answer."""
ATTAINED = {"column-moments": 0.95, "gradient-difference": 0.9, "gradient-and-hessian": 0.95}
"""Parts that records of three features reach of bounds that are proven for any number of features.

Also those of a convex loss's gradients, whose changes along a step have no two opposite ones."""


ANY_WIDTH = {"largest-eigenvalue"}
"""Answers whose length does not depend on a record's features."""


@pytest.fixture(params=sorted(ANSWERS))
def kind(request):
    return request.param


def problem(kind, budget=None, **changes):
    plain = {
        "dim": 3,
        "clip": 0.8,
        "smoothness": math.inf,
        "diameter": 4.0,
        "participants": 1,
        "silos": (SiloFacts("ash", N),),
        "budget": budget or Budget(None, 1e-5),
    }
    return problem_of(**{**plain, **ASKED[kind][2], **evaluating(kind, budget), **changes})


def evaluating(kind, budget):
    """The evaluation of a problem; it has a target only if there is noise."""
    if kind != "histogram" or budget is None:
        return {}
    return {"evaluation": dataclasses.replace(EVALUATED["evaluation"], epsilon=budget.epsilon)}


def planned(kind, made):
    """The plan of a problem, and its phase in the form for rounds of such answers."""
    plan = evaluated(ASKED[kind][0], made).plan(made)
    return plan, next(each for phase in plan.phases for each in phase.kinds if each.question.kind == kind)


@functools.cache
def plan_of(kind):
    """`planned` of the problem that answers of a kind are tested with: thousands are made from it."""
    return planned(kind, problem(kind))


def first_round(kind, plan, phase):
    """The first round of the phase in which there are such answers."""
    whole = plan.phases[phase.index - 1]
    return next(round for round in range(1, whole.rounds + 1) if whole.at(round).question.kind == kind)


def unit(kind, plan, arrays):
    """Unit of bound and noise for this question."""
    return ANSWERS[kind].scale(plan.problem, *arrays)


def labelled(kind, y):
    """Labels that the answer uses, of which one in three is outside of the classes."""
    return y if kind != "histogram" else np.where(np.abs(y) > 0.1, np.sign(y), y)


def folded(kind, plan, parts):
    """The exact sum of records, from the parts of each (n, d)."""
    return AUDITED[kind](plan, ASKED[kind][1]).folded(parts.sum(axis=0))


def about(kind, n=N):
    """Rows that a silo's answer is about."""
    return guarded_held_out("ash", n, HELD) if kind == "histogram" else np.arange(n)


def asked_about(kind, plan, rng):
    """Arrays in the shapes of the method's question, of every size that the domain allows."""
    method, noted = evaluated(ASKED[kind][0], plan.problem), []
    phase = next(each for phase in plan.phases for each in phase.kinds if each.question.kind == kind)

    round = first_round(kind, plan, phase)

    class Noting:
        ridge = 0.0
        address = ("ash", phase.index, round)

        def ask(self, name, *arrays):
            assert name == kind
            noted.append(arrays)
            return np.zeros(phase.question.length(plan.problem.objective.dim))

    Noting.phase = phase
    at = {"phase": phase.index, "round": round}
    state = dataclasses.replace(method.init(np.zeros(plan.problem.objective.dim)), **at)
    method.silo_step(method.broadcast(state, plan.phases[phase.index - 1]), Noting())
    made = []
    for array in noted[0]:
        if set(np.unique(array)) == {0.0, 1.0}:
            made.append(array)  # a mask
            continue
        direction = rng.standard_normal(array.shape)
        length = min(plan.problem.objective.diameter, 1e3) / 2 * rng.random() ** 2
        made.append(direction / np.linalg.norm(direction) * length)
    return made


def answer(kind, X, y, noise=1.0):
    """The answer about records X, y, with its plan, and a shard of all of them."""
    loss = ASKED[kind][1]
    plan, phase = plan_of(kind)
    norms = np.linalg.norm(X, axis=1)
    made = ANSWERS[kind].of(plan.problem, loss, X, y, float(norms.max()))
    event = GaussianRelease(0, len(y), 1.0, noise)
    return made, plan, phase, Shard(event, slice(0, len(y)), X, y, float(len(y)), noise, None)


def records(rng, n=N, features=3):
    """Records of every size, far inside of any bound to far beyond it; every third on an axis, one zero."""
    X = rng.standard_normal((n, features))
    X[::3] = np.eye(features)[rng.integers(features, size=len(X[::3]))]
    X *= (10.0 ** rng.uniform(-4, 6, n))[:, None]
    X[n // 2] = 0.0
    return X, np.where(rng.random(n) < 0.5, 1.0, -1.0) * 10.0 ** rng.uniform(-3, 3, n)


def draw(purpose):
    raise AssertionError(f"an answer about all of a sum's records drew for {purpose}")


def test_every_answer_is_tested_and_can_be_audited():
    assert ASKED.keys() == AUDITED.keys() == ANSWERS.keys()
    assert all(name == ANSWERS[name].name for name in ANSWERS)


@pytest.mark.parametrize("seed", range(20))
def test_the_sum_is_the_naive_one_over_all_records_and_over_a_sample(kind, seed):
    rng = np.random.default_rng(seed)
    X, y = records(rng)
    y = labelled(kind, y)
    made, plan, phase, shard = answer(kind, X, y)
    arrays = asked_about(kind, plan, rng)
    about_both = np.concatenate(arrays) if arrays else np.zeros(plan.problem.objective.dim)
    parts = AUDITED[kind](plan, ASKED[kind][1]).parts(about_both, X, y)
    total = made.sum(phase, shard, None, draw, *arrays)
    assert (total.dtype, total.shape) == (np.float64, (phase.question.length(plan.problem.objective.dim),))
    np.testing.assert_allclose(total, folded(kind, plan, parts), rtol=1e-9, atol=1e-9)
    if ANSWERS[kind].samples:
        for chosen in (np.arange(0), np.array([3]), np.flatnonzero(rng.random(N) < 0.5)):
            of_sample = made.sum(phase, shard, chosen, draw, *arrays)
            np.testing.assert_allclose(of_sample, folded(kind, plan, parts[chosen]), rtol=1e-9, atol=1e-9)


def test_no_pair_of_records_moves_the_sum_by_more_than_stated_and_the_worst_pair_by_as_much(kind):
    """Alone, beside others, absent from a sample; two of one length at every angle, with every label."""
    rng, largest, longest = np.random.default_rng(5), 0.0, 0.0
    made, plan, phase, _ = answer(kind, *records(rng))
    bound = 2 * ANSWERS[kind].half_diameter(plan.problem, phase)
    norm = ANSWERS[kind].largest_norm(plan.problem, phase)
    for trial in range(4000):
        X, y = records(rng, 2)
        if trial % 2:
            angle = rng.choice([0.0, 2 / 3, 1.0]) * math.pi
            X = np.array([[1.0, 0.0, 0.0], [math.cos(angle), math.sin(angle), 0.0]]) * 10.0 ** rng.uniform(1, 6)
        elif trial % 4 == 2:
            X = rng.choice([-1.0, -0.7, -0.32, 0.0, 0.32, 0.7, 1.0], (2, 3))
        y = labelled(kind, y)
        arrays = asked_about(kind, plan, rng)
        alone = []
        for at in range(2):
            made, _, _, shard = answer(kind, X[at : at + 1], y[at : at + 1])
            alone.append(made.sum(phase, shard, None, draw, *arrays) / unit(kind, plan, arrays))
            longest = max(longest, float(np.linalg.norm(alone[-1])))
        largest = max(largest, float(np.linalg.norm(alone[0] - alone[1])))
    least = ATTAINED.get(kind, 0.999)
    assert least * bound < largest <= bound * (1 + 1e-9)
    assert least * norm < longest <= norm * (1 + 1e-9)
    assert norm <= bound
    if ANSWERS[kind].samples:
        assert norm <= bound / 2 * (1 + 1e-12)  # a record that joins a sample costs half of a replacement


def test_a_mismatch_is_named_and_a_match_is_not(kind):
    _, loss, _ = ASKED[kind]
    misfit = ANSWERS[kind].misfit
    assert misfit(problem(kind), loss, N, 3) is None
    assert "the plan says" in misfit(problem(kind, dim=problem(kind).objective.dim + 1), loss, N, 3)
    if kind not in ANY_WIDTH:
        assert "the plan says" in misfit(problem(kind), loss, N, 4)
    else:
        assert misfit(problem(kind), loss, N, 4) is None and "supported" in misfit(problem(kind), loss, N, 2001)
    assert "objective" in misfit(problem(kind), None if loss is not None else Squared(), N, 3)


def opened(kind, **budget):
    """A silo that agreed to a plan of such answers, its records, and the first question."""
    method, loss, _ = ASKED[kind]
    made = problem(kind, **budget)
    plan, phase = planned(kind, made)
    X, y = records(np.random.default_rng(3))
    y = labelled(kind, y)
    silo = PrivateSilo("ash", Records(X, y), SecretKeys(b"k" * 32), MemoryLedger("ash"))
    Site([silo]).agree(Agreement("run", made, method, loss, plan.digest))
    run_method, round = evaluated(method, made), first_round(kind, plan, phase)
    state = dataclasses.replace(run_method.init(np.zeros(made.objective.dim)), phase=phase.index, round=round)
    arrays = run_method.broadcast(state, plan.phases[phase.index - 1])
    if "before" in arrays:
        arrays = {**arrays, "before": np.array([0.3, 0.0, -0.4])}  # a step of 1/2
    rows = about(kind)
    return silo, plan, phase, X[rows], y[rows], RoundQuestion("run", phase.index, round, arrays, b"q" * 32)


def asked_in(question, dim, kind=None):
    """The arrays of a question, one after the other."""
    if kind == "gradient-and-hessian-vector":
        mask = random_mask(0, "ash", question.phase, question.round, dim, 2)
        return np.concatenate([question.arrays["w"], mask, np.zeros(2)])
    return np.concatenate([question.arrays[name] for name in question.arrays] or [np.zeros(dim)])


def test_a_silo_sends_the_mean_and_charges_the_planned_event(kind):
    silo, plan, phase, X, y, question = opened(kind)
    release = silo.answer(question, phase)
    parts = AUDITED[kind](plan, ASKED[kind][1]).parts(asked_in(question, plan.problem.objective.dim, kind), X, y)
    sent = SENT.get(kind, 1.0) * folded(kind, plan, parts) / len(y)
    np.testing.assert_allclose(release.payload, sent, rtol=1e-9, atol=1e-9)
    (row,) = silo.ledger.rows("run")
    assert row.event == phase.event("ash", 1) == plan.phases[phase.index - 1].event("ash", question.round)
    assert row.event.sensitivity >= 2 * ANSWERS[kind].half_diameter(plan.problem, phase) / len(y)


def test_its_noise_is_the_planned_one_and_the_same_for_a_repeated_question(kind):
    noised = []
    for epsilon in (1.0, 4.0):
        silo, plan, phase, X, y, question = opened(kind, budget=Budget(epsilon, 1e-5))
        release = silo.answer(question, phase)
        assert silo.answer(question, phase).payload.tobytes() == release.payload.tobytes()
        parts = AUDITED[kind](plan, ASKED[kind][1]).parts(asked_in(question, plan.problem.objective.dim, kind), X, y)
        sigma = phase.shares[0].sigma * (0.5 if kind == "gradient-difference" else 1.0)
        noised.append((release.payload - SENT.get(kind, 1.0) * folded(kind, plan, parts) / len(y)) / sigma)
    assert silo.computed == 1 and not np.array_equal(*noised)
    assert 0.2 < np.sqrt(np.mean(np.square(noised))) < 2.5 and np.abs(noised).max() < 5


def approved(kind, change):
    """Lets a silo approve the plan of ASKED with `change` to its phases of such answers."""
    method, loss, _ = ASKED[kind]
    made = problem(kind)
    plan, of_kind = planned(kind, made)
    whole = plan.phases[of_kind.index - 1]
    phases = tuple(change(made, phase) if phase is whole else phase for phase in plan.phases)
    X, y = records(np.random.default_rng(3))
    silo = PrivateSilo("ash", Records(X, labelled(kind, y)), SecretKeys(b"k" * 32), MemoryLedger("ash"))
    silo.approve("run", dataclasses.replace(plan, phases=phases), method, loss)


def smaller_clip(problem, phase):
    return changed_phase(phase, clip=0.99 * phase.question.clip)


def another_answer(problem, phase):
    # A method may ask for less than a round is charged for.
    known = {phase.question.kind, *ASKED[phase.question.kind][0].asks}
    other = next(name for name in (*ANSWERS, "records") if name not in known)
    return changed_phase(phase, question=question_of(other, phase.question.clip))


def unknown_answer(problem, phase):
    return changed_phase(phase, question=question_of("records", phase.question.clip))


@pytest.mark.parametrize("change", [smaller_clip, another_answer, unknown_answer], ids=lambda change: change.__name__)
def test_a_plan_that_does_not_charge_for_its_answers_is_refused(kind, change):
    if kind in ("gradient-difference", "gradient-and-hessian-vector") and change is smaller_clip:
        pytest.skip("its bound is the phase's own, by which the silo clips: a smaller one is charged for less noise")
    sentence = r"phase [12] (does not charge for its answers|asks for .*, which is not agreed)"
    if kind == "histogram" and change is not smaller_clip:  # the plan refuses held-out records before any silo sees it
        sentence = "phase 2 asks silo ash about records 8 to 12, .* held out of training"
    with pytest.raises((SiloError, InputError), match=sentence):
        approved(kind, change)


def test_samples_that_an_answer_does_not_take_are_refused(kind):
    def sampled(problem, phase):
        drawn = make_phase(problem, 1, 1, {"ash": (0, N)}, batch=4)
        share = dataclasses.replace(phase.shares[0], rate=1 / 3, batch=phase.shares[0].n / 3)
        return changed_phase(phase, sampling=drawn.schedule.sampling, shares=(share,))

    if ANSWERS[kind].samples:
        approved(kind, sampled)
    else:
        sentence = "does not charge for its answers|an evaluation is one answer about the 5 records"
        with pytest.raises((SiloError, InputError), match=sentence):
            approved(kind, sampled)


def test_a_silo_refuses_an_agreement_whose_objective_is_not_one_for_its_answer(kind):
    """Training without an objective, moments with one: a constant sentence before any record is read."""
    method, loss, _ = ASKED[kind]
    made = problem(kind)
    other = Squared() if loss is None else None
    site = Site([PrivateSilo("ash", Records(np.ones((N, 3)), np.ones(N)), SecretKeys(b"k" * 32), MemoryLedger("ash"))])
    with pytest.raises(SiloError, match="objective"):
        site.agree(Agreement("run", made, method, other, planned(kind, made)[0].digest))
    assert site.silos == ("ash",) and not site._approved
