"""Published values that follow from trials of several curves: differences, their p-values, and gaps to the lowest."""

from __future__ import annotations

from collections.abc import Sequence

from studies.figures import drawn_curves, drawn_points
from studies.figures.comparisons import by_pair, comparisons, rankings
from studies.figures.curves import Curve, CurvesConfig, panel_name
from studies.figures.formats import place_text
from studies.figures.points import Point
from studies.figures.trials import below_zero
from studies.results.measured import Measured, Place, mean_of


def point_differences(figure: str, made: Sequence[Point], baseline: str) -> list[Measured]:
    """Mean differences from the baseline's points in the same trials, with 95 % intervals.

    Raises InputError for a baseline that is missing or has other trials.
    """
    found = []
    for point in drawn_points.differences(made, baseline):
        measure = f"{point.metric}, difference from {baseline}"
        place = Place(figure, measure, point.method, "", point.against, place_text(point.at))
        found.append(mean_of(place, point.metric, point.errors))
    return found


def point_gaps(figure: str, made: Sequence[Point]) -> list[Measured]:
    """Gaps of the other methods to the lowest one at each place, tied or worse, with simultaneous 95 % intervals."""
    compared = comparisons(made)
    gaps = by_pair(compared)
    points = {(point.at, point.method): point for point in made}
    found = []
    for ranking in rankings(made, compared):
        for word, methods in (("tied", ranking.tied), ("worse", ranking.worse)):
            for method in methods:
                gap, point = gaps[ranking.at, frozenset((ranking.best, method))], points[ranking.at, method]
                measure = f"{point.metric}, above {ranking.best}: {word}"
                found.append(
                    Measured(
                        Place(figure, measure, method, "", point.against, place_text(ranking.at)),
                        f"{abs(gap.difference):.2g}",
                        trials=len(point.errors),
                        spread=f"{gap.interval:.2g}",
                        spread_of="simultaneous 95%",
                    )
                )
    return found


def curve_differences(figure: str, config: CurvesConfig, made: Sequence[Curve]) -> list[Measured]:
    """Mean differences of end values from the baseline's, run by run, with 95 % intervals; then their p-values.

    A p-value is of a one-sided t-test that the mean is not below 0. Accuracies, where less is worse, have none.
    Empty without a baseline. Raises InputError for a baseline with other runs.
    """
    if config.baseline is None:
        return []
    apart = drawn_curves.differences(made, config.baseline)
    found = []
    for curve in apart:
        place = Place(
            figure, f"{config.metric}, difference from {config.baseline}", curve.label, panel_name(curve.panel)
        )
        found.append(mean_of(place, config.metric, curve.ends))
    for curve in apart if config.metric != "accuracy" else ():
        if (p := below_zero(curve.ends)) is not None:
            place = Place(figure, f"p of no less than {config.baseline}", curve.label, panel_name(curve.panel))
            found.append(Measured(place, f"{p:.2g}", trials=len(curve.ends)))
    return found
