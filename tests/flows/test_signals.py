"""Signals of a driver: each ends its work, also one that arrives where Python drops exceptions."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.patience import HANGS

STOPPED = """
import os, signal, sys, time, weakref
from flows.driver.signals import Stopped, stopped_by, stoppable

class Finalized:
    def __del__(self):
        os.kill(os.getpid(), getattr(signal, sys.argv[1]))

def called(*_):
    os.kill(os.getpid(), getattr(signal, sys.argv[1]))

class Made:
    pass

def dead_reference():
    made = Made()
    reference = weakref.ref(made, called)
    del made

signal.signal(signal.SIGINT, signal.default_int_handler)
places = {
    "code": called,
    "a finalizer": lambda: Finalized() and None,
    "a callback of a weak reference": dead_reference,
}
try:
    with stoppable():
        places[sys.argv[2]]()
        for _ in range(600):
            time.sleep(0.1)
    print("went on")
except Stopped as stopped:
    print(stopped, stopped_by())
"""


@pytest.mark.slow
@pytest.mark.parametrize(("name", "shown"), [("SIGTERM", "SIGTERM"), ("SIGINT", "Ctrl-C")])
@pytest.mark.parametrize("place", ["code", "a finalizer", "a callback of a weak reference"])
def test_a_signal_stops_the_driver_wherever_it_arrives(name, shown, place):
    command = [sys.executable, "-c", STOPPED, name, place]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANGS, check=False)
    assert done.stdout.split() == [shown, shown], (done.stdout, done.stderr)
