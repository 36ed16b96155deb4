"""Refusal and warning for silos whose default delta 1/n^2 is large, such as 1/16 for 4 records.

With probability delta a mechanism that meets its guarantee may publish a record in full.
"""

from __future__ import annotations

from collections.abc import Mapping

from fedcore.directed_rounding import shown_up

LARGE = 1e-3
"""Largest delta without a warning; 1/n^2 exceeds it for 31 records and fewer."""
LARGEST = 0.05
"""Largest 1/n^2 taken as a default; 4 records and fewer need a delta that is written as a number."""


def refusal(delta: float | str | None, n: int, key: str, unit: str = "records") -> str | None:
    """The end of a sentence that refuses delta = 1/n^2 of few records; None if delta is acceptable.

    A written number and a small 1/n^2 are acceptable.
    """
    if not (delta is None or isinstance(delta, str)) or 1.0 / n**2 <= LARGEST:
        return None
    return (
        f"{key} = 1/n^2 is {shown_up(1.0 / n**2, 3)} for {n} {unit}, above {LARGEST:g}: with that probability a "
        f"record may be published in full. Write {key} as a number below 1/n = {1 / n:.3g} if that is meant, or join "
        "silos"
    )


def warning(sizes: Mapping[str, int], fixed: float | None, unit: str, key: str = "privacy.delta") -> str | None:
    """A sentence about the silos with a large delta and the worst of them; None if there are none.

    `sizes`: numbers of records by silo. `key`: the configuration key of delta.
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
