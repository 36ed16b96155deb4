"""What every process of this project does first."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from types import TracebackType

from fedcore.process.import_path import keep_working_folder_out
from fedcore.process.private_files import write_privately

UNFORESEEN = 70
"""Exit code of a process that an uncaught exception ended: EX_SOFTWARE of <sysexits.h>."""


def begin() -> None:
    """The process writes privately from now on, imports nothing from its working folder, and ends with `UNFORESEEN` and
    a traceback on standard error if nobody catches an exception."""
    write_privately()
    keep_working_folder_out()
    sys.excepthook = _end


def _end(kind: type[BaseException], error: BaseException, at: TracebackType | None) -> None:
    """Python's own exit code would be 1. Whatever ends a service in order ends it as before."""
    sys.__excepthook__(kind, error, at)
    if issubclass(kind, Exception):
        with suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(UNFORESEEN)
