"""The allocator keeps freed memory: page faults of a process that makes and drops arrays all the time."""

import os
import platform
import subprocess
import sys

import pytest

from fedcore.memory import KEEP_MEMORY

CHILD = """
import resource, sys
import numpy as np
from fedcore.memory import keep_memory
if sys.argv[1] == "kept":
    keep_memory()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(100):
    arrays = [np.ones(25_000) for _ in range(12)]
    del arrays
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(way: str, environment: dict[str, str]) -> int:
    plain = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    command = [sys.executable, "-c", CHILD, way]
    done = subprocess.run(command, env=plain | environment, capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="a setting of glibc")
@pytest.mark.parametrize("way, environment", [("kept", {}), ("as it is", KEEP_MEMORY)])
def test_arrays_that_come_and_go_cost_no_page_faults(way, environment):
    # 12 arrays of 49 pages, 100 times: 58,800 faults if all of it is given back each time.
    assert faults(way, environment) < 2_000
    assert faults("as it is", {}) > 20_000
