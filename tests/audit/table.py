"""Table of an audit's power: planted bugs, the instruments that find them, and false alarms."""

from __future__ import annotations

import multiprocessing
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import groupby

import numpy as np

from fedcore.audit.bench import Bench
from fedcore.audit.suite import INSTRUMENTS, look
from tests.audit import planted_noise, planted_outcomes, planted_samples, planted_sums
from tests.audit.audited_silos import KINDS, PLANNED
from tests.audit.foreign_bugs import FOREIGN
from tests.audit.planted import Planted

CLEAN = {f"clean: {kind}": Planted(kind) for kind in (*KINDS, *PLANNED)}
NAMED = {**planted_noise.NAMED, **planted_samples.NAMED, **planted_outcomes.NAMED}
OLD = {**planted_noise.OLD, **planted_sums.OLD, **planted_samples.OLD}
OWN = {**planted_noise.OWN, **planted_sums.OWN, **planted_samples.OWN}
BLIND = {f"blind: {name}": Planted(f"plan of {name}", opener) for name, opener in FOREIGN.items()}
"""Bugs planted by authors who have not read the audit."""
ALL = {**CLEAN, **OLD, **NAMED, **BLIND, **OWN}


def alarms(name: str, seed: int) -> list[str]:
    """The instruments that alarm in a whole audit of silos with this bug."""
    bug = ALL[name]
    with bug.audited(seed) as audited:
        bench = Bench(audited, np.random.default_rng(seed), bug.ledger)
        return [instrument.name for instrument in INSTRUMENTS if not look(instrument, bench).passed]


def _job(job: tuple[str, int]) -> list[str]:
    return alarms(*job)


def counted(names: Iterable[str], seeds: range, pool) -> Iterator[tuple[str, Counter]]:
    """Yields each bug with the number of seeds in which each instrument, and `any`, alarms.

    Rows come as they are complete.
    """
    jobs = [(name, seed) for name in names for seed in seeds]
    by_name = groupby(zip(jobs, pool.imap(_job, jobs), strict=True), key=lambda done: done[0][0])
    for name, alarmed in by_name:
        found: Counter = Counter()
        for _, instruments in alarmed:
            found.update([*instruments, *(["any"] if instruments else [])])
        yield name, found


def pool():
    """A process for each core, eight at most: a container may show all cores of its host."""
    return multiprocessing.get_context("fork").Pool(min(os.cpu_count() or 1, 8))


def row(name: str, found: Counter, seeds: range) -> str:
    """A line of the table: bug, any instrument, and each one that found it in more than a tenth of seeds."""
    by = ", ".join(f"{key} {many}" for key, many in found.most_common() if key != "any" and 10 * many > len(seeds))
    return f"| {name} | {found['any']} | {by or '-'} |"
