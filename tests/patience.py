"""How long tests wait for what must come: CI is a slow, busy machine, and only a test that fails waits for so long."""

import os

HANGS = 600.0
"""Seconds after which a command, or what it is waited for to do, is taken to hang."""
SOON = 90.0
"""Seconds for what takes less than 15 where nothing else runs (docs/results/performance.md): an end, a start."""
SLOWNESS = float(os.environ.get("FEDCORE_SLOWNESS", "1"))
"""How much longer than on a quiet machine of two cores may take what has a limit of its own: other work is there."""
