"""Scales of a figure's panels: places along the axis of a key, and the range of a measure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from extension.curves import DIFFERENCE, NO_NOISE, Curve

TICKS = ((1.0, (1.0, 1.5, 2.0, 3.0, 5.0, 7.0)), (1.5, (1.0, 2.0, 5.0)), (2.5, (1.0, 3.0)))
"""Digits with a tick on a logarithmic axis of less than so many decades."""
FAR = 6
"""Means this many interquartile ranges above the upper quartile are beyond a linear axis, written at its end."""


def positions(places: Sequence[str]) -> dict[str, float]:
    """Coordinates of places, ascending: powers of two if all numbers are above 0, `none` apart at the end."""
    numbers = sorted((place for place in places if place != NO_NOISE), key=float)
    if all(float(place) > 0 for place in numbers):
        found = {place: math.log2(float(place)) for place in numbers}
    else:
        found = {place: float(number) for number, place in enumerate(numbers)}
    if NO_NOISE in places:
        at = list(found.values())
        step = (at[-1] - at[0]) / (len(at) - 1) if len(at) > 1 else 1.0
        found[NO_NOISE] = (at[-1] if at else 0.0) + 1.3 * step
    return found


def fit(panels: Sequence[Any], block: Sequence[Curve], measure: str) -> None:
    """One range for all panels: logarithmic for losses above 0; for differences with the zero line."""
    difference = DIFFERENCE.match(measure) is not None
    values = [value for curve in block for value in curve.values.values()]
    if "loss" in measure and not difference and min(values) > 0:
        _logarithmic(panels, block)
        return
    quartiles = statistics.quantiles(values, method="inclusive") if len(values) > 1 else [values[0]] * 3
    fence = quartiles[2] + FAR * (quartiles[2] - quartiles[0])
    ends = [
        curve.values[place] + sign * curve.spreads.get(place, 0.0)
        for curve in block
        for place in curve.values
        for sign in (-1, 1)
        if difference or curve.values[place] <= fence
    ] + [0.0] * difference
    low, high = min(ends), max(ends)
    for panel in panels:
        panel.set_ylim(low - 0.06 * (high - low), high + 0.06 * (high - low))


def _logarithmic(panels: Sequence[Any], block: Sequence[Curve]) -> None:
    """A logarithmic range. It ends at half of a mean whose spread reaches 0."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    spreads = [(value, curve.spreads.get(place, 0.0)) for curve in block for place, value in curve.values.items()]
    low = min(value - spread if value > spread else value / 2 for value, spread in spreads)
    high = max(value + spread for value, spread in spreads)
    decades = math.log10(high / low)
    subs = next((subs for most, subs in TICKS if decades < most), (1.0,))
    for panel in panels:
        panel.set_yscale("log")
        panel.yaxis.set_major_locator(LogLocator(subs=subs))
        panel.yaxis.set_minor_locator(NullLocator())
        panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        panel.set_ylim(low * 10 ** (-0.06 * decades), high * 10 ** (0.06 * decades))


def beyond(panel: Any, curve: Curve, at: Mapping[str, float]) -> None:
    """Writes the means that lie above the panel."""
    high = panel.get_ylim()[1]
    for place, value in curve.values.items():
        if value > high:
            words, style = f"{value:g} \N{RIGHTWARDS ARROW}", {"rotation": 90, "ha": "center", "va": "top"}
            panel.annotate(words, (at[place], 0.98), xycoords=("data", "axes fraction"), fontsize=9, **style)
