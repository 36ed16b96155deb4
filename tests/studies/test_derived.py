"""Published differences, p-values and gaps: against arithmetic by hand and scipy's paired t-tests."""

from __future__ import annotations

import statistics

import pytest
from scipy import stats

from fedcore.errors import InputError
from studies.figures.curves import Curve, CurvesConfig
from studies.figures.points import Point
from studies.results.derived import curve_differences, point_differences, point_gaps

BASE, BETTER, ALIKE = (0.30, 0.34, 0.32), (0.20, 0.25, 0.21), (0.31, 0.33, 0.325)


def point(method, errors, at=1.0):
    seeds = tuple(range(len(errors)))
    return Point(method, at, at, errors, {}, "seeded", 1.0, 10, seeds, at=at)


def against(metric, baseline=None):
    return CurvesConfig(metric=metric, panels=("privacy.trust",), baseline=baseline)


def curve(label, ends, panel=("2",)):
    return Curve(label, panel, (5,), (statistics.fmean(ends),), (0.0,), ends, tuple((seed, 0) for seed in (0, 1, 2)))


def half(values):
    """Student's t with two degrees of freedom: 4.302653 at 97.5 %."""
    return 4.302653 * statistics.stdev(values) / 3**0.5


def test_differences_of_points_are_paired_by_trial():
    made = [point("base", BASE), point("better", BETTER), point("alike", ALIKE), point("better", BETTER, at=2.0)]
    better, alike = point_differences("f", made, "base")
    assert better.place.measure == "test error, difference from base" and better.place.at == "1"
    gaps = (-0.10, -0.09, -0.11)
    assert (better.value, better.spread, better.trials) == ("-0.100", f"{half(gaps):.3f}", 3)
    assert better.spread_of == "interval 95%" and not better.single
    assert (alike.place.curve, alike.value) == ("alike", f"{(0.01 - 0.01 + 0.005) / 3:.3f}")
    (one,) = point_differences("f", [point("base", BASE[:1]), point("better", BETTER[:1])], "base")
    assert (one.value, one.spread, one.spread_of) == ("-0.100", "", "")
    with pytest.raises(InputError, match="no curve is called 'other'"):
        point_differences("f", made, "other")


def test_gaps_to_the_lowest_hold_for_all_pairs_of_the_figure():
    found = point_gaps("f", [point("base", BASE), point("better", BETTER), point("alike", ALIKE)])
    assert {each.place.curve for each in found} == {"base", "alike"}
    for each, other in zip(found, (BASE, ALIKE), strict=True):
        test = stats.ttest_rel(other, BETTER)
        interval = test.confidence_interval(1 - 0.05 / 3)
        word = "worse" if test.pvalue < 0.05 / 3 else "tied"
        assert each.place.measure == f"test error, above better: {word}"
        assert float(each.value) == pytest.approx(test._estimate, rel=0.05)
        assert float(each.spread) == pytest.approx((interval.high - interval.low) / 2, rel=0.05)
        assert each.spread_of == "simultaneous 95%" and each.trials == 3


def test_differences_of_curves_have_p_values_where_less_is_better():
    made = [curve("base", BASE), curve("better", BETTER)]
    apart, chance = curve_differences("f", against("train_loss", "base"), made)
    assert (apart.place.measure, apart.place.panel) == ("train_loss, difference from base", "(2)")
    assert apart.value == "-0.1" and float(apart.spread) == pytest.approx(half((-0.10, -0.09, -0.11)), rel=1e-3)
    p = stats.ttest_rel(BETTER, BASE, alternative="less").pvalue
    assert (chance.place.measure, chance.value) == ("p of no less than base", f"{p:.2g}") and not chance.spread
    (accuracy,) = curve_differences("f", against("accuracy", "base"), made)
    assert accuracy.value == "-0.10"
    assert curve_differences("f", against("train_loss"), made) == []
    elsewhere = [*made, curve("x", BASE, ("3",))]
    with pytest.raises(InputError, match="has other trials than the baseline"):
        curve_differences("f", against("train_loss", "base"), elsewhere)
