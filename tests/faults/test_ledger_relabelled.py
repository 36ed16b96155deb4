"""Entries relabelled as releases, so that checks of the other entries skip them.

A closed run's approval adds nothing to the sum of charges, because its closing replaces it. An adversary who hid
approval and closing in turn once got one address answered again and again, at the charge of one run.
"""

import sqlite3

import numpy as np
import pytest

from fedcore.errors import SiloError
from fedcore.ledger.storage.verify import faults
from tests.faults.one_silo import KINDS, One, records

HIDDEN = "UPDATE entries SET kind = 'release', phase = 1000 + sequence WHERE kind = ?"
MOVED = "UPDATE entries SET phase = 1000 + sequence WHERE kind = 'release' AND phase < 1000"


def change(folder, *statements):
    with sqlite3.connect(folder / "ash.sqlite") as db:
        for statement in statements:
            db.execute(*statement)
    db.close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_was_hidden_is_not_answered_again(tmp_path, kind):
    """The attack gave 12 answers of one address for the charge of one, when only charges in force were counted."""
    answers, refused = set(), []
    for turn in range(3):
        try:
            one = One(tmp_path, kind, *records())
        except SiloError as error:
            refused.append(error.code)
            break
        if turn:
            one.close()
            change(tmp_path, (HIDDEN, ("closing",)))
            one = One(tmp_path, kind, *records())
        answers.add(one.ask(np.full(4, turn / 100)).tobytes())
        one.silo.close_run("run")
        one.close()
        change(tmp_path, (HIDDEN, ("approval",)), (MOVED,))
    assert len(answers) == 1 and refused == ["ledger-lost"]
    assert faults("ash", tmp_path / "ash.sqlite", tmp_path / "ash.anchor")


@pytest.mark.parametrize("of_kind", ["approval", "closing", "policy", "reconciliation"])
def test_no_entry_goes_under_another_name(tmp_path, of_kind):
    """Also one that charges nothing: a policy, a reconciliation that found nothing lost."""
    one = One(tmp_path, "guarded", *records())
    one.ledger.record_policy("d" * 64, "{}")
    one.ask(np.zeros(4))
    one.silo.close_run("run")
    one.ledger.reconcile()
    one.ask(np.zeros(4))  # the newest entry is no release but for this: what was sent may be sent again
    one.close()
    One(tmp_path, "guarded", *records(), approve=False).close()
    change(tmp_path, (HIDDEN, (of_kind,)))
    with pytest.raises(SiloError) as caught:
        One(tmp_path, "guarded", *records(), approve=False)
    assert caught.value.code in ("ledger-lost", "ledger-damaged")


def test_an_anchor_that_did_not_count_yet_is_taken_up(tmp_path):
    """Written by hand in the form of before: sequence, head, three sums, MAC."""
    import hmac
    import struct

    one = One(tmp_path, "seeded", *records())
    sent = one.ask(np.zeros(4)).tobytes()
    one.close()
    anchor, key = tmp_path / "ash.anchor", (tmp_path / "ash.key").read_bytes()
    data = anchor.read_bytes()
    slots = [data[start : start + 72] for start in (0, 512)]
    earlier = [plain + hmac.digest(key, b"anchor" + plain, "sha256") for plain in (slot[:64] for slot in slots)]
    anchor.write_bytes(earlier[0].ljust(512, b"\0") + earlier[1])
    assert struct.unpack_from("<Q", slots[1])[0] == 3
    again = One(tmp_path, "seeded", *records())
    assert again.ask(np.zeros(4)).tobytes() == sent
    again.ask(np.zeros(4), 2)
    again.close()
    change(tmp_path, (HIDDEN, ("approval",)))
    with pytest.raises(SiloError, match="are not those its anchor saw"):
        One(tmp_path, "seeded", *records(), approve=False)
