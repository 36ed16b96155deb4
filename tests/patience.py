"""Time limits of tests, generous because CI is slow and busy; only a failing test waits until its limit."""

import os

HANGS = 600.0
"""Seconds after which a command, or what it is waited for to do, is taken to hang."""
SOON = 90.0
"""Seconds for what takes less than 15 where nothing else runs (docs/results/performance.md): an end, a start."""
SLOWNESS = float(os.environ.get("FEDCORE_SLOWNESS", "1"))
"""Factor on the limits of timed tests, for machines slower than two quiet cores."""
