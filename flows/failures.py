"""What no code foresaw: kept in a log that only its owner reads, said in one sentence, with an exit code of its own.

An exit code of 1 means that an audit alarmed; Python's own for an uncaught exception is the same number.
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
"""Exit code of a command whose reader went away, as a shell shows it of any program: 128 and the number of SIGPIPE."""
MOST_KEPT = 50
"""Logs in a home; the oldest make room."""

_SECRET = re.compile(r"(token|secret|passw|passphrase|credential|auth|key)", re.IGNORECASE)
_IN_ADDRESS = re.compile(r"(?<=://)[^/@\s]+(?=@)")


def unforeseen(error: BaseException) -> str:
    """The sentence for an exception that nobody foresaw, which names the log that now holds its traceback."""
    name, path = type(error).__name__, _kept(error)
    where = "no log could be written" if path is None else f"its traceback is in {path}"
    return f"fedcore {__version__} failed, and not by a mistake of yours that it knows ({name}); {where}"


def _kept(error: BaseException) -> Path | None:
    """The log of an exception: in the home, else in a temporary file; None if neither can be written."""
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
        for old in sorted(folder.glob("*.log"))[: -(MOST_KEPT - 1)]:
            old.unlink(missing_ok=True)
        path = folder / f"{name}.log"
        return _written(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), path, text)
    with suppress(OSError):
        descriptor, temporary = tempfile.mkstemp(prefix=f"fedcore-{name}-", suffix=".log")
        return _written(descriptor, Path(temporary), text)
    return None


def _written(descriptor: int, path: Path, text: bytes) -> Path:
    """Raises OSError, and leaves no part."""
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
    """A command's arguments with *** for values whose name speaks of a secret, and for passwords in addresses."""
    kept, hide = [], False
    for each in arguments:
        name, equals, _ = each.partition("=")
        if hide and not each.startswith("-"):
            kept.append("***")
        elif equals and _SECRET.search(name):
            kept.append(f"{name}=***")
        else:
            kept.append(_IN_ADDRESS.sub("***", each))
        hide = not equals and each.startswith("--") and _SECRET.search(each) is not None
    return kept


def cut_off(error: BaseException | None) -> bool:
    """Whether it came of a reader that went away: typer and rich make an exit of their own of that."""
    while error is not None:
        if isinstance(error, OSError) and error.errno == errno.EPIPE:
            return True
        error = error.__context__
    return False


def full(error: BaseException) -> OSError | None:
    """The error itself, if it is that of a full device and of no file with a name: then it is an output's."""
    if isinstance(error, OSError) and error.filename is None and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return error
    return None


def output_fails() -> OSError | None:
    """Why standard output cannot be written: on a full device, what is left of it fails again. From then on it goes
    nowhere, or Python would try once more at its end."""
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
