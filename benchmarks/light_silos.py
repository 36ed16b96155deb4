"""A process that plays many silos of a federation, a thread for each: `python -m benchmarks.light_silos`.

Each has its own keys, records, guarded ledger, register, sequence numbers, session and connection, and the loop of
`fedcore silo serve`. They share an interpreter and a policy.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from pathlib import Path
from unittest.mock import patch

from benchmarks.parties import Parties
from fedcore.home import Home
from fedcore.ledger.operator.register import Register
from fedcore.process.open_files import make_room
from fedcore.remote.membership import Membership
from tasks.relay.client import RelayClient
from tasks.relay.serving import serve

FILES = 12
"""Open files of a silo: ledger, numbers, locks, and its connection."""


def play(parties: Parties, first: int, last: int) -> None:
    """Answers for the silos from number `first` to before `last`, until the process ends."""
    make_room((last - first) * FILES)
    threads = []
    with contextlib.ExitStack() as stack:
        own = patch.object(Register, "current", lambda silo: Register(parties.of(silo) / "register", silo))
        stack.enter_context(own)  # in place of the one that the process's environment names
        for name in parties.silos[first:last]:
            home = Home(parties.of(name) / "home")
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
    play(Parties(Path(_folder), _names, False, int(_port)), int(_first), int(_last))
