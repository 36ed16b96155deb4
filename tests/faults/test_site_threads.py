"""Threads of one process that ask a site at the same moment: an actor on Dask has one, a service may have many."""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from fedcore.algorithms import Mbsgd
from fedcore.errors import SiloError
from fedcore.ledger.storage.verify import faults
from tests.faults.one_silo import KINDS, One, records
from tests.patience import HANGS

ROUNDS, THREADS = 60, 4


def play(folder: Path, kind: str) -> None:
    """Four servers, each with its model, query every round at once; only the first gets an answer."""
    one = One(folder, kind, *records(), method=Mbsgd(rounds=ROUNDS, step=0.5))
    sent, codes, others = defaultdict(set), set(), []
    start = threading.Barrier(THREADS)

    def ask(number: int) -> None:
        for round in range(1, ROUNDS + 1):
            start.wait()
            try:
                sent[round].add(one.ask(np.full(4, 0.1 * number), round).tobytes())
            except SiloError as error:
                codes.add(error.code)
            except BaseException as error:
                others.append(error)

    sys.setswitchinterval(1e-6)
    threads = [threading.Thread(target=ask, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert others == [] and codes == {"replayed"}
    assert sorted(sent) == list(range(1, ROUNDS + 1))
    assert {len(payloads) for payloads in sent.values()} == {1}
    assert len(one.ledger.rows("run")) == ROUNDS
    one.close()
    assert faults("ash", folder / "ash.sqlite", folder / "ash.anchor") == []


@pytest.mark.parametrize("kind", KINDS)
def test_one_address_has_one_answer_whatever_threads_ask(tmp_path, kind):
    """In a child: without the site's lock SQLite's statements meet, and the process ends with a segmentation fault."""
    child = os.fork()
    if child == 0:
        signal.alarm(int(HANGS))  # two threads that wait for each other would never end
        try:
            play(tmp_path, kind)
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
