"""What each silo of `fedcore budget export` has spent, by dp-accounting alone: reads the export, prints epsilon."""

import json
import sys
from collections import Counter

from dp_accounting import GaussianDpEvent, NeighboringRelation
from dp_accounting.pld import PLDAccountant

for silo in json.load(sys.stdin):
    accountant, deltas = PLDAccountant(NeighboringRelation.REPLACE_ONE), [1.0]
    for run in silo["runs"]:
        deltas.append(run["charge"]["delta"])
        touching = {r["start"]: Counter() for r in run["releases"]}  # a worst position is where some piece begins
        for start, events in touching.items():
            for r in run["releases"]:
                if r["start"] <= start < r["stop"]:
                    events[r["sigma"] / r["sensitivity"]] += r["count"]
        worst = max(touching.values(), key=lambda events: sum(n / z**2 for z, n in events.items()), default={})
        for z, count in worst.items():
            accountant.compose(GaussianDpEvent(2 * z), count)
    print(silo["silo"], accountant.get_epsilon(min(deltas)))
