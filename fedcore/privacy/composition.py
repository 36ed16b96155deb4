"""What a list of events costs a silo: in sequence where records overlap, in parallel where they do not."""

from __future__ import annotations

import math
from collections.abc import Iterable

from fedcore.privacy.events import GaussianRelease
from fedcore.privacy.gaussian import epsilon_of


def worst_mu_squared(events: Iterable[GaussianRelease]) -> float:
    """Largest, over a silo's positions, of the sum of squared mu of the events that touch the position.

    One record sits at one position, so replacing it changes only the events that touch it; the Gaussian answers among
    them compose to sum mu^2 (lossless), and the guarantee of the silo is that of its worst position.
    Source: Dong, Roth and Su 2022, Corollary 3.3; parallel composition over pieces fixed by row index only.
    Raises ValueError for an event that this accountant does not know.
    """
    changes: dict[int, list[float]] = {}
    for event in events:
        known = (event.mechanism, event.adjacency, event.sampling) == ("gaussian", "replace-one", "full")
        sound = event.stop > event.start and event.count >= 1 and 0 < event.sensitivity < math.inf
        if not (known and sound):
            raise ValueError(f"no sound accountant is known here for the event {event}")
        changes.setdefault(event.start, []).append(event.gdp_mu_squared)
        changes.setdefault(event.stop, []).append(-event.gdp_mu_squared)
    if any(math.isinf(change) for at in changes.values() for change in at):
        return math.inf
    # fsum over the open intervals anew at each border: no drift from adding and taking away.
    worst, so_far = 0.0, []
    for border in sorted(changes):
        so_far.extend(changes[border])
        worst = max(worst, math.fsum(so_far))
    return worst


def spent(events: Iterable[GaussianRelease], delta: float) -> float:
    """Smallest epsilon at `delta` of all events of one run at one silo together; infinite if one had no noise."""
    return epsilon_of(math.sqrt(worst_mu_squared(events)), delta)
