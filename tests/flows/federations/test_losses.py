"""A silo's losses: its keys go to a thief, or an old backup replaces its ledger."""

from __future__ import annotations

import json
import shutil

import pytest

from fedcore.errors import RelayError
from fedcore.identity.invitation import Invitation
from fedcore.identity.keys import Identity
from tasks.relay.client import RelayClient
from tests.flows.federations.parties import Heart

pytestmark = [pytest.mark.slow, pytest.mark.minutes]


@pytest.fixture
def heart(tmp_path):
    found = Heart(tmp_path)
    try:
        found.carry()
        for name in found.names:
            found.join(name)
        found.serve()
        found.config(rounds=3)
        found.coordinator.run("run", "heart.yaml")
        yield found
    finally:
        found.close()


def account(heart: Heart, name: str) -> dict:
    """The account as `budget show` prints it. The silo must not be served."""
    (found,) = json.loads(heart.silos[name].run("budget", "show", name, "--json"))
    return found


def test_a_silo_with_new_keys_keeps_its_name_and_its_account(heart):
    name = "hungary"
    party = heart.silos[name]
    heart.stop(name)
    before = account(heart, name)["epsilon_charged"]
    stolen, invitation = party.folder / "stolen", Invitation.read(heart.coordinator.folder / "heart.invitation")
    (party.folder / "home" / "memberships" / name).rename(stolen)
    thief = RelayClient(invitation.relay, invitation.federation, name, Identity.stored(stolen / "silo.keys"))
    with pytest.raises(RelayError, match="an acknowledgement has other fields"):
        thief._call("taken", b"")  # of a session that its keys have opened
    heart.coordinator.run("federation", "remove", "heart", name)
    with pytest.raises(RelayError, match="not on the coordinator's list"):
        thief.collect()
    (party.folder / f"{name}.card").unlink()
    heart.join(name)
    with pytest.raises(RelayError, match="the signature is not that of its sender's key"):
        thief.collect()
    heart.serve(name)
    heart.coordinator.run("run", "heart.yaml", "repetition=1")
    heart.stop(name)
    assert account(heart, name)["epsilon_charged"] > before > 0


def test_a_silo_restored_from_an_old_backup_answers_nothing_until_it_is_reconciled(heart):
    name = "cleveland"
    party, backup = heart.silos[name], heart.root / "backup"
    heart.stop(name)
    ledgers = party.folder / "home" / "ledgers"
    shutil.copytree(ledgers, backup)
    first = account(heart, name)["epsilon_charged"]
    heart.serve(name)
    heart.coordinator.run("run", "heart.yaml", "repetition=1")
    heart.stop(name)
    both = account(heart, name)["epsilon_charged"]
    shutil.rmtree(ledgers)
    shutil.copytree(backup, ledgers)
    said = party.run("silo", "serve", code=3)
    assert "it lost its end or is an old copy; nothing is answered until `fedcore budget reconcile" in said
    assert "Traceback" not in said
    party.run("budget", "reconcile", name)
    assert account(heart, name)["epsilon_charged"] >= both > first  # what the copy had lost is charged again
    heart.serve(name)
    heart.coordinator.run("run", "heart.yaml", "repetition=2")
    heart.stop(name)
    assert account(heart, name)["epsilon_charged"] > both
