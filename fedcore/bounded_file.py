"""Reads files that should be small and may be forged: a read stops at a bound of bytes."""

from __future__ import annotations

import errno
from pathlib import Path

from fedcore.limits import LARGEST_TEXT


def read_within(path: Path, most: int = LARGEST_TEXT) -> bytes:
    """All bytes of a file. Raises OSError if it is unreadable or longer than `most` (EFBIG)."""
    with open(path, "rb") as file:
        found = file.read(most + 1)
    if len(found) > most:
        raise OSError(errno.EFBIG, f"more than {most} bytes", str(path))
    return found
