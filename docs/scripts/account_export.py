"""What each silo of `fedcore budget export` has spent, by dp-accounting alone: reads the export, prints epsilon."""

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
        touching = {r["start"]: Counter() for r in run["releases"]}  # a worst position is where some shard begins
        for start, events in touching.items():
            for r in run["releases"]:
                if r["start"] <= start < r["stop"]:
                    events[r["sigma"] / r["sensitivity"], r["sampling"], r["rate"]] += r["count"]
        places = list({frozenset(events.items()) for events in touching.values()}) or [frozenset()]
        if all(sampling == "full" for place in places for (_, sampling, _), _ in place):
            places = [max(places, key=lambda place: sum(count / z**2 for (z, _, _), count in place))]
        runs.append(places)
    largest = 0.0
    for choice in product(*runs):  # each run splits the records anew: any of its places may share a record with others'
        accountant = PLDAccountant(NeighboringRelation.REPLACE_ONE)
        for place in choice:
            for kind, count in place:
                accountant.compose(event(*kind), count)
        largest = max(largest, accountant.get_epsilon(min(deltas)))
    print(silo["silo"], largest)
