"""A known curvature: the statistic behind it, the bound that follows, and the key of methods that take it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from fedcore.accounting.calibration import Budget
from fedcore.algorithms import LocalizedAccelerated
from fedcore.arrays import canonical_json
from fedcore.experiment.loading import load_experiment
from fedcore.planning.curvature import LEAST, ReleasedCurvature, half_diameter, largest_norm, pooled_bound
from fedcore.planning.problem import SiloFacts
from fedcore.silo.answers.largest_eigenvalue import largest_eigenvalue
from tests.problems import problem_of


def problem(smoothness=0.25, **changes):
    silos = tuple(SiloFacts(f"silo-{k}", 60) for k in range(3))
    return problem_of(silos, 4, 1.0, smoothness, 10.0, 3, Budget(1.0, None), **changes)


def of_matrix(X, bound, weights=None):
    """By singular values of weighted rows, cut one by one."""
    cut = np.array([row * min(1.0, bound / max(math.hypot(*row), 1e-300)) for row in X])
    scale = np.ones(len(X)) if weights is None else np.sqrt(weights)
    return float(np.linalg.svd(cut * scale[:, None], compute_uv=False)[0] ** 2)


records = st.integers(0, 2**32 - 1)


@settings(max_examples=150, deadline=None)
@given(records, st.integers(1, 12), st.integers(1, 6), st.floats(1e-3, 1e3))
def test_no_replaced_record_moves_it_by_more_than_stated_beside_any_others(seed, n, p, bound):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, p)) * bound * 10.0 ** rng.uniform(-3, 2, (n, 1))
    other = X.copy()
    other[rng.integers(n)] = rng.choice([0.0, 1.0]) * rng.standard_normal(p) * bound * 10.0 ** rng.uniform(-2, 3)
    before, after = largest_eigenvalue(X, bound), largest_eigenvalue(other, bound)
    assert before[0] == pytest.approx(of_matrix(X, bound), rel=1e-9)
    assert abs(float(before[0] - after[0])) <= 2 * half_diameter(bound) * (1 + 1e-9)
    assert 0 <= before[0] <= n * largest_norm(bound) * (1 + 1e-9)


def test_the_worst_pair_of_a_grid_moves_it_by_what_is_charged_and_not_more():
    """All pairs of records on a grid of lengths and angles, beside each of some other data sets: brute force."""
    bound = 1.5
    angles = np.linspace(0, math.pi, 13)
    grid = [r * bound * np.array([math.cos(a), math.sin(a)]) for r in (0, 0.4, 1, 3) for a in angles]
    others = [np.zeros((1, 2)), np.eye(2) * bound, np.array([[1.0, 0.2], [0.3, -1.0], [1.5, 0.0]])]
    largest = 0.0
    for beside in others:
        values = [float(largest_eigenvalue(np.vstack([beside, x]), bound)[0]) for x in grid]
        largest = max(largest, max(values) - min(values))
    assert largest == pytest.approx(2 * half_diameter(bound), rel=1e-12)


@settings(max_examples=100, deadline=None)
@given(records, st.integers(1, 5), st.integers(1, 4))
def test_a_person_with_rows_whose_weights_add_up_to_one_moves_it_no_farther(seed, persons, places):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((persons * places, 3)) * 10.0 ** rng.uniform(-1, 2, (persons * places, 1))
    weights = np.concatenate([rng.dirichlet(np.ones(places)) for _ in range(persons)])
    other, theirs = X.copy(), weights.copy()
    other[:places] = rng.standard_normal((places, 3)) * 50
    theirs[:places] = rng.dirichlet(np.ones(places)) * rng.random()
    before, after = largest_eigenvalue(X, 2.0, weights), largest_eigenvalue(other, 2.0, theirs)
    assert before[0] == pytest.approx(of_matrix(X, 2.0, weights), rel=1e-9)
    assert abs(float(before[0] - after[0])) <= 4.0 * (1 + 1e-9)


@settings(max_examples=100, deadline=None)
@given(records, st.integers(1, 6), st.integers(1, 5))
def test_without_noise_it_bounds_the_pooled_eigenvalue_for_any_weights(seed, silos, p):
    rng = np.random.default_rng(seed)
    parts = []
    for _ in range(silos):
        X = rng.standard_normal((rng.integers(1, 9), p)) * rng.uniform(0.1, 1.0)
        parts.append(X / np.maximum(np.linalg.norm(X, axis=1), 1.0)[:, None])
    weights = rng.dirichlet(np.ones(silos)) * silos
    pooled = sum(w / silos * X.T @ X / len(X) for w, X in zip(weights, parts, strict=True))
    mine = [float(np.linalg.eigvalsh(X.T @ X / len(X))[-1]) for X in parts]
    found = pooled_bound(mine, [0.0] * silos, tuple(weights), 1.0)
    assert found >= np.linalg.eigvalsh(pooled)[-1] * (1 - 1e-12)
    assert found == pytest.approx(max(np.dot(weights, mine) / silos, LEAST))


def test_with_noise_it_covers_the_pooled_eigenvalue_in_99_of_100_releases():
    """Silos alike, where convexity leaves no slack: the quantile alone covers, so 0.99 is attained."""
    rng, draws = np.random.default_rng(4), 20_000
    weights, sigmas = (0.5, 1.0, 1.5), (0.02, 0.05, 0.01)
    covered = 0
    for _ in range(draws):
        noised = 0.3 + rng.standard_normal(3) * sigmas
        covered += pooled_bound(noised.tolist(), sigmas, weights, 1.0) >= 0.3
    assert abs(covered / draws - 0.99) < 4 * math.sqrt(0.99 * 0.01 / draws)


def test_it_stays_between_a_floor_and_the_worst_case():
    assert pooled_bound([5.0], [1.0], None, 2.0) == 4.0
    assert pooled_bound([0.0], [0.0], None, 2.0) == LEAST * 4.0
    # An eigenvalue is at least 0, so noise far below it is not believed: z_0.99 sigma is left.
    assert pooled_bound([-3.0, -1.0], [0.1, 0.1], None, 2.0) == pytest.approx(2.326347874 * 0.1 / math.sqrt(2))


def test_a_number_is_beta_with_ridge_and_lambda_added_as_before():
    """The first stage's upsilon is at least 2 (beta + ridge + lambda), and equal to it where there is no noise."""
    made = problem(ridge=0.01)
    quiet = problem_of(made.silos, 4, 1.0, 0.25, 10.0, 3, Budget(None), ridge=0.01)
    for smoothness, beta in (("worst-case", 0.25), (0.02, 0.02), (0.25, 0.25), (3, 3.0)):
        plan = LocalizedAccelerated(rounds=5, lam=0.1, smoothness=smoothness).plan(quiet)
        assert plan.phases[0].settings["stages"][0][1] == pytest.approx(2 * (beta + 0.01 + 0.1))
        assert plan.problem.objective.smoothness == beta
    known, worst = (LocalizedAccelerated(rounds=5, smoothness=b).plan(made) for b in (0.02, "worst-case"))
    assert [p.shares for p in known.phases] == [p.shares for p in worst.phases]
    assert LocalizedAccelerated(rounds=5, smoothness=0.02).plan(known.problem).digest == known.digest


def test_before_a_release_it_plans_the_worst_case():
    released = LocalizedAccelerated(rounds=5, lam=0.1, smoothness={"epsilon": 0.1})
    assert released.plan(problem()).digest == LocalizedAccelerated(rounds=5, lam=0.1).plan(problem()).digest
    assert released.released_curvature == ReleasedCurvature(epsilon=0.1) and released.known_curvature is None


def test_a_nonsmooth_problem_stays_one_whatever_the_number():
    with pytest.raises(Exception, match="needs a smooth loss"):
        LocalizedAccelerated(rounds=5, lam=0.1, smoothness=0.1).plan(problem(math.inf))


def test_every_value_of_the_key_is_dumped_and_comes_back():
    adapter = TypeAdapter(LocalizedAccelerated)
    plain = adapter.dump_python(LocalizedAccelerated(rounds=5, lam=0.1))
    assert canonical_json(plain) == (
        '{"batch":null,"exponent":null,"gap":"tight","lam":0.1,"max_phases":null,"name":"localized-accelerated",'
        '"rounds":5,"rounds_scale":1.0,"schedule":null,"smoothness":"worst-case"}'
    )
    released = {"constants": "released", "epsilon": 0.1}
    for form, dumped in ((0.5, 0.5), (released, released | {"scale": 1.0})):
        method = LocalizedAccelerated(rounds=5, smoothness=form)
        values = adapter.dump_python(method)
        assert values["smoothness"] == dumped and adapter.validate_python(values) == method


def test_a_number_that_yaml_reads_as_text_is_one_as_it_is_for_other_keys():
    made = load_experiment(
        "conf/experiment/digits.yaml", ["algorithm={name: accelerated-mbsgd, rounds: 5, lam: 1e-2, smoothness: 1e-2}"]
    )
    assert made.algorithm.lam == made.algorithm.smoothness == 0.01


@pytest.mark.parametrize(
    "smoothness",
    [
        0,
        -0.5,
        True,
        "1e-2x",
        "nan",
        "-1",
        "best",
        None,
        math.inf,
        math.nan,
        2.0**41,
        [0.1],
        {"epsilon": 0},
        {"epsilon": -1},
    ],
)
def test_what_is_none_of_the_three_forms_is_refused(smoothness):
    with pytest.raises(ValidationError, match=r"worst-case, released|greater than 0"):
        LocalizedAccelerated(rounds=5, smoothness=smoothness)


@pytest.mark.parametrize(("left", "key"), [({}, "rounds"), ({"rounds": 5, "batch": "theory"}, "batch")])
def test_released_is_refused_where_a_theorem_would_take_the_price_from_it(left, key):
    with pytest.raises(ValidationError, match=f"give algorithm.{key}, which"):
        LocalizedAccelerated(smoothness="released", **left)
