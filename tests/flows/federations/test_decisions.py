"""Operators of silos decide and pause while a run waits, and a run goes on without a silo that is away."""

from __future__ import annotations

import json
import re
import time

import pytest

from tests.flows.federations.parties import Heart
from tests.patience import HANGS

pytestmark = [pytest.mark.slow, pytest.mark.minutes]


@pytest.fixture
def heart(tmp_path):
    found = Heart(tmp_path, ("cleveland", "hungary", "virginia"))
    try:
        yield found
    finally:
        found.close()


def until(heart: Heart, driver, condition) -> None:
    end = time.monotonic() + HANGS
    while not condition():
        assert time.monotonic() < end and driver.poll() is None, heart.coordinator.log("run")
        time.sleep(0.1)


def test_a_run_waits_for_an_operators_approval_which_is_of_its_terms(heart):
    heart.carry()
    for name in heart.names:
        heart.join(name)
    party = heart.silos["cleveland"]
    (policy,) = (party.folder / "home" / "policies").glob("*.yaml")
    policy.write_text(policy.read_text().replace("decides: policy", "decides: operator"))
    heart.serve()
    heart.config(rounds=4)
    driver = heart.coordinator.start("run", "heart.yaml")
    until(heart, driver, lambda: "its operator has not decided yet" in heart.coordinator.log("run"))
    (run,) = json.loads(party.run("silo", "show", "--json"))["undecided"]
    assert f"`fedcore silo approve {run}`" in party.run("silo", "show")
    said = party.run("silo", "approve", run, code=2)
    assert "mbsgd" in said and "rounds 4" in said and "cleveland (49 records)" in said
    (digest,) = re.findall(r"give --digest ([0-9a-f]{12}) to agree", said)
    wrong = party.run("silo", "approve", run, "--digest", "0" * 12, code=2)
    assert "nothing was approved" in wrong and "Traceback" not in wrong
    assert driver.poll() is None
    party.run("silo", "pause")
    assert json.loads(party.run("silo", "show", "--json"))["paused"] is True
    assert "is approved with terms" in party.run("silo", "approve", run, "--digest", digest)
    until(heart, driver, lambda: "has paused it" in heart.coordinator.log("run"))
    party.run("silo", "pause", "--end")
    assert driver.wait(timeout=HANGS) == 0, heart.coordinator.log("run")

    # A refusal ends the next run with its sentence; nothing is charged for it.
    party.run("silo", "refuse", run)
    assert "no run nothing waits" in party.run("silo", "approve", "nothing", code=2)
    driver = heart.coordinator.start("run", "heart.yaml", "repetition=1")
    until(heart, driver, lambda: len(json.loads(party.run("silo", "show", "--json"))["undecided"]) == 1)
    (second,) = json.loads(party.run("silo", "show", "--json"))["undecided"]
    party.run("silo", "refuse", second)
    assert driver.wait(timeout=HANGS) == 3
    said = heart.coordinator.log("run")
    assert f"has refused run {second}" in said and "Traceback" not in said
    heart.stop("cleveland")
    assert second not in party.run("budget", "show", "cleveland", "--json")
    assert "is refused no more" in party.run("silo", "approve", second)


def test_a_run_goes_on_without_a_silo_that_is_away(heart):
    heart.carry()
    for name in heart.names:
        heart.join(name)
    heart.serve("cleveland", "hungary")
    heart.config(rounds=5)
    skip = ("participation.absent=skip", "participation.deadline=4")
    refused = heart.coordinator.run("run", "heart.yaml", *skip, "participation.minimum=4", code=2)
    assert "participation.minimum = 4, but 3 silos may be asked" in refused and "Traceback" not in refused
    heart.coordinator.run("run", "heart.yaml", *skip)
    (folder,) = (heart.coordinator.folder / "home" / "runs").glob("*/result.json")
    silos = {each["silo"]: each for each in json.loads(folder.read_text())["silos"]}
    assert {name: each["releases"] for name, each in silos.items()} == {"cleveland": 5, "hungary": 5, "virginia": 0}
    # What a silo that was away may have been charged is not known, so all of the plan is shown.
    assert silos["virginia"]["epsilon"] == pytest.approx(2.0, rel=1e-3)
    # It comes back, and finds the end of a run that it never began.
    heart.serve("virginia")
    end = time.monotonic() + HANGS
    while "close_run of run heart-" not in heart.silos["virginia"].log("silo"):
        assert time.monotonic() < end, heart.silos["virginia"].log("silo")
        time.sleep(0.1)
