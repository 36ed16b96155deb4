"""A silo of another version than its coordinator: refused by a sentence with both, or answered as before."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from fedcore import __version__
from fedcore.data.federations.card import Card
from fedcore.data.federations.preparation import Preparation
from fedcore.errors import InputError
from fedcore.identity.keys import Identity
from fedcore.silo.agreement import FORM
from flows.driver.federated import check_versions
from tests.flows.federations.parties import Heart, Party
from tests.patience import HANGS

COLUMNS = {"features": {"age": {"range": [20, 90]}}, "label": "disease"}
OTHER = "import sys, fedcore; fedcore.__version__ = '9.9.9'; from fedcore.silo import agreement; "
OTHER_FORM = f"{OTHER} agreement.FORM = {FORM + 1}; "
SERVE = "from flows.commands.entry import main; sys.argv[1:] = ['silo', 'serve']; main()"


def card(**changes) -> Card:
    facts = {"fedcore": __version__, "agreement": FORM} | changes
    return Card("ab" * 32, "zurich", 40, "0" * 32, Preparation(**COLUMNS), keys=Identity.new().public, **facts)


def test_a_card_of_another_form_of_agreements_is_refused_with_both_versions():
    check_versions([card(), card(fedcore="9.9.9")])
    sentence = rf"zurich has fedcore 9\.9\.9, which reads .* form {FORM + 1}; this driver has {__version__} .* {FORM}\."
    with pytest.raises(InputError, match=sentence):
        check_versions([card(), card(fedcore="9.9.9", agreement=FORM + 1)])


def serving(party: Party, changes: str) -> subprocess.Popen[str]:
    """The service of a silo in a process that begins with these changes to fedcore."""
    with open(party.folder / "silo.log", "a") as log:
        return subprocess.Popen(
            [sys.executable, "-c", changes + SERVE],
            cwd=party.folder,
            env=party.environment,
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
            text=True,
        )


@pytest.mark.slow
@pytest.mark.minutes
def test_a_silo_that_is_upgraded_in_a_run_goes_on_or_is_refused_and_charges_nothing_more(tmp_path):
    heart = Heart(tmp_path)
    try:
        heart.carry()
        for name in heart.names:
            heart.join(name)
        heart.serve()
        heart.config(rounds=300)
        driver = heart.coordinator.start("run", "heart.yaml")
        party = heart.silos["hungary"]

        def until(condition) -> None:
            end = time.monotonic() + HANGS
            while not condition():
                assert time.monotonic() < end, heart.coordinator.log("run") + party.log("silo")
                time.sleep(0.05)

        until(lambda: party.log("silo").count("answer of run") >= 10)
        heart.stop("hungary")
        before = party.log("silo").count("answer of run")
        heart.processes["hungary"] = serving(party, OTHER)
        until(lambda: party.log("silo").count("answer of run") >= before + 10 or driver.poll() is not None)
        assert driver.poll() is None, "the same form: it goes on with the approved run"

        heart.stop("hungary")
        heart.processes["hungary"] = serving(party, OTHER_FORM)
        assert driver.wait(timeout=HANGS) == 3
        said = heart.coordinator.log("run")
        assert "hungary" in said and f"an agreement of form {FORM + 1}" in said and "Traceback" not in said
        heart.stop("hungary")
        answered = party.log("silo").count(": answered")
        heart.serve("hungary")
        heart.coordinator.run("run", "heart.yaml")
        assert party.log("silo").count(": answered") > answered
    finally:
        heart.close()
