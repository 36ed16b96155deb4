"""Memory of arrays that is kept for the next ones, under glibc.

By itself glibc gives the top of the heap, and every array of 128 KB, back to the system when it goes: in a round of 10
silos of 1,650 records that was a third of the time, and Dask's own setting, for arrays of 64 KB, made 100,000 page
faults in a round of DP-SCAFFOLD at its paper's scale, half of its time.
"""

from __future__ import annotations

import ctypes

_TRIM, _MAPPED = 2**28, 2**24
"""Bytes: free memory at the top of the heap that is kept, and the least array that has a mapping of its own."""
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
"""Of glibc's <malloc.h>."""

KEEP_MEMORY = {"MALLOC_TRIM_THRESHOLD_": str(_TRIM), "MALLOC_MMAP_THRESHOLD_": str(_MAPPED)}
"""Environment of a process that is started; other C libraries do not look at it."""


def keep_memory() -> None:
    """The same for this process. Does nothing where the C library has no such setting."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return
    mallopt(_M_TRIM_THRESHOLD, _TRIM)
    mallopt(_M_MMAP_THRESHOLD, _MAPPED)
