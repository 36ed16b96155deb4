"""Files that nobody but their owner reads: what a process of ours writes, and a folder that was made wider before.

A process of ours (a command, a service, a worker) calls `write_privately` at its start; whoever imports this package
as a library keeps the umask that he has.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

OTHERS = 0o077
"""Permission bits of group and others."""

_asked: int | None = None


def write_privately() -> None:
    """Files and folders that this process makes from now on, and its children, are readable by their owner only."""
    global _asked
    before = os.umask(OTHERS)
    if _asked is None:
        _asked = before


def give_back(path: Path) -> None:
    """Gives a file that the user named, and this process made, the permissions that the user's own umask gives."""
    if _asked is not None:
        with suppress(OSError):  # a file system without permissions
            path.chmod((0o777 if path.is_dir() else 0o666) & ~_asked)


def read_private(path: Path, most: int, links: bool = False) -> bytes | None:
    """The first `most` bytes of a file of this account that no other may open; None if it is no such file.

    `links`: whether the path may be a link to it. Raises OSError.
    """
    wanted = os.O_RDONLY | os.O_NONBLOCK | (0 if links else os.O_NOFOLLOW)  # a pipe would be waited for
    with open(os.open(path, wanted), "rb") as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & OTHERS:
            return None
        return file.read(most)


def make_private(folder: Path) -> None:
    """Makes a folder, and those above it that are not there, readable by their owner only. Raises OSError."""
    missing = [place for place in (folder, *folder.parents) if not place.exists()]
    for place in reversed(missing):
        place.mkdir(mode=0o700, exist_ok=True)


def narrowed(root: Path) -> bool:
    """Takes a folder of this process's own account, and all that is in it, from group and others; whether it was open
    to them."""
    try:
        found = root.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or not found.st_mode & OTHERS:
            return False
        root.chmod(stat.S_IMODE(found.st_mode) & ~OTHERS)
    except OSError:
        return False
    for folder, folders, files in os.walk(root):
        for name in (*folders, *files):
            path = os.path.join(folder, name)
            with suppress(OSError):
                mode = os.lstat(path).st_mode
                if not stat.S_ISLNK(mode) and mode & OTHERS:
                    os.chmod(path, stat.S_IMODE(mode) & ~OTHERS)
    return True
