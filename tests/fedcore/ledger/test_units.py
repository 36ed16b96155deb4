"""A durable account has one unit for good: records, or the persons of one column."""

from __future__ import annotations

import pytest

from fedcore.accounting.filters import Cap, Charge
from fedcore.errors import SiloError
from fedcore.ledger.account import account, export
from fedcore.ledger.memory import MemoryLedger
from fedcore.ledger.sqlite import SqliteLedger
from fedcore.ledger.storage.verify import faults

CHARGE = Charge(0.1, 1.0, 1e-6)


@pytest.fixture
def opened(tmp_path):
    """Opens the ledger again, as another process would."""
    ledgers: list[SqliteLedger] = []

    def open_it() -> SqliteLedger:
        for ledger in ledgers:
            ledger.close()
        ledgers.append(SqliteLedger("ash", tmp_path / "v" / "ash.sqlite", tmp_path / "a" / "ash.anchor"))
        return ledgers[-1]

    yield open_it
    for ledger in ledgers:
        ledger.close()


def ask(ledger, run, person):
    return ledger.open_run(run, "plan", b"k" * 32, CHARGE, None, person)


@pytest.mark.parametrize(
    ("first", "other", "words"),
    [
        (None, "patient", ("for records, for good", "for persons by column 'patient'", "Leave out data.person")),
        ("patient", None, ("for persons by column 'patient', for good", "for records", "data.person = 'patient'")),
        ("patient", "visit", ("column 'patient', for good", "column 'visit'", "Go on with data.person = 'patient'")),
    ],
)
def test_the_first_charge_binds_the_unit_and_another_keeps_nothing(opened, tmp_path, first, other, words):
    ledger = opened()
    ask(ledger, "one", first)
    for again in (lambda: ledger, opened):
        again = again()
        with pytest.raises(SiloError) as caught:
            ask(again, "two", other)
        assert caught.value.code == "unit" and str(tmp_path / "v" / "ash.sqlite") in caught.value.sentence
        assert all(word in caught.value.sentence for word in words)
        assert "\n" not in caught.value.sentence
        assert list(again.charges()) == ["one"] and again.person == first
        assert ask(again, "one", first) == b"k" * 32
    ledger = opened()
    ask(ledger, "three", first)
    ledger.close_run("one", 0.05)
    ledger.close_run("three", 0.0)
    # Closed runs have spent what they have.
    with pytest.raises(SiloError, match="for good"):
        ask(opened(), "four", other)
    unit = "records" if first is None else f"persons by column {first!r}"
    ledger = opened()
    assert account(ledger)["unit"] == export(ledger)["unit"] == unit
    ledger.close()
    assert faults("ash", tmp_path / "v" / "ash.sqlite", tmp_path / "a" / "ash.anchor") == []


def test_a_ledger_that_was_charged_for_nothing_takes_any_unit(opened):
    """A run that the cap refused leaves no charge, and binds nothing."""
    ledger = opened()
    with pytest.raises(SiloError, match="cap"):
        ledger.open_run("dear", "plan", b"k" * 32, CHARGE, Cap(0.01, 1e-6), None)
    ledger = opened()
    assert ledger.person is None and account(ledger)["unit"] is None
    ask(opened(), "one", "patient")
    assert opened().person == "patient"


def test_the_body_of_a_charge_for_records_is_what_it_was(opened):
    """Ledgers of before are ledgers of records, and their entries have the same bytes."""
    ledger = opened()
    ask(ledger, "one", None)
    (entry,) = [each for each in ledger._known().entries if each.kind == "approval"]
    assert "person" not in entry.body


def test_after_all_approvals_were_lost_a_ledger_is_one_of_records(tmp_path):
    """The unit of lost charges is unknown: a charge for persons bounds records too, and not the other way round."""
    paths = tmp_path / "v" / "ash.sqlite", tmp_path / "a" / "ash.anchor"
    ledger = SqliteLedger("ash", *paths)
    ask(ledger, "one", "patient")
    ledger.close()
    for file in paths[0].parent.iterdir():
        file.unlink()
    ledger = SqliteLedger("ash", *paths, fitting=False)
    ledger.reconcile()
    with pytest.raises(SiloError, match="for records, for good"):
        ask(ledger, "two", "patient")
    ask(ledger, "two", None)
    ledger.close()


def test_a_ledger_in_memory_lasts_as_long_as_its_silo_which_has_one_unit():
    ledger = MemoryLedger("ash")
    assert ask(ledger, "one", None) == ask(ledger, "two", "patient") == b"k" * 32
