"""A shuffler with a SIGKILL planted at a step: `python planted_shuffler.py FOLDER DESCRIPTOR LEAST STEP COUNT`.

STEP: `take` (before the COUNT-th message is kept), `commit` or `committed` (before and after the COUNT-th batch is
written), or `none`.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from pathlib import Path

from fedcore.shuffling.batches import Batches
from fedcore.shuffling.shuffler import Shuffler
from flows.carriers.shuffler import serve


def plant(step: str, count: int) -> None:
    if step == "none":
        return
    kind, name = (Shuffler, "take") if step == "take" else (Batches, "commit")
    whole, left = getattr(kind, name), [count]

    def killed(*arguments):
        left[0] -= 1
        if left[0] == 0 and step != "committed":
            os.kill(os.getpid(), signal.SIGKILL)
        found = whole(*arguments)
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return found

    setattr(kind, name, killed)


if __name__ == "__main__":
    folder, descriptor, least, step, count = sys.argv[1:]
    plant(step, int(count))
    serve(Path(folder), socket.socket(fileno=int(descriptor)), int(least))
