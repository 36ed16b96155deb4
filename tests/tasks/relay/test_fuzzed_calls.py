"""Thousands of altered calls of a coordinator whose keys are right: no uncharged release, and no crash."""

from __future__ import annotations

import json
from random import Random

import numpy as np
import pytest

from fedcore.messages import Query
from fedcore.remote.forms import Call
from tests.faults.arrival_site import SOUND, sound, sound_query, varied
from tests.faults.mutations import bent_bytes, bent_query, bent_text, bent_tree
from tests.fuzzing import fuzz_seed
from tests.tasks.relay.correspondent import NAME, Correspondent
from tests.wire import packed

FEW, CALLS = 400, 10_000
RESTARTS = 500
"""Calls between two ends of the silo's process."""


def headed(operation, run, lease, parts) -> bytes:
    """A call's bytes, whatever its fields."""
    return json.dumps([operation, run, lease, [len(each) for each in parts]]).encode() + b"\n" + b"".join(parts)


class Hostile:
    """Draws calls; most of them are well-formed, and ask for what no plan has."""

    def __init__(self, source: Random, silo: Correspondent) -> None:
        self.source, self.silo, self.other = source, silo, {"w": np.ones(3)}
        self.runs: dict[str, int] = {}

    def approval(self) -> tuple[str, bytes]:
        source, place = self.source, self.source.randrange(len(SOUND))
        run = source.choice([f"run-{source.randrange(60)}", *self.runs])
        agreement = varied(source, place, True, run)
        if source.random() < 0.5:
            tree = json.loads(sound(place, True)[0].to_bytes())
            tree[0] = run
            agreement = json.dumps(tree, sort_keys=True, separators=(",", ":")).encode()
        elif source.random() < 0.3:
            agreement = json.dumps(bent_tree(source, json.loads(agreement))).encode()
        parts = (agreement,)
        if source.random() < 0.1:
            parts += (source.choice([b"", b"{}", b'["http://127.0.0.1:1", "k", 1.0, ""]']),)
        if source.random() < 0.9:
            self.runs.setdefault(run, place)
        return run, headed("approve", run, 1, parts)

    def question(self) -> tuple[str, bytes]:
        source = self.source
        known = [run for run in self.silo.agreements if run in self.runs and self.silo.site.has(run)]
        run = source.choice(known) if known and source.random() < 0.95 else "unknown"
        head, arrays, radius = sound_query(source, self.runs.get(run, 0), True, run)
        if run in self.silo.agreements:
            head[1] = json.loads(self.silo.agreements[run])[1]  # the plan of the numbers that were approved
        if source.random() < 0.8:
            head[4] = [NAME]
        data = json.dumps(head).encode() + b"\n" + packed(arrays)
        if source.random() < 0.6:
            data = bent_query(source, head, arrays, radius, self.other)
        self.other = arrays or self.other
        operation = "answer" if source.random() < 0.95 else "send"
        return run, headed(operation, run, source.choice([1] * 9 + [0, 2**62]), (data,))

    def other_call(self) -> tuple[str, bytes]:
        source = self.source
        run = source.choice([*self.silo.agreements, "unknown"])
        operation = source.choice(["accounts"] * 6 + ["forget_run", "close_run", "send", "simulated", "restore"])
        return run, headed(operation, run, source.choice([1] * 9 + [0, 2**62]), ())

    def call(self) -> tuple[str, bytes]:
        """Run of the envelope and body of a call."""
        source = self.source
        made = source.choices([self.approval, self.question, self.other_call], [2, 10, 1])[0]
        run, body = made()
        drawn = source.random()
        if drawn < 0.1:
            body = bent_bytes(source, body, b"[]\n")
        elif drawn < 0.15:
            head, _, rest = body.partition(b"\n")
            body = bent_text(source, head.decode()).encode(errors="surrogatepass") + b"\n" + rest
        elif drawn < 0.2:
            head, _, rest = body.partition(b"\n")
            body = json.dumps(bent_tree(source, json.loads(head))).encode() + b"\n" + rest
        elif drawn < 0.23:
            run = "another"
        return run, body


def searched(folder, calls: int) -> Correspondent:
    """A silo after so many calls, each of which the oracle has checked."""
    source = Random(fuzz_seed())
    silo = Correspondent(folder)
    hostile = Hostile(source, silo)
    earlier: list[bytes] = []
    try:
        for number in range(1, calls + 1):
            run, body = hostile.call()
            drawn = source.random()
            if drawn < 0.05:  # the envelope is changed after it was signed, or comes again
                data = silo.sealed(body, run)
                changed = source.choice([bent_bytes(source, data, b"[]\n"), *earlier[-5:]])
                if changed != data:
                    with pytest.raises(ValueError):
                        silo.service.answer(changed)
                silo.tally["sent"] += 1
                silo.tally["forged or replayed"] += 1
                continue
            silo.called(body, run)
            earlier = [*earlier[-20:], silo.last]
            if number % RESTARTS == 0:
                silo.check()
                silo.close()
                silo.restart()
                for run, agreement in silo.agreements.items():
                    if not silo.ledger.is_closed(run):
                        assert silo.called(headed("approve", run, 1, (agreement,)), run).refusal is None
        silo.check()
        print(silo.tally)
        assert silo.tally["reached"] > 0.3 * silo.tally["sent"]
        return silo
    finally:
        silo.close()


def test_a_coordinator_that_sends_anything_gets_what_its_plans_have(tmp_path):
    silo = searched(tmp_path, FEW)
    assert silo.tally["releases"] > 5 and silo.tally["forged or replayed"] > 5


@pytest.mark.minutes
def test_ten_thousand_calls_of_a_hostile_coordinator(tmp_path):
    silo = searched(tmp_path, CALLS)
    assert silo.tally["releases"] > 300 and silo.tally["done: approve"] > 20


def test_the_oracle_sees_a_release_that_is_charged_to_nobody(tmp_path):
    """A silo that answered and wrote no row would be found."""
    silo = Correspondent(tmp_path)
    try:
        agreement, plan = sound(0, True)
        assert silo.called(headed("approve", agreement.run, 1, (agreement.to_bytes(),)), agreement.run).refusal is None
        silo.ledger.commit = lambda *_: None
        query = Query(agreement.run, plan.digest, 1, 1, (NAME,), {"w": np.zeros(3)}).to_bytes()
        with pytest.raises(AssertionError, match="0 rows for"):
            silo.called(Call("answer", agreement.run, 1, (query,)).to_bytes(), agreement.run)
    finally:
        silo.close()
