"""Runs and sweeps that nobody drives, held while what is said of them changes, and how they ended."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from fedcore.errors import InputError
from fedcore.home import Home
from flows.locks.run_lock import Kind, store_path, unless_driven
from flows.sweep_files import load_saved, progress
from tasks.run_file import read_meta
from tasks.tracking_writer import Status


@contextmanager
def left_behind(home: Home, name: str, kind: Kind) -> Iterator[Status | None]:
    """How a run or sweep ended, which is held for the block; None if somebody has it, or it is none of ours.

    FINISHED and FAILED as its checkpoint says, for a sweep FINISHED once all of its cells are; else KILLED.
    """
    with unless_driven(home, name, kind) as held:
        if not held:
            yield None
        else:
            yield _sweep_ended(home, name) if kind == "sweep" else _run_ended(home, name)


def _run_ended(home: Home, run: str) -> Status:
    state = read_meta(store_path(home, run)).get("state")
    return "FINISHED" if state == "FINISHED" else "FAILED" if state == "FAILED" else "KILLED"


def _sweep_ended(home: Home, sweep: str) -> Status:
    with suppress(InputError):
        done, most, _ = progress(home, load_saved(home, sweep))
        return "FINISHED" if done == most else "KILLED"
    return "KILLED"
