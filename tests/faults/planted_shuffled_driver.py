"""The driver of a shuffled run, killed at a step: `python planted_shuffled_driver.py HOME CONFIG STEP COUNT`.

Only a function's end is wrapped (`tests.faults.planted`); environment: FAULT_FILE.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.faults.federation import Federation
from tests.faults.planted import _Kill, _wrap

STEPS = {
    "the run's key made": ("tasks.shuffling.backend:stored_key", 1),
    "round open, before silos are asked": ("tasks.shuffling.calls:Mailbox.open", 3),
    "one silo committed, before anything is sealed": ("fedcore.silo.private_silo:PrivateSilo.answer", 13),
    "some messages sent, the next one sealed": ("fedcore.shuffling.forms:Route.envelope", 15),
    "all sent, before the batch is collected": ("fedcore.silo.site:Site.send", 4),
    "batch collected, before the fold": ("tasks.shuffling.backend:Shuffled.batch", 5),
    "batch folded": ("fedcore.federation.rounds:RunContext.fold_batch", 8),
    "closed at the silos, before the shuffler forgets": ("fedcore.silo.site:Site.close_run", 1),
}

if __name__ == "__main__":
    home, config, step, count = sys.argv[1:]
    _wrap(STEPS[step][0], after=_Kill(step, int(count)))
    Federation(Path(home), Path(config), Path(home) / "planted.log").drive()
