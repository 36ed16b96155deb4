"""Every model, loss and answer about persons: the worst pair with any rows; a naive sum by hand.

Neighbours replace one person of the list by another with any rows of its own, more or fewer.
"""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedcore.accounting.calibration import Budget
from fedcore.accounting.events import GaussianRelease
from fedcore.accounting.rounding import ROUNDING
from fedcore.algorithms import ColumnMoments, SecondMoments
from fedcore.audit.answers import AUDITED
from fedcore.data.persons import of_persons
from fedcore.data.records import Records
from fedcore.losses import (
    LOSSES,
    Absolute,
    Convolution,
    DrawnConvolution,
    Hinge,
    Huber,
    Logistic,
    Moreau,
    Quantile,
    Squared,
)
from fedcore.models import Classifier, OneHiddenLayer, RegressionNetwork, SoftmaxRegression, model_of
from fedcore.planning.evaluation import Evaluation
from fedcore.planning.problem import SiloFacts
from fedcore.planning.sensitivity.moments import half_diameter
from fedcore.randomness import generator
from fedcore.silo.answers import ANSWERS, Shard
from tests.contract import test_answers
from tests.contract.drawn_labels import nearest
from tests.contract.test_models import gradient
from tests.problems import problem_of

CLIP, FEATURES = 0.5, 3
OBJECTIVES = [
    *(loss() for loss in LOSSES.values() if loss is not Quantile),
    Quantile(tau=0.3),
    Moreau(Hinge(), 0.7),
    Convolution(Absolute(), 0.4, FEATURES),
    DrawnConvolution(Absolute(), 0.4, 1.0, FEATURES),
    *(SoftmaxRegression(classes) for classes in (2, 4)),
    OneHiddenLayer(3, 4),
    OneHiddenLayer(3, 4, "softplus"),
    RegressionNetwork(4, "softplus"),
    RegressionNetwork(3, "relu", Huber()),
]
people = st.lists(st.integers(1, 12), min_size=1, max_size=6)
"""Number of rows of each person."""


@pytest.fixture(params=OBJECTIVES, ids=str)
def loss(request):
    return request.param


def rows(loss, rng, count):
    """Rows (x, y) of every size, some on an axis, some zero, some equal."""
    made = []
    for _ in range(count):
        x = rng.standard_normal(FEATURES) if rng.random() < 0.7 else np.eye(FEATURES)[rng.integers(FEATURES)]
        x = x * rng.choice([0.0, 1e-3, 1.0, 1e3], p=[0.1, 0.2, 0.5, 0.2])
        if isinstance(loss, Classifier):
            y = float(rng.integers(loss.classes))
        else:
            y = float(rng.choice(loss.labels.values or [nearest(loss.labels, y) for y in (-1e3, -0.5, 0.0, 2.0, 1e3)]))
        made.append((x, y))
    return made


def as_file(rng, persons):
    """The rows of all persons as in a file: mixed, each person's in order, with each row's person."""
    person_of = [number for number, mine in enumerate(persons) for _ in mine[1:]]
    order = [*range(len(persons)), *rng.permutation(person_of).tolist()]
    left = [list(mine) for mine in persons]
    taken = [left[number].pop(0) for number in order]
    return np.array([x for x, _ in taken]), np.array([y for _, y in taken]), np.array(order)


def opened(rng, persons, places):
    X, y, person_of = as_file(rng, persons)
    return of_persons(Records(X, y), person_of, places, "person")


def problem(loss, persons, clip=CLIP):
    dim = model_of(loss).weights(FEATURES)
    return problem_of((SiloFacts("ash", persons),), dim, clip, math.inf, 4.0, 1, Budget(None, 1e-5), person="person")


def answered(loss, records, w, chosen=None, sampling="full"):
    """The silo's own sum about these records, in file order."""
    made = ANSWERS["gradient"].of(problem(loss, records.n), loss, records.X, records.y, math.inf)
    event = GaussianRelease(0, records.n, 1.0, 1.0, sampling=sampling, rate=1.0 if sampling == "full" else 0.5)
    whole = slice(0, len(records.y))
    shard = Shard(event, whole, records.X, records.y, 1.0, 1.0, None, records.weights, records.places)
    return made.sum(None, shard, chosen, lambda purpose: generator(b"k", purpose), w)


def naive(loss, persons, places, w):
    """(persons, d): each person's mean, over its first rows, of gradients that were clipped one by one."""
    model, parts = model_of(loss), []
    for mine in persons:
        total = np.zeros(len(w))
        for x, y in mine[:places]:
            g = gradient(model, w, x, y)
            total += g * min(1.0, CLIP / max(float(np.linalg.norm(g)), 1e-300))
        parts.append(total / len(mine[:places]))
    return np.array(parts)


def weights_of(loss, rng, scale=1.0):
    return scale * rng.standard_normal(model_of(loss).weights(FEATURES))


@pytest.mark.parametrize("places", [1, 2, 10])
def test_the_sum_is_the_naive_one_of_all_persons_and_of_a_sample(loss, places):
    if isinstance(loss, DrawnConvolution):
        pytest.skip("its gradients are at drawn points; the worst pair below holds for any of them")
    rng = np.random.default_rng(places)
    for _ in range(10):
        persons = [rows(loss, rng, rng.integers(1, 14)) for _ in range(7)]
        records, w = opened(rng, persons, places), weights_of(loss, rng)
        parts = naive(loss, persons, places, w)
        np.testing.assert_allclose(answered(loss, records, w), parts.sum(axis=0), rtol=1e-9, atol=1e-11)
        for chosen in (np.arange(0), np.array([3]), np.flatnonzero(rng.random(7) < 0.5), np.arange(7)):
            for sampling in ("poisson", "without-replacement"):
                found = answered(loss, records, w, chosen, sampling)
                np.testing.assert_allclose(found, parts[chosen].sum(axis=0), rtol=1e-9, atol=1e-11)


@given(people, st.integers(1, 12), st.integers(1, 12), st.integers(0, 2**32), st.sampled_from([1e-3, 1.0, 1e6]))
def test_no_pair_of_persons_moves_the_sum_by_more_than_two_clips(sizes, of_one, of_other, seed, scale):
    rng = np.random.default_rng(seed)
    loss = OBJECTIVES[seed % len(OBJECTIVES)]
    persons = [rows(loss, rng, size) for size in sizes]
    at, w = int(rng.integers(len(sizes))), weights_of(loss, rng, scale)
    sums = []
    for count in (of_one, of_other):
        persons[at] = rows(loss, rng, count)
        records = opened(rng, persons, 5)
        assert records.X.shape == (5 * len(sizes), FEATURES) and records.n == len(sizes)
        sums.append(answered(loss, records, w))
        # Alone or joining a sample, a person moves a sum by no more than half of that.
        alone = answered(loss, records, w, np.array([at]), "poisson")
        assert np.linalg.norm(alone) <= CLIP * (1 + ROUNDING)
    assert np.linalg.norm(sums[0] - sums[1]) <= 2 * CLIP * (1 + ROUNDING)


@pytest.mark.parametrize(
    "loss", [Squared(), Absolute(), Logistic(), SoftmaxRegression(2), OneHiddenLayer(2, 2)], ids=str
)
@pytest.mark.parametrize(("of_one", "of_other"), [(1, 1), (1, 9), (9, 4), (10, 25), (3, 7)])
def test_the_worst_pair_moves_it_by_two_clips_whatever_their_rows(loss, of_one, of_other):
    """All rows of one person pull one way, all of the other's the opposite way, far beyond the bound."""
    rng, w = np.random.default_rng(0), np.zeros(model_of(loss).weights(FEATURES))
    if isinstance(loss, OneHiddenLayer):
        w[-1] = w[-1 - (loss.hidden + 1)] = 1e-9  # at zero weights only the classes' biases have a gradient
    x = 1e6 * np.eye(FEATURES)[0]
    low, high = (0.0, 1.0) if isinstance(loss, Classifier) else (-1.0, 1.0)
    persons = [rows(loss, rng, 3), [], rows(loss, rng, 6)]
    sums = []
    for label, count in ((low, of_one), (high, of_other)):
        persons[1] = [(x, label)] * count
        sums.append(answered(loss, opened(rng, persons, 10), w))
    moved = float(np.linalg.norm(sums[0] - sums[1]))
    if isinstance(loss, OneHiddenLayer):  # its gradients there are below the bound: opposite, and of one length
        single = np.linalg.norm(gradient(model_of(loss), w, x, low))
        assert moved == pytest.approx(2 * min(CLIP, single), rel=1e-6)
    else:
        assert 2 * CLIP * (1 - 1e-6) <= moved <= 2 * CLIP * (1 + ROUNDING)


def test_without_weights_many_rows_would_move_it_by_more():
    """Effect of the weights: the same pair of persons, with each row counted as a record."""
    x, w = np.eye(FEATURES)[0], np.zeros(FEATURES)
    sums = []
    for label in (-1.0, 1.0):
        records = opened(np.random.default_rng(0), [[(x, label)] * 8], 10)
        counted = Records(records.X, records.y)
        sums.append(answered(Absolute(), counted, w))
    assert np.linalg.norm(sums[0] - sums[1]) == pytest.approx(16 * CLIP)


def at_the_corner(rng, d, persons):
    """Equal rows for each person, and a model at which the hinge's margin is 1 up to the last bits."""
    x = rng.standard_normal(d)
    x /= np.linalg.norm(x)
    w = rng.standard_normal(d)
    return [[(x, 1.0)] for _ in range(persons)], w / (x @ w)


@pytest.mark.parametrize("sampling", ["full", "poisson"])
def test_the_rows_of_one_person_change_no_bit_of_what_others_contribute(sampling):
    """At a corner of the hinge a row's place in the product decides its residual, by a last bit."""
    rng, moved_otherwise = np.random.default_rng(3), 0.0
    for d in (3, 5, 8, 20, 50, 64):
        for size in (2, 3, 5, 8):
            for _ in range(10):
                persons, w = at_the_corner(rng, d, size)
                sums, naively = [], []
                for count in (1, 2, 3, 7, 30):
                    persons[0] = [(np.zeros(d), 1.0)] * count  # this person adds zero, so all bits are those of others
                    X = np.array([x for mine in persons for x, _ in mine])
                    person_of = np.array([number for number, mine in enumerate(persons) for _ in mine])
                    records = of_persons(Records(X, np.ones(len(X))), person_of, 4, "person")
                    chosen = None if sampling == "full" else np.arange(1, size)
                    sums.append(answered_at(records, w, chosen, sampling).tobytes())
                    naively.append(answered_at(Records(X, np.ones(len(X))), w))
                assert len(set(sums)) == 1
                moved_otherwise = max(moved_otherwise, *(np.linalg.norm(naively[0] - other) for other in naively))
    if not moved_otherwise:
        pytest.skip("this machine's BLAS rounds a row alike wherever it stands")
    assert moved_otherwise > CLIP  # without places of their own, one person's rows move the gradients of others


def answered_at(records, w, chosen=None, sampling="full"):
    made = ANSWERS["gradient"].of(
        problem_of((SiloFacts("ash", records.n),), len(w), CLIP, math.inf, 1e6, 1, Budget(None, 1e-5)),
        Hinge(),
        records.X,
        records.y,
        1.0,
    )
    event = GaussianRelease(0, records.n, 1.0, 1.0, sampling=sampling, rate=1.0 if sampling == "full" else 0.5)
    whole = slice(0, len(records.y))
    shard = Shard(event, whole, records.X, records.y, 1.0, 1.0, None, records.weights, records.places)
    return made.sum(None, shard, chosen, lambda purpose: generator(b"k", purpose), w)


def test_persons_of_one_row_are_records_to_the_last_bit(loss):
    """With one place for each person; with more places up to rounding."""
    rng = np.random.default_rng(1)
    persons = [rows(loss, rng, 1) for _ in range(9)]
    X, y = np.array([mine[0][0] for mine in persons]), np.array([mine[0][1] for mine in persons])
    w = weights_of(loss, rng)
    plain = answered(loss, Records(X, y), w)
    assert answered(loss, of_persons(Records(X, y), np.arange(9), 1, "person"), w).tobytes() == plain.tobytes()
    if not isinstance(loss, DrawnConvolution):
        wide = answered(loss, of_persons(Records(X, y), np.arange(9), 4, "person"), w)
        np.testing.assert_allclose(wide, plain, rtol=1e-9, atol=1e-12)


@given(people, st.integers(1, 12), st.integers(1, 12), st.integers(0, 2**32))
def test_no_pair_of_persons_moves_moments_by_more_than_stated(sizes, of_one, of_other, seed):
    bound, rng = 1.5, np.random.default_rng(seed)
    method = SecondMoments(FEATURES, bound)
    values = (SiloFacts("ash", len(sizes)),), 9, half_diameter(bound), math.inf, math.inf, 1, Budget(None, 1e-5)
    plan = method.plan(problem_of(*values, person="person"))
    persons = [rows(Squared(), rng, size) for size in sizes]
    at, sums = int(rng.integers(len(sizes))), []
    for count in (of_one, of_other):
        persons[at] = rows(Squared(), rng, count)
        records = opened(rng, persons, 5)
        event = plan.phases[0].event("ash", 1)
        whole = slice(0, len(records.y))
        shard = Shard(event, whole, records.X, records.y, 1.0, 1.0, None, records.weights, records.places)
        sums.append(ANSWERS["moments"]().sum(plan.phases[0], shard, None, None))
        by_hand = np.zeros(9)
        for mine in persons:
            for x, _ in mine[:5]:
                short = x * min(1.0, bound / max(float(np.linalg.norm(x)), 1e-300))
                outer = np.outer(short, short) * (math.sqrt(2.0) - (math.sqrt(2.0) - 1.0) * np.eye(FEATURES))
                by_hand += np.concatenate([bound * short, outer[np.triu_indices(FEATURES)]]) / len(mine[:5])
        np.testing.assert_allclose(sums[-1], by_hand, rtol=1e-9, atol=1e-9)
    assert np.linalg.norm(sums[0] - sums[1]) <= 2 * half_diameter(bound) * (1 + 1e-12)


@given(people, st.integers(1, 12), st.integers(1, 12), st.integers(0, 2**32))
def test_no_pair_of_persons_moves_moments_of_columns_by_more_than_stated(sizes, of_one, of_other, seed):
    method, rng = ColumnMoments(FEATURES), np.random.default_rng(seed)
    values = (SiloFacts("ash", len(sizes)),), method.numbers, method.half_diameter, math.inf, math.inf, 1
    plan = method.plan(problem_of(*values, Budget(None, 1e-5), person="person"))
    persons = [rows(Squared(), rng, size) for size in sizes]
    at, sums = int(rng.integers(len(sizes))), []
    for count in (of_one, of_other):
        persons[at] = rows(Squared(), rng, count)
        records = opened(rng, persons, 5)
        event = plan.phases[0].event("ash", 1)
        whole = slice(0, len(records.y))
        shard = Shard(event, whole, records.X, records.y, 1.0, 1.0, None, records.weights, records.places)
        sums.append(ANSWERS["column-moments"]().sum(plan.phases[0], shard, None, None))
        by_hand = np.zeros(method.numbers)
        for mine in persons:
            for x, _ in mine[:5]:
                short = np.clip(x, -1, 1)
                short *= min(1.0, method.record_bound / max(float(np.linalg.norm(short)), 1e-300))
                by_hand += np.concatenate([short, short**2]) / len(mine[:5])
        np.testing.assert_allclose(sums[-1], by_hand, rtol=1e-9, atol=1e-9)
    assert np.linalg.norm(sums[0] - sums[1]) <= 2 * method.half_diameter * (1 + 1e-12)


@given(people, st.integers(1, 12), st.integers(1, 12), st.integers(0, 2**32))
def test_no_pair_of_persons_moves_a_histogram_by_more_than_stated(sizes, of_one, of_other, seed):
    rng, evaluation = np.random.default_rng(seed), Evaluation(None, "end", 2)
    persons = [rows(Logistic(), rng, size) for size in sizes]
    at, w, counts = int(rng.integers(len(sizes))), rng.standard_normal(FEATURES), []
    agreed = replace(problem(Logistic(), 2), silos=(SiloFacts("ash", 2, 1),), evaluation=evaluation)
    for count in (of_one, of_other):
        persons[at] = rows(Logistic(), rng, count)
        records = opened(rng, persons, 5)
        made = ANSWERS["histogram"].of(agreed, Logistic(), records.X, records.y, math.inf)
        event, whole = GaussianRelease(0, records.n, 1.0, 1.0), slice(0, len(records.y))
        shard = Shard(event, whole, records.X, records.y, 1.0, 1.0, None, records.weights, records.places)
        counts.append(made.sum(None, shard, None, None, w))
        assert counts[-1].sum() == pytest.approx(len(sizes))  # each person is one, all its labels being classes
    assert np.linalg.norm(counts[0] - counts[1]) <= math.sqrt(2.0) * (1 + 1e-12)


def test_the_worst_pair_of_persons_moves_a_histogram_by_the_root_of_two():
    agreed = replace(problem(Logistic(), 2), silos=(SiloFacts("ash", 2, 1),), evaluation=Evaluation(None, "end", 2))
    x, counts = np.eye(FEATURES)[0], []
    for label, count in ((-1.0, 3), (1.0, 9)):
        records = opened(np.random.default_rng(0), [[(x, 1.0)] * 2, [(x, label)] * count], 5)
        made = ANSWERS["histogram"].of(agreed, Logistic(), records.X, records.y, math.inf)
        event, whole = GaussianRelease(0, records.n, 1.0, 1.0), slice(0, len(records.y))
        shard = Shard(event, whole, records.X, records.y, 1.0, 1.0, None, records.weights, records.places)
        counts.append(made.sum(None, shard, None, None, x))
    assert np.linalg.norm(counts[0] - counts[1]) == pytest.approx(math.sqrt(2.0))


@pytest.mark.parametrize("name", sorted(ANSWERS))
def test_an_answer_that_declares_row_weights_uses_them(name):
    """Every registered answer against independent parts; a class without the declaration is refused."""
    if not vars(ANSWERS[name]).get("weighs", False):
        pytest.skip("a silo of persons does not give it")
    for seed in range(20):
        rng = np.random.default_rng(seed)
        X, y = test_answers.records(rng)
        y = test_answers.labelled(name, y)
        weights = rng.choice([0.0, 0.25, 1.0], len(y))
        made, plan, phase, shard = test_answers.answer(name, X, y)
        arrays = test_answers.asked_about(name, plan, rng)
        total = made.sum(phase, replace(shard, weights=weights), None, test_answers.draw, *arrays)
        audited = AUDITED[name](plan, test_answers.ASKED[name][1])
        parts = audited.parts(np.concatenate(arrays or [np.zeros(plan.problem.objective.dim)]), X, y)
        by_hand = test_answers.folded(name, plan, weights[:, None] * parts)
        np.testing.assert_allclose(total, by_hand, rtol=1e-9, atol=1e-9)
