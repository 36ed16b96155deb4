"""`up` looks for free ports, and its services take them seconds later: two tests at once would be given the same."""

import contextlib
import getpass
import tempfile
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock

from tests.patience import HANGS


@contextlib.contextmanager
def ports_to_oneself() -> Iterator[None]:
    """One test of this machine at a time, until what it starts has its ports."""
    with FileLock(Path(tempfile.gettempdir()) / f"fedcore-tests-{getpass.getuser()}.lock", timeout=3 * HANGS):
        yield
