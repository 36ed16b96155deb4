"""How many files this process may have open: raised before many are, up to what its operator allows."""

from __future__ import annotations

import errno
import os
import resource

RESERVE = 128
"""Files besides, for sockets, logs, the files of data and what is read in between."""


def make_room(more: int) -> tuple[int, int] | None:
    """Lets this process open so many files more, by its soft limit (`ulimit -n`); None where they fit.

    Else what is needed and the hard limit, which only its operator can raise.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = _open_now() + more + RESERVE
    if soft == resource.RLIM_INFINITY or needed <= soft:
        return None
    if hard != resource.RLIM_INFINITY and needed > hard:
        return needed, hard
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
    except (OSError, ValueError):  # a system may allow less than its hard limit says
        return needed, soft
    return None


def none_left() -> bool:
    """Whether this process cannot open a file now, whichever it is."""
    try:
        os.close(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        return error.errno in (errno.EMFILE, errno.ENFILE)
    return False


def _open_now() -> int:
    for folder in ("/proc/self/fd", "/dev/fd"):
        try:
            return len(os.listdir(folder))
        except OSError:
            continue
    return RESERVE
