"""Limit of open files of this process, raised before many are opened, up to the operator's limit."""

from __future__ import annotations

import errno
import os
import resource

RESERVE = 128
"""Further files, for sockets, logs, data and modules."""


def make_room(more: int) -> tuple[int, int] | None:
    """Lets this process open `more` files, by its soft limit (`ulimit -n`); None where they fit.

    Otherwise returns the needed number and the hard limit, which only the operator can raise.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = _open_now() + more + RESERVE
    if soft == resource.RLIM_INFINITY or needed <= soft:
        return None
    if hard != resource.RLIM_INFINITY and needed > hard:
        return needed, hard
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
    except (OSError, ValueError):  # a system may allow less than its hard limit
        return needed, soft
    return None


def none_left() -> bool:
    """True if this process cannot open any file now."""
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
