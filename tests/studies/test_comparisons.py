"""Methods at one place of a figure: differences within trials, intervals corrected for all pairs, ties called ties."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy import stats

from fedcore.errors import InputError
from studies.figures.comparisons import comparisons, rankings, rankings_table
from studies.figures.points import Point


def point(method: str, epsilon: float, errors, seeds=None) -> Point:
    errors = tuple(float(error) for error in errors)
    return Point(
        method,
        epsilon,
        epsilon,
        errors,
        {"{}": len(errors)},
        "seeded",
        1.0,
        10,
        tuple(range(len(errors))) if seeds is None else seeds,
        at=epsilon,
    )


def drawn(seed: int = 0, trials: int = 10) -> list[Point]:
    rng = np.random.default_rng(seed)
    found = []
    for epsilon in (1.0, 4.0):
        world = 0.05 * rng.standard_normal(trials)  # what trials share, which pairing takes away
        for method, mean in (("a", 0.20), ("b", 0.202), ("c", 0.30)):
            found.append(point(method, epsilon, mean + world + 0.004 * rng.standard_normal(trials)))
    return found


def test_intervals_are_those_of_paired_t_tests_at_the_corrected_level():
    made = drawn()
    compared = comparisons(made)
    assert len(compared) == 6
    by_name = {(each.method, each.at): np.array(each.errors) for each in made}
    for each in compared:
        paired = stats.ttest_rel(by_name[each.first, each.at], by_name[each.second, each.at])
        interval = paired.confidence_interval(1 - 0.05 / 6)
        assert each.difference == pytest.approx((interval.low + interval.high) / 2)
        assert each.interval == pytest.approx((interval.high - interval.low) / 2)
        assert each.decided == (paired.pvalue < 0.05 / 6)


def test_ties_are_called_ties_and_what_is_worse_worse():
    found = rankings(drawn(), comparisons(drawn()))
    for ranking in found:
        assert {ranking.best, *ranking.tied} == {"a", "b"} and ranking.worse == ("c",)


def test_equal_methods_are_seldom_told_apart_over_a_whole_figure():
    """Of 200 figures with three pairs of equal methods in two places, about 5 % or fewer have one decided."""
    rng, wrong = np.random.default_rng(1), 0
    for _ in range(200):
        made = [point(m, e, rng.standard_normal(10)) for e, m in itertools.product((1.0, 2.0), "abc")]
        wrong += any(each.decided for each in comparisons(made))
    assert wrong <= 20  # more than 20 of 200 at 5 %: 0.2 %


def test_one_trial_decides_nothing_and_other_trials_are_refused():
    one = [point("a", 1.0, [0.1]), point("b", 1.0, [0.9])]
    assert not comparisons(one)[0].decided and rankings(one, comparisons(one))[0].tied == ("b",)
    with pytest.raises(InputError, match="other trials"):
        comparisons([point("a", 1.0, [0.1, 0.2]), point("b", 1.0, [0.1, 0.2], seeds=(0, 5))])


def test_a_method_that_is_not_everywhere_is_compared_where_it_is():
    made = [*drawn(), point("d", 4.0, [0.5] * 10)]
    assert len(comparisons(made)) == 3 + 6
    (at_1, at_4) = rankings(made, comparisons(made))
    assert "d" not in at_1.worse and at_4.worse[-1] == "d"


def test_the_table_says_by_how_much_and_how_many_comparisons_there_were():
    made = drawn()
    text = rankings_table(rankings(made, comparisons(made)), comparisons(made), "epsilon")
    assert text.startswith("| epsilon | lowest | tied with it | worse |\n|---|---|---|---|\n| 1 | ")
    assert "c +0.1" in text and "corrected for the 6 comparisons" in text and "95%" in text


def test_small_differences_keep_two_digits():
    wobble = np.tile([1e-5, -1e-5], 5)
    made = [point("a", 1.0, 0.0005 + wobble), point("b", 1.0, np.full(10, 0.00087))]
    assert "b +0.00037 ± " in rankings_table(rankings(made, comparisons(made)), comparisons(made), "epsilon")
