"""The queue before MLflow: its reports of entries that were not written in time."""

import threading

from tasks.tracking.write_queue import WriteQueue
from tests.patience import HANGS


def test_entries_that_only_take_too_long_are_told_as_well():
    """On a machine with more work than cores: no error, and still not all is there when the driver has to end."""
    go = threading.Event()
    writer = WriteQueue(lambda rows: None, lambda error: True, lambda: None)
    writer.put(lambda: go.wait(HANGS))
    assert not writer.close(0.05)
    assert writer.problem == "1 entries wait to be written to MLflow (no error, only slow)"
    go.set()
