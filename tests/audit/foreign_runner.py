"""Audits every bug of `tests/audit/foreign/` in its own process; prints what found it, and times.

.venv/bin/python -m tests.audit.foreign_runner [--seed N] [NAME ...]
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

import numpy as np

from fedcore.audit.bench import Bench
from fedcore.audit.suite import INSTRUMENTS, look
from tests.audit.audited_silos import KINDS, PLANNED
from tests.audit.bug import Bug


@dataclass(frozen=True)
class Outcome:
    """Result of one audit: the instruments that alarmed; `error`: an exception, which is no alarm."""

    bug: Bug
    alarmed: tuple[str, ...]
    error: str
    seconds: float

    @property
    def line(self) -> str:
        verdict = "found " if self.alarmed else ("ERROR " if self.error else "MISSED")
        by = ", ".join(self.alarmed) or self.error or self.bug.breaks
        return f"{verdict} {self.seconds:5.1f} s  {self.bug.name}  [{self.bug.kind}]  {by}"


def collected() -> list[Bug]:
    """All bugs of the package, by module. Raises ValueError for a repeated name and for an unknown kind."""
    folder = Path(__file__).parent / "foreign"
    modules = sorted(found.name for found in iter_modules([str(folder)]))
    bugs = [bug for name in modules for bug in import_module(f"tests.audit.foreign.{name}").BUGS]
    twice = [name for name, times in Counter(bug.name for bug in bugs).items() if times > 1]
    unknown = sorted({bug.kind for bug in bugs} - {*KINDS, *PLANNED})
    if twice or unknown:
        raise ValueError(f"bugs of one name: {twice}; unknown kinds of plans: {unknown}")
    return bugs


def audited(job: tuple[Bug, int]) -> Outcome:
    """Runs a whole audit with this bug planted, in this process."""
    bug, seed = job
    chosen = {} if bug.opener is None else {"opener": bug.opener}
    began, alarmed, error = time.perf_counter(), [], ""
    with ExitStack() as planted:
        try:
            planted.enter_context(bug.plant())
            made = {**KINDS, **PLANNED}[bug.kind](seed, **chosen)
            # Each kind of answer of the plan is audited by itself, as the command does it.
            for kind in made.kinds if len(made.kinds) > 1 else (made.kind,):
                bench = Bench(replace(made, kind=kind), np.random.default_rng(seed), audits=max(1, len(made.kinds)))
                found = [each.name for each in INSTRUMENTS if not look(each, bench).passed]
                alarmed += [name for name in found if name not in alarmed]
        except Exception as raised:  # the bug's own failure is reported and is no alarm
            error = f"{type(raised).__name__}: {raised}"[:200]
    return Outcome(bug, tuple(alarmed), error, time.perf_counter() - began)


def _audit_at(job: tuple[int, int]) -> tuple[int, tuple[str, ...], str, float]:
    at, seed = job
    done = audited((collected()[at], seed))
    return at, done.alarmed, done.error, done.seconds


def outcomes(bugs: Sequence[Bug], seed: int, processes: int = 1) -> Iterator[Outcome]:
    """Yields the outcomes in order, each from a process without the caches of other bugs."""
    place = {bug.name: at for at, bug in enumerate(collected())}
    with multiprocessing.get_context("fork").Pool(processes, maxtasksperchild=1) as pool:
        jobs = [(place[bug.name], seed) for bug in bugs]
        for bug, (_, alarmed, error, seconds) in zip(bugs, pool.imap(_audit_at, jobs, chunksize=1), strict=True):
            yield Outcome(bug, alarmed, error, seconds)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="tests.audit.foreign_runner")
    parser.add_argument("names", nargs="*", help="parts of names; default: all bugs")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=1)
    given = parser.parse_args(arguments)
    bugs = [bug for bug in collected() if not given.names or any(part in bug.name for part in given.names)]
    done = []
    for outcome in outcomes(bugs, given.seed, given.processes):
        print(outcome.line, flush=True)
        done.append(outcome)
    found = sum(bool(outcome.alarmed) for outcome in done)
    print(f"found {found} of {len(done)}, {sum(outcome.seconds for outcome in done):.0f} s")
    return 0 if found == len(done) else 1


if __name__ == "__main__":
    sys.exit(main())
