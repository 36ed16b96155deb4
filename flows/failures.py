"""Unexpected exceptions: a log for its owner only, one sentence for the user, and an exit code.

Python's own exit code for an uncaught exception is 1, which would mean that an audit alarmed.
"""

from __future__ import annotations

import errno
import os
import platform
import re
import sys
import tempfile
import traceback
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from fedcore import __version__
from fedcore.home import Home
from fedcore.process.private_files import make_private

CUT_OFF = 141
"""Exit code of a command whose reader is gone, as of any program: 128 plus the number of SIGPIPE."""
MOST_LOGS = 50
"""Logs in a home; the oldest are deleted."""

_SECRET = re.compile(r"(token|secret|passw|passphrase|credential|auth|key)", re.IGNORECASE)
_IN_ADDRESS = re.compile(r"(?<=://)[^/@\s]+(?=@)")


def unforeseen(error: BaseException) -> str:
    """Writes an unexpected exception to a log, and returns a sentence that names the log."""
    name, path = type(error).__name__, _logged(error)
    where = "no log could be written" if path is None else f"its traceback is in {path}"
    return f"fedcore {__version__} failed with an unexpected error ({name}); {where}"


def _logged(error: BaseException) -> Path | None:
    """Writes an exception to a log in the home, else to a temporary file; None if both fail."""
    text = (
        f"fedcore {__version__}, Python {platform.python_version()}, {platform.platform()}\n"
        f"{datetime.now(UTC).isoformat(timespec='seconds')}\n"
        f"command: {' '.join(map(repr, without_secrets(sys.argv)))}\n"
        f"folder: {_working_folder()!r}\n\n" + _IN_ADDRESS.sub("***", "".join(traceback.format_exception(error)))
    ).encode("utf-8", "backslashreplace")
    name = f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{os.getpid()}"
    with suppress(OSError, ValueError, RuntimeError):
        folder = Home.current().failures
        make_private(folder)
        for old in sorted(folder.glob("*.log"))[: -(MOST_LOGS - 1)]:
            old.unlink(missing_ok=True)
        path = folder / f"{name}.log"
        return _written(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), path, text)
    with suppress(OSError):
        descriptor, temporary = tempfile.mkstemp(prefix=f"fedcore-{name}-", suffix=".log")
        return _written(descriptor, Path(temporary), text)
    return None


def _written(descriptor: int, path: Path, text: bytes) -> Path:
    """Writes the text and returns the path. Raises OSError, and then leaves no file."""
    try:
        with open(descriptor, "wb") as file:
            file.write(text)
    except OSError:
        with suppress(OSError):
            path.unlink()
        raise
    return path


def _working_folder() -> str:
    try:
        return os.getcwd()
    except OSError:
        return "removed"


def without_secrets(arguments: list[str]) -> list[str]:
    """A command's arguments with *** for values of names such as token, and passwords in addresses."""
    shown, hide = [], False
    for each in arguments:
        name, equals, _ = each.partition("=")
        if hide and not each.startswith("-"):
            shown.append("***")
        elif equals and _SECRET.search(name):
            shown.append(f"{name}=***")
        else:
            shown.append(_IN_ADDRESS.sub("***", each))
        hide = not equals and each.startswith("--") and _SECRET.search(each) is not None
    return shown


def cut_off(error: BaseException | None) -> bool:
    """True if the error or one of its contexts is EPIPE: the reader is gone. Typer and rich turn EPIPE into an exit."""
    while error is not None:
        if isinstance(error, OSError) and error.errno == errno.EPIPE:
            return True
        error = error.__context__
    return False


def full(error: BaseException) -> OSError | None:
    """The error, if it is a full device without a file's name, thus an output's; else None."""
    if isinstance(error, OSError) and error.filename is None and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return error
    return None


def output_fails() -> OSError | None:
    """The error of flushing standard output, for instance a full device; None without one.

    After an error, standard output goes to the null device: Python would flush it once more at exit.
    """
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as error:
        with suppress(OSError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, sys.stdout.fileno())
            os.close(nowhere)
        return error
    return None
