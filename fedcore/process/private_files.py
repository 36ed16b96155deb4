"""Files that only their owner reads: new files of a process, and a folder that was open to others.

A process of ours (a command, a service, a worker) calls `write_privately` at its start. An importer of this package as
a library keeps its own umask.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

OTHERS = 0o077
"""Permission bits of group and others."""

_umask: int | None = None


def write_privately() -> None:
    """Makes new files and folders of this process and its children readable by their owner only."""
    global _umask
    before = os.umask(OTHERS)
    if _umask is None:
        _umask = before


def give_back(path: Path) -> None:
    """Sets the permissions of the user's own umask on a file that the user named and this process made."""
    if _umask is not None:
        with suppress(OSError):  # a file system without permissions
            path.chmod((0o777 if path.is_dir() else 0o666) & ~_umask)


def read_private(path: Path, most: int, links: bool = False) -> bytes | None:
    """The first `most` bytes of a file that only this account may open; None for any other file.

    `links`: the path may be a link to the file. Raises OSError.
    """
    wanted = os.O_RDONLY | os.O_NONBLOCK | (0 if links else os.O_NOFOLLOW)  # a pipe would block
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
    """Removes group and others from a folder of this process's own account, and from all in it.

    Returns True if the folder was open to them.
    """
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
