"""Settings of glibc's allocator by which freed arrays leave their memory to the next ones.

By default glibc returns the top of the heap, and every freed array from 128 KB on, to the system. In a round of 10
silos of 1,650 records that was a third of the time. Dask sets 64 KB instead: in a round of DP-SCAFFOLD at its paper's
scale that made 100,000 page faults, half of its time.
"""

from __future__ import annotations

import ctypes

_TRIM, _MAPPED = 2**28, 2**24
"""Bytes: free memory at the top of the heap that the process retains, and the least array with its own mapping."""
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
"""Constants of glibc's <malloc.h>."""

KEEP_MEMORY = {"MALLOC_TRIM_THRESHOLD_": str(_TRIM), "MALLOC_MMAP_THRESHOLD_": str(_MAPPED)}
"""Environment of a process to be started; other C libraries ignore these variables."""


def keep_memory() -> None:
    """Applies the settings to this process; does nothing where the C library has none."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return
    mallopt(_M_TRIM_THRESHOLD, _TRIM)
    mallopt(_M_MMAP_THRESHOLD, _MAPPED)
