"""Signals of a driver: each ends its work, also one that arrives where Python drops exceptions."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from uuid import uuid4

import pytest

from fedcore.home import Home
from flows import flow_runs
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


@pytest.mark.parametrize("stopping", [False, True])
def test_a_process_that_stops_is_not_ended_by_its_own_cancelled_state(stopping, tmp_path, monkeypatch):
    """It writes the state while another thread looks for it; a SIGTERM then would end it in its last steps."""
    import httpx

    looked, written, sent = threading.Event(), threading.Event(), []

    class Page:
        def json(self):
            looked.set()
            assert written.wait(HANGS)
            return {"state_type": "CANCELLED"}

    monkeypatch.setenv("FEDCORE_HOME", str(Home(tmp_path / "home").make().root))
    monkeypatch.setattr(flow_runs, "LOOK", 0.01)
    monkeypatch.setattr(flow_runs, "authorization", lambda *_: "")
    monkeypatch.setattr(httpx, "get", lambda *_, **__: Page())
    monkeypatch.setattr(os, "kill", lambda _, number: sent.append(number))
    with flow_runs._cancellable(uuid4()) as ended:
        assert looked.wait(HANGS)
        if stopping:
            ended.set()
        written.set()
        (look,) = [thread for thread in threading.enumerate() if thread.name == "fedcore-cancel"]
        look.join(HANGS)
    assert bool(sent) != stopping
