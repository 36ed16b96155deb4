"""A process that plays many silos of a federation, a thread for each: `python -m benchmarks.light_silos`.

Each has its own keys, records, guarded ledger, sequence numbers, session and connection, and the loop of `fedcore silo
serve`. They share an interpreter and a register.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from pathlib import Path

from benchmarks.parties import Parties
from fedcore.home import Home
from fedcore.process.open_files import make_room
from fedcore.remote.membership import Membership
from tasks.relay.client import RelayClient
from tasks.relay.serving import serve

FILES = 12
"""Open files of a silo: ledger, numbers, locks, and its connection."""


def play(parties: Parties, first: int, last: int) -> None:
    """Answers for the silos from number `first` to before `last`, until the process ends."""
    make_room((last - first) * FILES)
    home = Home.current()
    threads = []
    with contextlib.ExitStack() as stack:
        for name in parties.silos[first:last]:
            found = Membership.of(home, name)
            service = stack.enter_context(found.service(home))
            post = RelayClient(found.invitation.relay, found.invitation.federation, name, found.identity)
            threads.append(threading.Thread(target=serve, args=(service, post, threading.Event()), daemon=True))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


if __name__ == "__main__":
    _folder, _port, _silos, _first, _last = sys.argv[1:]
    _names = tuple(f"silo-{index:04d}" for index in range(int(_silos)))
    play(Parties(Path(_folder), _names, True, int(_port)), int(_first), int(_last))
