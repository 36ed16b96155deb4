"""Silos so small that 1/n^2, a delta that is chosen by nobody, is no small number: 1/16 of 4 records.

With probability delta a mechanism that keeps to its guarantee may publish a record in full.
"""

from __future__ import annotations

from collections.abc import Mapping

from fedcore.directed_rounding import shown_up

LARGE = 1e-3
"""Of deltas those above are worth a warning: those of 31 records and fewer."""
LARGEST = 0.05
"""Above it 1/n^2 is refused, and only a number says so: of 4 records and fewer."""


def refusal(delta: float | str | None, n: int, key: str, unit: str = "records") -> str | None:
    """Why a delta is not taken that is 1/n^2 of so few records, after a name; None for a number,
    and where it is small."""
    if not (delta is None or isinstance(delta, str)) or 1.0 / n**2 <= LARGEST:
        return None
    return (
        f"{key} = 1/n^2 is {shown_up(1.0 / n**2, 3)} for {n} {unit}, above {LARGEST:g}: with that probability a "
        f"record may be published in full. Write {key} as a number below 1/n = {1 / n:.3g} if that is meant, or join "
        "silos"
    )


def warning(sizes: Mapping[str, int], fixed: float | None, unit: str, key: str = "privacy.delta") -> str | None:
    """That the delta of some silos is large, in a sentence about the smallest; None if none is.

    `sizes`: numbers of records by silo. `key`: what sets it.
    """
    deltas = [(1.0 / n**2 if fixed is None else fixed, -n, name) for name, n in sizes.items()]
    large = sum(delta > LARGE for delta, _, _ in deltas)
    if not large:
        return None
    delta, n, name = max(deltas)
    how = "1/n^2" if fixed is None else key
    return (
        f"delta is above {LARGE:g} at {large} of {len(sizes)} silos, up to {shown_up(delta, 3)} ({how} at {name}, of "
        f"{-n} {unit}): with that probability a record may be published in full. Take a smaller {key}, or join "
        "silos"
    )
