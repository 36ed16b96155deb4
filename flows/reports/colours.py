"""Colours of methods, the same in every plot, and marks that distinguish one method's settings.

The ten colours were searched for the largest least distance in CIELAB, 18, in normal sight and in simulated protanopia,
deuteranopia and tritanopia. All have a contrast of at least 2.1 to white.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

METHODS = {
    "mbsgd": "#006CD1",
    "accelerated-mbsgd": "#33BBEE",
    "one-pass-mbsgd": "#332288",
    "localized-mbsgd": "#CC3311",
    "localized-accelerated": "#EE6677",
    "fedavg": "#E69F00",
    "scaffold": "#800000",
    "diff2": "#7570B3",
    "noised-newton": "#004D40",
    "dp-fcrn": "#AA3377",
}
FOLLOWING = ("#CC79A7", "#228833", "#6A3D9A", "#999933", "#1B9E77", "#D95F02")
"""Colours of other methods, in their order in a plot; a seventh begins anew."""

MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
DASHES = ("-", "--", "-.")


def method_of(label: str) -> str:
    """Method of a curve, from a label such as `DP-mbsgd, period 6`."""
    return label.split(", ", 1)[0].removeprefix("DP-")


def colours(labels: Iterable[str]) -> dict[str, str]:
    """Colour of each label, by its method."""
    labels = list(labels)
    others = [method for method in dict.fromkeys(map(method_of, labels)) if method not in METHODS]
    following = {method: FOLLOWING[number % len(FOLLOWING)] for number, method in enumerate(others)}
    return {label: (METHODS | following)[method_of(label)] for label in labels}


def marks(labels: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Marker and dashes of each label: by its place among the labels of the same method."""
    found: dict[str, tuple[str, str]] = {}
    seen: dict[str, int] = {}
    for label in dict.fromkeys(labels):
        number = seen[method_of(label)] = seen.get(method_of(label), -1) + 1
        found[label] = MARKERS[number % len(MARKERS)], DASHES[number % len(DASHES)]
    return found
