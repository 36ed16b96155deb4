"""Epsilon of each silo in a `fedcore budget export`, read from stdin, computed by dp-accounting alone."""

import json
import sys
from collections import Counter
from itertools import product

from dp_accounting import GaussianDpEvent, NeighboringRelation, PoissonSampledDpEvent
from dp_accounting.pld import PLDAccountant


def event(z, sampling, rate):
    gaussian = GaussianDpEvent(2 * z)
    return {"full": gaussian, "poisson": PoissonSampledDpEvent(rate, gaussian)}[sampling]


for silo in json.load(sys.stdin):
    deltas, runs = [1.0], []
    for run in silo["runs"]:
        deltas.append(run["charge"]["delta"])
        touching = {r["start"]: Counter() for r in run["releases"]}  # some shard begins at a worst position
        for start, events in touching.items():
            for r in run["releases"]:
                if r["start"] <= start < r["stop"]:
                    events[r["sigma"] / r["sensitivity"], r["sampling"], r["rate"]] += r["count"]
        places = list({frozenset(events.items()) for events in touching.values()}) or [frozenset()]
        if all(sampling == "full" for place in places for (_, sampling, _), _ in place):
            places = [max(places, key=lambda place: sum(count / z**2 for (z, _, _), count in place))]
        runs.append(places)
    largest = 0.0
    for choice in product(*runs):  # each run has its own split, so any place may share a record with another run's
        accountant = PLDAccountant(NeighboringRelation.REPLACE_ONE)
        for place in choice:
            for kind, count in place:
                accountant.compose(event(*kind), count)
        largest = max(largest, accountant.get_epsilon(min(deltas)))
    print(silo["silo"], largest)
