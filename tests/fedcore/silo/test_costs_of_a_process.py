"""A site's whole process, not only Python's heap, grows by less than `AN_AGREEMENT` for every agreement.

Each method's counts are driven in a child whose memory limit is its memory with an open site plus `AN_AGREEMENT`. More
memory ends in a MemoryError, whose sentence no refusal has.
"""

import ctypes
import gc
import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fedcore.errors import SiloError
from fedcore.limits import AN_AGREEMENT, LARGEST_AGREEMENT, MOST_SILOS
from tests.fedcore.silo.test_costs import COUNTS, EDGES, of, site

ROOT = Path(__file__).parents[3]
PROBLEMS = "sizes of problems"
BOUNDED = "an array of the bound has no room"
SLACK = 2**20
"""Bytes above the bound of the array that has no room: the top of the allocator's heap may have some."""
METHODS = sorted({name for name, _ in COUNTS})


def problems():
    """Bytes of agreements with ever larger numbers in their problem."""
    fitting = (LARGEST_AGREEMENT - 1000) // 30
    for dim in (2**26, 2**26 + 1, 2**53):
        yield with_problem(dim=dim)
    for many in (1000, MOST_SILOS, MOST_SILOS + 1, fitting):
        for participants in (1, many):
            silos = [{"n": 40, "name": name} for name in ("ash", "birch", *(f"s{at}" for at in range(many - 2)))]
            yield with_problem(silos=silos, participants=participants)
    for n in (2**39, 2**40, 2**53):
        yield with_problem(silos=[{"n": n, "name": "ash"}, {"n": 40, "name": "birch"}])


def with_problem(**values):
    head = json.loads(of("mbsgd", {"rounds": 3}))
    head[2].update(values)
    return json.dumps(head, sort_keys=True, separators=(",", ":")).encode()


def address_space():
    """Bytes of this process, without those that its allocator only keeps."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/statm") as found:
        return int(found.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")


def main(name):
    here = site(guarded=True)
    asked = (
        list(problems())
        if name == PROBLEMS
        else [of(name, {field: value}) for method, field in COUNTS if method == name for value in EDGES]
    )
    limit = address_space() + AN_AGREEMENT
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
    for data in asked:
        try:
            here.approve(data)
            print("approved", flush=True)
        except SiloError as error:
            print(error.sentence, flush=True)
    try:
        np.ones((limit - address_space() + SLACK) // 8)
    except MemoryError:
        print(BOUNDED, flush=True)


def said_by(name):
    done = subprocess.run(
        [sys.executable, "-m", __name__, name],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=3600,
    )
    assert done.returncode == 0, (done.stdout[-2000:], done.stderr[-2000:])
    return done.stdout.splitlines()


SEARCHED = {"accelerated-mbsgd", "diff2", "diff2-bvr", "fedavg", "fedprox", "fedsgd"}
"""Those whose plans take a minute of accounting."""
CASES = [pytest.param(name, marks=[pytest.mark.hours] if name in SEARCHED else []) for name in (PROBLEMS, *METHODS)]


@pytest.mark.minutes
@pytest.mark.parametrize("name", CASES)
def test_no_number_of_an_agreement_costs_a_process_more_than_its_bound(name):
    *messages, last = said_by(name)
    assert last == BOUNDED
    assert len(messages) >= len(EDGES) and len(set(messages)) > 1
    for sentence in messages:
        assert "see the log" not in sentence and "memory" not in sentence.lower(), sentence


if __name__ == "__main__":
    main(sys.argv[1])
