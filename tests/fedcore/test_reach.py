"""Steps, weights, bounds and scales at the limits of floats are refused, or give correct models."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from fedcore.algorithms import ALGORITHMS
from fedcore.configfile.reading import validated
from fedcore.errors import InputError
from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.experiment import make_plan
from fedcore.optim.projection import onto_ball, onto_domain, onto_lens

SMALL = {
    "data": {"source": "synthetic", "silos": 3, "records": 40, "features": 4},
    "privacy": {"epsilon": 2},
    "algorithm": {"name": "mbsgd"},
}
NUMBERS = [
    (name, field.name)
    for name, method in ALGORITHMS.items()
    for field in dataclasses.fields(method)
    if field.name not in ("name", "draw") and any(kind in str(field.type) for kind in ("Real", "Factor", "float"))
]


def made(section: str, values: dict[str, object]) -> ExperimentConfig:
    return validated(ExperimentConfig, {**SMALL, section: {**SMALL.get(section, {}), **values}}, "c.yaml")


def test_methods_have_such_keys():
    assert {("mbsgd", "step"), ("fedprox", "prox_weight"), ("localized-mbsgd", "lam")} <= set(NUMBERS)


@pytest.mark.parametrize("value", [1e51, 1e300, 1e-51, 1e-300, 5e-324])
@pytest.mark.parametrize(("name", "key"), NUMBERS)
def test_no_method_takes_a_number_beyond_reach(name, key, value):
    with pytest.raises(InputError, match=rf"c\.yaml: algorithm\.{key} = .*(1e-50 to 1e\+50|than|at most)"):
        made("algorithm", {"name": name, key: value})


@pytest.mark.parametrize("value", [1e50, 1e20, 1e-20, 1e-50])
@pytest.mark.parametrize(("name", "key"), NUMBERS)
def test_within_reach_a_plan_is_made_or_refused_in_a_sentence(name, key, value):
    try:
        plan = make_plan(made("algorithm", {"name": name, key: value}))
    except InputError as error:
        assert key in str(error) or "algorithm." in str(error)
    else:
        assert all(
            math.isfinite(number)
            for phase in plan.phases
            for number in phase.settings.values()
            if isinstance(number, float)
        )


@pytest.mark.parametrize(
    ("section", "values", "key"),
    [
        ("model", {"feature_bound": 1e300}, "model.feature_bound"),
        ("model", {"clip": 1e-300}, "model.clip"),
        ("model", {"diameter": 1e51}, "model.diameter"),
        ("model", {"ridge": 1e-60}, "model.ridge"),
        ("data", {"heterogeneity": 1e300}, "data.heterogeneity"),
        ("evaluation", {"epsilon": 1e20}, "evaluation.epsilon"),
        ("evaluation", {"epsilon": 1e-20}, "evaluation.epsilon"),
    ],
)
def test_no_section_takes_one_either(section, values, key):
    with pytest.raises(InputError, match=rf"c\.yaml: {key} = "):
        made(section, values)


def test_a_ridge_that_is_too_large_is_called_that():
    with pytest.raises(InputError, match=r"model\.ridge = 1e\+20 must be below 1\.09951e\+12"):
        make_plan(made("model", {"ridge": 1e20}))


def test_a_lambda_that_grows_beyond_all_numbers_names_the_exponent():
    for name in ("localized-mbsgd", "localized-accelerated", "localized-subgradient"):
        with pytest.raises(InputError, match=r"algorithm\.exponent: lambda would be above 1e\+100 in phase"):
            make_plan(made("algorithm", {"name": name, "exponent": 200}))


@pytest.mark.parametrize("size", [1e100, 1e160, 1e300, 1e308])
def test_the_nearest_point_of_a_ball_is_on_its_edge_however_far_away_one_begins(size):
    """Along (3, 4) / 5 from the centre, whatever the length; before, the centre itself."""
    centre = np.array([1.0, -1.0])
    found = onto_ball(size * np.array([0.3, 0.4]), centre, 2.0)
    np.testing.assert_allclose(found, [2.2, 0.6], rtol=1e-12)


def test_the_nearest_point_of_a_lens_is_its_rim_however_far_away_one_begins():
    """Unit balls around (-1/2, 0) and (1/2, 0) share the rim (0, +-sqrt(3)/2); (0, z) is nearest to one end of it."""
    left, right = np.array([-0.5, 0.0]), np.array([0.5, 0.0])
    for size in (10.0, 1e100, 1e200, 1e308):
        found = onto_lens(np.array([0.0, size]), left, 1.0, right, 1.0)
        np.testing.assert_allclose(found, [0.0, math.sqrt(0.75)], atol=1e-12)


@pytest.mark.parametrize("number", [np.inf, -np.inf, np.nan])
def test_what_is_no_number_is_not_projected_to_one(number):
    assert not np.isfinite(onto_domain(np.array([1.0, number]), 2.0, np.zeros(2), 9.0)).all()
