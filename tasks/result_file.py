"""Atomic writing of result files, and their indented JSON."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import Any

from fedcore.arrays import plain_json
from fedcore.errors import InputError


def write_atomically(path: Path, data: bytes) -> None:
    """Replaces the file by `data` or leaves it as it is: temporary file, fsync, rename, fsync of the folder."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{time.monotonic_ns()}")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise InputError(f"file {path} cannot be written: {error.strerror}") from error
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def jsonable(value: Any) -> bytes:
    """Indented JSON with a newline at the end, NaN and infinities as `json` writes them."""
    return plain_json(value, indent=2) + b"\n"
