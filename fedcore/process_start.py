"""First steps of every process of this project."""

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
    """Makes new files private, drops the working folder from imports, sets a crash's exit code.

    An uncaught exception ends the process with a traceback on standard error and the exit code `UNFORESEEN`.
    """
    write_privately()
    keep_working_folder_out()
    sys.excepthook = _end


def _end(kind: type[BaseException], error: BaseException, at: TracebackType | None) -> None:
    """Exits with `UNFORESEEN`, not Python's 1; KeyboardInterrupt and SystemExit end as before."""
    sys.__excepthook__(kind, error, at)
    if issubclass(kind, Exception):
        with suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(UNFORESEEN)
