"""The order of an account: implied by the first cap, and constant afterwards, in ledgers, anchors and registers."""

from __future__ import annotations

import hmac
import json
import math
import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from struct import Struct

import numpy as np
import pytest

from fedcore.accounting.composition import worst_mu_squared
from fedcore.accounting.divergences.pieces import pieces_of
from fedcore.accounting.divergences.renyi import FORMULA
from fedcore.accounting.events import GaussianRelease
from fedcore.accounting.filters import Cap, Charge, Divergence
from fedcore.errors import SiloError
from fedcore.ledger.account import account, export
from fedcore.ledger.anchor import Anchor
from fedcore.ledger.caps import Caps, caps_json, caps_shown
from fedcore.ledger.ledger import payload_digest
from fedcore.ledger.memory import MemoryLedger
from fedcore.ledger.operator.account_lock import key_digest
from fedcore.ledger.operator.accounts import head_of
from fedcore.ledger.operator.register import Draft, Register
from fedcore.ledger.operator.registered import RegisteredLedger
from fedcore.ledger.operator.repair import reconcile
from fedcore.ledger.rows import Row
from fedcore.ledger.sqlite import SqliteLedger
from fedcore.ledger.storage.verify import faults

DELTA = 1e-5
EVENT = GaussianRelease(0, 1000, 1.0, 3.728782, 100, sampling="poisson", rate=0.1)
SAMPLED = Charge(EVENT.gdp_mu_squared, 1.0, DELTA, pieces_of([EVENT]))
FULL = Charge(40 / 23.59459**2, 1.0, DELTA)
SMALL, LARGE = Cap(4.0, DELTA, "rdp"), Cap(8.0, DELTA, "rdp")


def places(folder):
    return folder / "v" / "ash.sqlite", folder / "ash.anchor"


def opened(folder, fitting=True) -> SqliteLedger:
    return SqliteLedger("ash", *places(folder), fitting)


def ask(ledger, cap, charge=SAMPLED, policy=None, name=None) -> bool:
    run = name or f"run {ledger.runs + 1}"
    try:
        ledger.open_run(run, "plan", b"k" * 32, charge, cap, policy=policy)
    except SiloError as error:
        assert error.code == "cap"
        return False
    return True


def admitted(ledger, cap, charge=SAMPLED) -> int:
    count = 0
    while ask(ledger, cap, charge):
        count += 1
        assert count < 100
    return count


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
@pytest.mark.parametrize("rule", ["gdp", "basic"])
def test_the_first_cap_implies_the_order_whatever_its_rule(tmp_path, kind, rule):
    """A cap of 4 under another rule, of which one full run takes a part; then rdp sums all rows at the order of 4."""
    ledger = MemoryLedger("ash") if kind == "memory" else opened(tmp_path)
    assert ledger.caps.order is None and ledger.caps.claimed is None
    assert ask(ledger, Cap(4.0, DELTA if rule == "gdp" else 1e-4, rule), FULL)
    order = Cap(4.0, DELTA if rule == "gdp" else 1e-4).order
    assert ledger.caps.order == order
    by_hand = (LARGE.room(order) - FULL.rho(order)) / SAMPLED.rho(order)
    assert admitted(ledger, LARGE) == int(by_hand)
    assert {charge.divergence.order for charge in ledger.charges().values()} == {order}
    ledger.close()


def test_an_order_outlives_its_process_and_a_raised_cap(tmp_path):
    """Cap 8 at the order of 4: 28 full runs by the spec, and not the 34 of its own order."""
    ledger = opened(tmp_path)
    assert admitted(ledger, SMALL, FULL) == 10
    ledger.close()
    ledger = opened(tmp_path)
    assert ledger.caps.order == SMALL.order != LARGE.order
    assert admitted(ledger, LARGE, FULL) == 18 and ledger.runs == 28
    assert [each.caps for each in ledger.caps.recorded] == [(SMALL,), (LARGE,)]
    assert ledger.caps.claimed == LARGE
    assert not ask(ledger, SMALL, FULL)  # lowered again: nothing more, and what is claimed stays
    ledger.close()
    assert opened(tmp_path).caps.claimed == LARGE
    assert faults("ash", *places(tmp_path)) == []


def test_a_cap_that_admits_nothing_implies_nothing_and_both_caps_are_kept(tmp_path):
    ledger = opened(tmp_path)
    assert not ask(ledger, Cap(0.5, DELTA, "rdp"))
    assert ledger.caps.order is None
    assert ask(ledger, SMALL, policy=LARGE)  # the operator's comes first
    assert ledger.caps.order == LARGE.order and ledger.caps.recorded[0].caps == (LARGE, SMALL)
    assert ledger.caps.claimed == SMALL  # both had to admit it
    assert ask(ledger, None, policy=LARGE) and ledger.caps.claimed == LARGE
    assert ask(ledger, None) and ledger.caps.claimed is None  # no cap at all: nothing is claimed from then on
    assert ask(ledger, LARGE) and ledger.caps.claimed is None
    ledger.close()


def test_rows_of_before_the_first_cap_count_by_what_they_were_or_by_mu_squared(tmp_path):
    ledger = opened(tmp_path)
    assert ask(ledger, None) and ask(ledger, None, FULL)
    assert ledger.caps.order is None and ledger.charges()["run 1"] == SAMPLED
    order = LARGE.order
    assert admitted(ledger, LARGE) == int((LARGE.room(order) - FULL.rho(order)) / SAMPLED.rho(order)) - 1
    assert ledger.caps.claimed is None, "the cap, and its order with it, may follow from their answers"
    ledger.close()
    assert opened(tmp_path).caps.claimed is None
    bare = opened(tmp_path / "bare")
    bare.open_run("bare", "plan", b"k" * 32, Charge(SAMPLED.mu_squared, 1.0, DELTA), None)
    assert not ask(bare, LARGE)  # it may have been all records
    bare.close()


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_a_closed_run_is_charged_the_divergence_of_its_releases(tmp_path, kind):
    """Three of a hundred rounds were answered: their share, and never more than the plan."""
    ledger = MemoryLedger("ash") if kind == "memory" else opened(tmp_path)
    assert ask(ledger, LARGE, name="run")
    one = GaussianRelease(0, 1000, 1.0, 3.728782, sampling="poisson", rate=0.1)
    for round in (1, 2, 3):
        payload, digested = payload_digest(np.full(2, float(round)))
        ledger.commit("run", Row(1, round, bytes(32), one, digested, payload))
    ledger.close_run("run", worst_mu_squared([one] * 3))
    charge, order = ledger.charges()["run"], LARGE.order
    assert charge.divergence == Divergence(order, charge.rho(order), FORMULA)
    assert charge.rho(order) == pytest.approx(SAMPLED.rho(order) * 3 / 100, rel=1e-9)
    assert charge.pieces[0].kinds[0].count == 3 and charge.epsilon == 1.0
    assert ask(ledger, LARGE, name="other")
    ledger.close_run("other", 0.0)
    assert ledger.charges()["other"].rho(order) == 0.0
    ledger.close()


def test_a_ledger_that_lost_its_end_keeps_order_and_claim_and_what_was_charged(tmp_path):
    """Its file is set back to before all caps: the anchor knows the order, the claim and the sum of divergences."""
    path, anchor = places(tmp_path)
    opened(tmp_path).close()
    before = path.read_bytes()
    ledger = opened(tmp_path)
    for _ in range(5):
        assert ask(ledger, SMALL)
    assert ask(ledger, LARGE)
    ledger.close()
    mark = Anchor(anchor).mark
    assert (mark.order, mark.claimed) == (SMALL.order, LARGE)
    assert mark.totals.rho == pytest.approx(6 * SAMPLED.rho(SMALL.order), rel=1e-12)
    path.write_bytes(before)
    for name in ("ash.sqlite-wal", "ash.sqlite-shm"):
        path.with_name(name).unlink(missing_ok=True)
    with pytest.raises(SiloError, match="it lost its end or is an old copy"):
        opened(tmp_path)
    ledger = opened(tmp_path, fitting=False)
    runs, lost = ledger.reconcile()
    assert runs == [] and lost.rho(SMALL.order) == mark.totals.rho
    assert (ledger.caps.order, ledger.caps.claimed) == (SMALL.order, LARGE)
    expected = int((LARGE.room(SMALL.order) - mark.totals.rho) / SAMPLED.rho(SMALL.order))
    assert admitted(ledger, LARGE) == expected
    ledger.close()
    assert faults("ash", path, anchor) == []


def changed(folder, kind, change):
    """The ledger's file with another body in its first entry of a kind."""
    with closing(sqlite3.connect(places(folder)[0])) as db:
        sequence, body = db.execute("SELECT sequence, body FROM entries WHERE kind = ? LIMIT 1", (kind,)).fetchone()
        new = json.loads(body)
        change(new)
        db.execute("UPDATE entries SET body = ? WHERE sequence = ?", (json.dumps(new, sort_keys=True), sequence))
        db.commit()


CHANGES = {
    "another order": ("cap", lambda body: body.update(order=LARGE.order)),
    "a larger cap": ("cap", lambda body: body["caps"][0].update(epsilon=800.0)),
    "no cap": ("cap", lambda body: body["caps"].clear()),
    "less divergence": ("approval", lambda body: body["charge"].update(rho=0.0)),
    "fewer answers": ("approval", lambda body: body["charge"]["pieces"][0][1][0].__setitem__(3, 1)),
    "an older formula": ("approval", lambda body: body["charge"].update(formula=FORMULA + 1)),
}


@pytest.mark.parametrize("case", CHANGES)
def test_caps_and_divergences_are_as_tamper_evident_as_the_rest(tmp_path, case):
    ledger = opened(tmp_path)
    assert ask(ledger, SMALL)
    ledger.close()
    changed(tmp_path, *CHANGES[case])
    with pytest.raises(SiloError, match=r"was changed, or is not where it was written|do not add up to what"):
        opened(tmp_path)
    assert any("was changed" in message for message in faults("ash", *places(tmp_path)))


def test_an_entry_with_a_second_order_is_refused(tmp_path):
    ledger = opened(tmp_path)
    assert ask(ledger, SMALL)
    for body in (
        {"order": LARGE.order, "caps": [], "formula": 1},
        {"order": 1.0, "caps": []},
        {"caps": []},
        {"order": SMALL.order, "caps": [{"epsilon": math.nan, "delta": DELTA, "rule": "rdp"}]},
    ):
        with pytest.raises((ValueError, KeyError)):
            ledger.caps.take(9, body)
    assert ledger.caps.order == SMALL.order
    ledger.close()


def test_what_a_newer_formula_charged_leaves_no_room_and_says_so(tmp_path):
    ledger = opened(tmp_path)
    newer = Charge(1e-9, 1e-3, DELTA, divergence=Divergence(LARGE.order, 0.0, FORMULA + 1))
    ledger.open_run("newer", "plan", b"k" * 32, newer, None)
    with pytest.raises(SiloError, match=r"has 0 left .*; a newer version of fedcore has charged runs, at divergences"):
        ledger.open_run("mine", "plan", b"k" * 32, FULL, LARGE)
    assert ask(ledger, Cap(8.0, DELTA, "gdp"), FULL)
    ledger.close_run("newer", 0.0)
    assert ledger.charges()["newer"].rho(LARGE.order) == math.inf, "nor does its end lower it"
    assert not ask(ledger, LARGE, FULL)
    ledger.close()


def test_the_refusal_of_gdp_names_rdp_where_samples_are_counted_as_all_records(tmp_path):
    ledger = opened(tmp_path)
    with pytest.raises(SiloError) as caught:
        ledger.open_run("run", "plan", b"k" * 32, SAMPLED, Cap(8.0, DELTA))
    message = "; gdp counts a sample as all records, rule rdp counts it as a sample, and has room for it"
    assert caught.value.sentence.endswith(f"run run asks for 1 at delta 1e-05{message}")
    with pytest.raises(SiloError, match="and has no room for it either"):
        ledger.open_run("run", "plan", b"k" * 32, SAMPLED, Cap(0.5, DELTA))
    with pytest.raises(SiloError) as caught:
        ledger.open_run("run", "plan", b"k" * 32, FULL, Cap(0.5, DELTA))
    assert "rdp" not in caught.value.sentence  # it would admit fewer
    ledger.close()


def test_a_ledger_of_version_3_goes_on_and_becomes_one_of_4(tmp_path):
    """As earlier versions wrote it: three numbers of a charge, an anchor without order, and no entry of caps."""
    path, anchor = places(tmp_path)
    ledger = opened(tmp_path)
    assert ask(ledger, None, FULL)
    mark, kept = Anchor(anchor).mark, Anchor(anchor)
    ledger.close()
    older = Struct("<Q32sdddQ32s32s")
    plain = older.pack(mark.sequence, mark.head, *mark.totals[:3], mark.runs, mark.trail, bytes(32))[:-32]
    slot = plain + hmac.digest(kept.key, b"anchor" + plain, "sha256")
    anchor.write_bytes(bytes(512 * (mark.sequence % 2)) + slot)
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA user_version = 3")
        assert set(
            json.loads(db.execute("SELECT body FROM entries WHERE kind = 'approval'").fetchone()[0])["charge"]
        ) == {"mu_squared", "epsilon", "delta"}
    assert faults("ash", path, anchor) == []

    def version():
        with closing(sqlite3.connect(path)) as db:
            return db.execute("PRAGMA user_version").fetchone()[0]

    ledger = opened(tmp_path)
    assert ledger.charges() == {"run 1": FULL}
    ledger.close()
    assert version() == 3  # nothing was written
    ledger = opened(tmp_path)
    order = LARGE.order
    assert admitted(ledger, LARGE) == int((LARGE.room(order) - FULL.rho(order)) / SAMPLED.rho(order)) == 33
    ledger.close()
    assert version() == 4 and faults("ash", path, anchor) == []
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA user_version = 5")
    with pytest.raises(SiloError, match="has version 5, this code needs 4: a newer fedcore wrote it"):
        opened(tmp_path)


# In a register


def now():
    return datetime.now(UTC)


def register_of(folder, *versions) -> Register:
    register = Register(folder / "register", "ash")
    register.make()
    drafts = [Draft("silo", "ash", "", {"at": now().isoformat()})]
    for version in versions:
        files = folder / version / "a.sqlite", folder / version / "a.anchor"
        with closing(SqliteLedger("ash", *files)) as ledger:
            body = {"ledger": str(files[0]), "anchor": str(files[1]), "key": key_digest(register, ledger.key)}
            body |= {"disjoint": False, "digests": None, "records": 9, "head": head_of(ledger.end)}
        drafts.append(Draft("version", "ash", version, body))
    register.append(drafts)
    return register


def in_register(folder, register, version) -> RegisteredLedger:
    return RegisteredLedger(register, "ash", version, now)


def test_one_order_for_all_versions_of_a_silos_data(tmp_path):
    register = register_of(tmp_path, "1" * 32, "2" * 32)
    with closing(in_register(tmp_path, register, "1" * 32)) as ledger:
        assert ask(ledger, SMALL, name="a") and ledger.caps.order == SMALL.order
    with closing(in_register(tmp_path, register, "2" * 32)) as ledger:
        assert ledger.caps.order == SMALL.order
        order = SMALL.order
        expected = int(LARGE.room(order) / SAMPLED.rho(order)) - 1
        assert admitted(ledger, LARGE) == expected
        ledger.close_run("run 2", 0.0)
        assert ask(ledger, LARGE, name="after it")
    again = Register(register.folder, "ash")
    caps = again.accounts.find("ash").caps
    assert (caps.order, caps.claimed, len(caps.recorded)) == (SMALL.order, LARGE, 2)
    with closing(in_register(tmp_path, again, "1" * 32)) as ledger:
        assert not ask(ledger, LARGE, name="one more")
        assert account(ledger)["caps"]["order"] == SMALL.order and export(ledger)["runs"][0]["charge"]["rho"] > 0


def test_a_registered_ledger_that_is_reconciled_keeps_what_the_register_knows(tmp_path):
    version = "1" * 32
    register = register_of(tmp_path, version)
    path = tmp_path / version / "a.sqlite"
    before = path.read_bytes()
    with closing(in_register(tmp_path, register, version)) as ledger:
        assert ask(ledger, SMALL, name="a") and ask(ledger, SMALL, name="b")
    path.write_bytes(before)
    with pytest.raises(SiloError, match="nothing is answered until"):
        in_register(tmp_path, register, version)
    assert len(reconcile(register, "ash", now)) == 1
    with closing(in_register(tmp_path, register, version)) as ledger:
        assert ledger.caps.order == SMALL.order
        spent = sum(charge.rho(SMALL.order) for charge in ledger.charges().values())
        assert spent == pytest.approx(2 * SAMPLED.rho(SMALL.order), rel=1e-9)
        assert admitted(ledger, SMALL) == int((SMALL.room(SMALL.order) - spent) / SAMPLED.rho(SMALL.order))


def recorded(*of: tuple[Cap, ...]) -> Caps:
    made = Caps()
    for entry, caps in enumerate(of):
        made.take(entry, caps_json(LARGE.order, caps))
    return made


def test_the_largest_cap_is_so_by_its_own_rule():
    """mu^2 of (12, 1e-10) is above that of (8, 1e-5), and its room for divergences is below."""
    first, later = Cap(8.0, DELTA, "gdp"), Cap(12.0, 1e-10, "gdp")
    assert first.room(LARGE.order) > later.room(LARGE.order)
    assert recorded((first,), (later,), (first,)).claimed == later
    assert recorded((first, Cap(9.0, DELTA, "gdp"))).claimed == first, "of several at a time the smallest counts"
    assert recorded((first,), (LARGE,)).claimed is None, "no rule was in force all the time"
    assert recorded((first, SMALL), (LARGE,)).claimed == LARGE
    assert recorded((first,), ()).claimed is None
    basics = recorded((Cap(1.0, 1e-5, "basic"),), (Cap(2.0, 1e-6, "basic"),))
    assert basics.claimed == Cap(2.0, 1e-5, "basic")


def test_what_is_shown_of_several_versions_is_the_most_spent_and_the_least_left():
    """Ranked by divergences, the version of full batches would come first; by mu^2, as gdp has it, that of samples."""
    cap, order = Cap(8.0, DELTA, "gdp"), LARGE.order
    samples, full = Charge(2.5, 1.0, DELTA, pieces_of([EVENT])), Charge(0.2, 1.0, DELTA)
    both = caps_shown(recorded((cap,)), [[samples], [full]])
    shown = both["in_force"][0]
    assert shown["spent"] == cap.spent([samples]) > cap.spent([full])
    assert shown["left"] == cap.left([samples]) < cap.left([full])
    assert both["divergence"] == max(samples.rho(order), full.rho(order))
