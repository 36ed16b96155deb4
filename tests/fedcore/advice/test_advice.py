"""Advice from rows made by hand: the nearest noise counts most, networks do not count for convex losses, and ties go to
the simplest method."""

from __future__ import annotations

import math

import numpy as np
import pytest
from pydantic import ValidationError

from fedcore.advice.advice import OTHER_PARTICIPATION, WIDTH, advise, weighted
from fedcore.advice.table import Facts, Row
from fedcore.errors import InputError
from fedcore.experiment.config import ExperimentConfig


def facts(**changes) -> Facts:
    values = {"silos": 25, "per_round": 25, "records": 100, "weights": 20, "convex": True, "epsilon": 1, "delta": 1e-5}
    return Facts.model_validate(values | changes)


def row(errors: dict[str, float], ties: tuple[str, ...] = (), **changes) -> Row:
    return Row.model_validate(
        {
            "figure": "made",
            "facts": facts(**changes),
            "measure": "test error",
            "errors": errors,
            "tied": [min(errors, key=errors.get), *ties],
            "settings": {method: {"algorithm.rounds": 10} for method in errors},
            "rounds": {method: 10 if method != "scaffold" else 20 for method in errors},
            "floats": {method: 100.0 if method != "newton" else 1000.0 for method in errors},
        }
    )


def test_noise_is_the_term_that_the_bounds_share():
    by_hand = math.sqrt(20 * math.log(1e5)) / (100 * 1.0 * 5.0)
    assert facts().noise == pytest.approx(by_hand)
    assert facts(epsilon=2).noise == facts(records=200).noise == pytest.approx(by_hand / 2)
    assert facts(silos=100, per_round=100).noise == pytest.approx(by_hand / 2)


def test_facts_are_those_of_the_plan():
    config = ExperimentConfig.model_validate(
        {
            "data": {"source": "synthetic", "silos": 8, "records": 50, "features": 6},
            "algorithm": {"name": "mbsgd"},
            "privacy": {"epsilon": 3, "delta": 1e-4},
            "participation": {"silos_per_round": 2},
        }
    )
    assert Facts.of(config) == facts(silos=8, per_round=2, records=50, weights=7, epsilon=3, delta=1e-4)
    assert not Facts.of(config).all_silos


@pytest.mark.parametrize("weights", ["equal", "records"])
def test_noise_of_unequal_silos_is_that_of_their_mean(weights):
    """By simulation: four of six silos of 20 to 200 records add noise to a mean with equal weights or by records.

    The noise has the deviation sqrt(d ln(1/delta)) / (n epsilon).
    """
    sizes = [20, 40, 50, 100, 150, 200]
    config = ExperimentConfig.model_validate(
        {
            "data": {
                "source": "simulated",
                "silos": 6,
                "records": sizes,
                "features": {"a": {"range": [0, 1], "missing": []}},
            },
            "algorithm": {"name": "mbsgd"},
            "privacy": {"epsilon": 2, "delta": 1e-4},
            "participation": {"silos_per_round": 4, "weights": weights},
        }
    )
    found = Facts.of(config)
    rng, n = np.random.default_rng(20), np.array(sizes)
    share = np.ones(6) if weights == "equal" else n / n.mean()
    deviations = share * np.sqrt(found.weights * np.log(1e4)) / (n * 2)
    drawn = [rng.normal(size=4) @ deviations[rng.permutation(6)[:4]] / 4 for _ in range(40_000)]
    assert found.noise == pytest.approx(np.std(drawn), rel=0.02)


def test_a_row_weighs_by_how_near_its_noise_is():
    alike, twice, network = row({"a": 0.1}), row({"a": 0.1}, epsilon=0.5), row({"a": 0.1}, convex=False)
    (first, one), (second, less) = weighted([twice, network, alike], facts())
    assert (first, one, second) == (alike, 1.0, twice)
    assert less == pytest.approx(math.exp(-0.5 * (math.log(2) / WIDTH) ** 2))
    # As much noise from fewer silos, which are in every round there and not here.
    assert weighted([alike], facts(silos=50, per_round=25)) == [(alike, pytest.approx(OTHER_PARTICIPATION))]


def test_rows_of_the_least_noise_count_where_there_is_less_and_no_row_where_there_is_far_more():
    least, more = row({"a": 0.1}, epsilon=8), row({"a": 0.1}, epsilon=4)
    for epsilon in (8, 100, 10_000):
        (first, one), (second, less) = weighted([more, least], facts(epsilon=epsilon))
        assert (first, one, second) == (least, 1.0, more)
        assert less == pytest.approx(math.exp(-0.5 * (math.log(2) / WIDTH) ** 2))
    assert weighted([more, least], facts(epsilon=4 / 1.4))
    assert weighted([more, least], facts(epsilon=4 / 1.6)) == []  # 1.6 times the noise of the noisier


def test_the_method_with_the_least_mean_error_above_the_lowest_is_advised():
    table = [row({"mbsgd": 0.2, "newton": 0.1}, epsilon=8), row({"mbsgd": 0.3, "newton": 0.45}, epsilon=0.5)]
    assert advise(facts(epsilon=8), table).method == "newton"
    made = advise(facts(epsilon=0.5), table)
    assert made.method == "mbsgd" and made.rows[0][0] is table[1] and made.settings == {"algorithm.rounds": 10}
    between = facts(epsilon=2)
    found = dict((id(each), weight) for each, weight in weighted(table, between))
    weights = [found[id(each)] for each in table]
    by_hand = {"mbsgd": weights[0] * 0.1, "newton": weights[1] * 0.15}  # 0.2 - 0.1 and 0.45 - 0.3
    made = advise(between, table)
    assert made.method == min(by_hand, key=by_hand.get)
    assert made.above == pytest.approx(by_hand[made.method] / sum(weights))
    (other,) = made.others
    assert made.others[other] == pytest.approx(by_hand[other] / sum(weights))


def test_the_plainest_of_those_that_are_tied_nearly_everywhere_is_advised():
    errors = {"mbsgd": 0.11, "scaffold": 0.105, "newton": 0.1}
    assert advise(facts(), [row(errors)]).method == "newton"
    made = advise(facts(), [row(errors, ("scaffold", "mbsgd"))])
    assert (made.method, made.tied) == ("mbsgd", 1.0) and list(made.others) == ["newton", "scaffold"]
    assert advise(facts(), [row(errors, ("scaffold",))]).method == "scaffold"
    # Three rows of one weight in which it is tied, and one in which it is not: 3/4 is too little.
    assert advise(facts(), [row(errors, ("mbsgd",))] * 3 + [row(errors)]).method == "newton"
    assert advise(facts(), [row(errors, ("mbsgd",))] * 19 + [row(errors)]).method == "mbsgd"


def test_what_one_cannot_afford_or_does_not_apply_is_not_advised():
    table = [row({"newton": 0.1, "scaffold": 0.15, "mbsgd": 0.2})]
    assert advise(facts(), table).method == "newton"
    assert advise(facts(), table, floats=500).method == "scaffold"
    assert advise(facts(), table, floats=500, rounds=15).method == "mbsgd"
    assert advise(facts(), table, besides=["newton"]).method == "scaffold"
    with pytest.raises(InputError, match=r"keeps to the limits: afford at least 10 rounds$"):
        advise(facts(), table, rounds=5)
    with pytest.raises(InputError, match=r"afford at least 20 rounds and 100 numbers sent$"):
        advise(facts(), table, rounds=5, floats=50, besides=["newton", "mbsgd"])
    with pytest.raises(InputError, match="no method of the table applies"):
        advise(facts(), table, rounds=5, besides=["newton", "mbsgd", "scaffold"])


def test_what_was_left_out_and_how_far_the_rows_are_is_known():
    near, far = row({"newton": 0.1, "scaffold": 0.15, "mbsgd": 0.2}, epsilon=2), row({"mbsgd": 0.2}, epsilon=8)
    made = advise(facts(epsilon=4), [near], floats=500, rounds=15)
    assert made.method == "mbsgd"
    assert made.left_out == {"newton": "beyond the limits", "scaffold": "beyond the limits"}
    assert made.away == pytest.approx(2) and advise(facts(epsilon=2), [near]).away == 1
    both = advise(facts(epsilon=4), [near, far], besides=["newton", "scaffold"])
    assert dict(both.left_out) == dict.fromkeys(["newton", "scaffold"], "does not go with this config")
    assert both.away == pytest.approx(2)  # between them, as far from either


def test_what_is_sent_is_of_the_silos_that_are_asked_about():
    """21 weights: a gradient 21 numbers, with a Hessian 21 + 21 * 22 / 2 = 252; of 10 silos in 10 rounds."""
    made = row({"mbsgd": 0.2, "noised-newton": 0.1}, silos=10, per_round=10, weights=21)
    made = made.model_copy(update={"floats": {"mbsgd": 21.0 * 100, "noised-newton": 252.0 * 100}})
    here = facts(silos=4, per_round=2, weights=65)  # 65 and 65 + 65 * 66 / 2 = 2,210
    assert made.sent("mbsgd", here) == pytest.approx(65 * 2 * 10)
    assert made.sent("noised-newton", here) == pytest.approx(2_210 * 2 * 10)
    table = [made]
    near = facts(silos=10, per_round=10, weights=21)
    assert advise(near, table, floats=25_200).method == "noised-newton"
    assert advise(near, table, floats=25_199).method == "mbsgd"


def test_settings_are_those_of_the_nearest_row_that_one_can_afford():
    short, long = row({"mbsgd": 0.2, "newton": 0.1}, epsilon=3), row({"mbsgd": 0.2, "newton": 0.1})
    rounds, settings = {"mbsgd": 40, "newton": 40}, {"mbsgd": {"long": 1}, "newton": {}}
    long = long.model_copy(update={"rounds": rounds, "settings": settings})
    assert advise(facts(), [short, long], besides=["newton"]).settings == {"long": 1}
    made = advise(facts(), [short, long], rounds=10, besides=["newton"])
    assert made.settings == {"algorithm.rounds": 10} and [each for each, _ in made.rows] == [short]


@pytest.mark.parametrize(
    "damage",
    [
        {"rounds": {"newton": 10}},
        {"floats": {"newton": 100.0}},
        {"settings": {"newton": {}}},
        {"tied": ["other"]},
        {"tied": []},
        {"errors": {"mbsgd": -0.1, "newton": 0.1}},
        {"errors": {"mbsgd": math.nan, "newton": 0.1}},
    ],
)
def test_a_row_that_does_not_fit_together_is_refused(damage):
    values = row({"mbsgd": 0.2, "newton": 0.1}).model_dump()
    assert Row.model_validate(values)
    with pytest.raises(ValidationError):
        Row.model_validate(values | damage)


def test_a_method_that_is_missing_where_it_matters_is_not_advised():
    table = [row({"mbsgd": 0.2}), row({"mbsgd": 0.2, "newton": 0.1}, epsilon=3)]
    assert advise(facts(), table).method == "mbsgd"


def test_what_the_table_knows_nothing_of_is_said():
    with pytest.raises(InputError, match=r"no row of networks with as much noise as here \(0\.03.*; at most 0\)"):
        advise(facts(convex=False), [row({"mbsgd": 0.2})])
    with pytest.raises(InputError, match=r"no row of convex losses .* at most 0\.0303\): more records"):
        advise(facts(epsilon=0.001), [row({"mbsgd": 0.2})])
