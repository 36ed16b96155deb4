"""A hostile driver against the policies of silos: over the price, the number of runs, methods, losses, time and guards.

In process and over Dask; each run opens the silos anew, so that all that is remembered is on disk. Nothing here uses
the product's model of a policy: files are written by hand.
"""

from __future__ import annotations

import dataclasses
import math
import os
from datetime import date, timedelta

import pytest

from fedcore.accounting.filters import Charge
from fedcore.errors import SiloError
from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.experiment import Experiment
from fedcore.federation.in_process import InProcess
from fedcore.federation.rounds import rounds
from fedcore.home import LedgerFolders
from fedcore.ledger.account import account
from fedcore.ledger.sqlite import SqliteLedger
from tasks.workers.cluster import local_cluster
from tasks.workers.sites import DaskSites
from tests.gaussian_curve import epsilon_by_hand, mu_by_hand
from tests.patience import HANGS
from tests.policies import write_policy
from tests.registers import registered

DELTA = 1e-5
DATA = {"source": "synthetic", "silos": 2, "records": 60, "features": 3, "test_records": 9}


class Door:
    """A driver's access to silos whose policies are in the folder `policies`."""

    def __init__(self, policies, client) -> None:
        self.policies, self.client = policies, client

    def backend(self, made, folder):
        folders = LedgerFolders.below(folder)
        registered(made, folders)
        if self.client is not None:
            place = os.environ["FEDCORE_REGISTER"]
            self.client.run(exec, f"import os; os.environ['FEDCORE_REGISTER'] = {place!r}")
        if self.client is None:
            return made.in_process(folders)
        return DaskSites(self.client, made, folders, deadline=HANGS)

    def play(self, made, folder, count=None) -> list[list[bytes]]:
        """Opens the silos, asks `count` rounds (None: all), closes the silos; the bytes of each round."""
        backend = self.backend(made, folder)
        try:
            backend.open()
            loop = rounds(made.context, made.config.algorithm.init(made.start()), backend.ask)
            number = made.plan.rounds if count is None else count
            return [[release.payload.tobytes() for release in next(loop)[1]] for _ in range(number)]
        finally:
            backend.close()


@pytest.fixture(scope="module", params=["in-process", "dask"])
def door(request, tmp_path_factory):
    policies = tmp_path_factory.mktemp("policies")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDCORE_POLICIES", str(policies))
        if request.param == "in-process":
            yield Door(policies, None)
            return
        with local_cluster(1) as client:
            yield Door(policies, client)


def experiment(folder, epsilon=2.0, repetition=0, model=None, noise="guarded", **algorithm) -> Experiment:
    config = ExperimentConfig.model_validate(
        {
            "data": DATA,
            "repetition": repetition,
            "model": model or {},
            "privacy": {"epsilon": epsilon, "delta": DELTA, "ledger": "sqlite", "noise": noise},
            "algorithm": {"name": "mbsgd", "rounds": 5, **algorithm},
        }
    )
    return Experiment.prepare(config, folder / "silos")


def refused(act, *arguments) -> str:
    """The sentence with which the silos' policy refuses."""
    with pytest.raises(SiloError) as caught:
        act(*arguments)
    assert caught.value.code == "policy", caught.value
    return caught.value.sentence


def charged(folder) -> dict[str, list[str]]:
    """By silo, the runs that its ledger has ever approved."""
    found = {}
    for version, silo in LedgerFolders.below(folder).found():
        ledger = SqliteLedger(silo, *LedgerFolders.below(folder).of(version, silo))
        found[silo] = [run["run"] for run in account(ledger)["runs"]]
        ledger.close()
    return found


def test_a_server_cannot_name_the_price(door, tmp_path):
    """An attack with epsilon 20 on top of 2. It reserves nothing, and the rest of the budget stays available."""
    write_policy(door.policies, cap={"epsilon": 3, "delta": DELTA})
    first = experiment(tmp_path)
    door.play(first, tmp_path)
    left = epsilon_by_hand(math.sqrt(mu_by_hand(3, DELTA) ** 2 - mu_by_hand(2, DELTA) ** 2), DELTA)
    shown = math.floor(left * 1e3) / 1e3  # never more than is left
    assert 1 < left < 10
    greedy = experiment(tmp_path, 20.0, repetition=1)
    for _ in range(2):  # asked again, after the silos were closed
        sentence = refused(door.play, greedy, tmp_path)
        asked = f"over all runs ({shown} left); run {greedy.run} asks for 20"
        assert sentence == f"its policy allows cap.epsilon = 3 {asked}"
    # Was refused with a sentence about discrete noise.
    greedier = experiment(tmp_path, 60.0, repetition=2)
    assert "its policy allows cap.epsilon = 3 over" in refused(door.play, greedier, tmp_path)
    assert charged(tmp_path) == {"silo-000": [first.run], "silo-001": [first.run]}
    door.play(experiment(tmp_path, left * 0.999, repetition=3), tmp_path)
    refused(door.play, experiment(tmp_path, 0.1, repetition=4), tmp_path)


def test_one_run_cannot_take_all_that_is_left(door, tmp_path):
    write_policy(door.policies, one_run={"epsilon": 2, "delta": DELTA})
    greedy = experiment(tmp_path, 2.01)
    sentence = f"its policy allows one_run.epsilon = 2; run {greedy.run} asks for 2.01"
    assert refused(door.play, greedy, tmp_path) == sentence
    door.play(experiment(tmp_path, 2.0), tmp_path)


def test_a_server_cannot_choose_another_method_or_loss(door, tmp_path):
    write_policy(door.policies, methods=["mbsgd", "localized-subgradient"], losses=["logistic", "hinge"])
    for algorithm, model, line in (
        ({"name": "one-pass-mbsgd"}, {}, "methods = [localized-subgradient, mbsgd]"),
        ({}, {"loss": {"name": "huber"}}, "losses = [hinge, logistic]"),
        ({}, {"loss": {"name": "hinge"}, "smoothing": {"name": "moreau"}}, "losses = [hinge, logistic]"),
    ):
        made = experiment(tmp_path, model=model, **algorithm)
        message = refused(door.play, made, tmp_path)
        asked = "one-pass-mbsgd" if algorithm else model.get("smoothing", model["loss"])["name"]
        assert message == f"its policy allows {line}; run {made.run} asks for {asked}"
    assert all(runs == [] for runs in charged(tmp_path).values())
    door.play(experiment(tmp_path), tmp_path)


def test_a_server_cannot_run_more_often_than_allowed(door, tmp_path):
    """Runs count for good, also those that are closed and those that cost next to nothing."""
    write_policy(door.policies, runs=2)
    for repetition in range(2):
        door.play(experiment(tmp_path, 1e-3, repetition), tmp_path)
    one_more = experiment(tmp_path, 1e-3, 2)
    sentence = f"its policy allows runs = 2 (2 approved before); run {one_more.run} is one more"
    assert refused(door.play, one_more, tmp_path) == sentence
    door.play(experiment(tmp_path, 1e-3, 1), tmp_path)  # the same run is no new one


def test_after_expiry_nothing_new_is_answered_and_old_answers_are_repeated(door, tmp_path):
    write_policy(door.policies)
    made = experiment(tmp_path)
    first = door.play(made, tmp_path, 3)
    yesterday = date.today() - timedelta(days=2)
    write_policy(door.policies, expires=yesterday)
    assert door.play(made, tmp_path, 3) == first
    for again, count in ((made, 4), (experiment(tmp_path, repetition=1), 1)):
        message = refused(door.play, again, tmp_path, count)
        assert message.startswith(
            f"its policy allows nothing new after expires = {yesterday}; run {again.run} asks at "
        )
    assert charged(tmp_path) == {"silo-000": [made.run], "silo-001": [made.run]}


def test_a_run_that_a_new_policy_does_not_allow_gets_no_new_answer(door, tmp_path):
    write_policy(door.policies)
    made = experiment(tmp_path)
    first = door.play(made, tmp_path, 2)
    for change, line in (
        ({"methods": ["scaffold"]}, "methods = [scaffold]"),
        ({"cap": {"epsilon": 1.9, "delta": DELTA}}, "cap.epsilon = 1.9 over all runs (1.9 left)"),
        ({"one_run": {"epsilon": 1}}, "one_run.epsilon = 1"),
    ):
        write_policy(door.policies, **change)
        assert door.play(made, tmp_path, 2) == first
        assert f"its policy allows {line}" in refused(door.play, made, tmp_path, 3)
    write_policy(door.policies)
    assert door.play(made, tmp_path, 3)[:2] == first


@dataclasses.dataclass(frozen=True)
class Hostile(Experiment):
    """An experiment whose driver changes the site specs that it sends to workers."""

    def site_spec(self, *arguments):
        spec = super().site_spec(*arguments)
        return dataclasses.replace(spec, **HOSTILE)


HOSTILE: dict[str, object] = {}


@pytest.mark.parametrize(
    ("change", "code", "message"),
    [
        ({"guarded": False}, "policy", "it has a policy, so it is never opened unguarded"),
        ({"guarded": False, "ledger": "memory"}, "policy", "it has a policy, so it is never opened unguarded"),
        ({"ledger": "memory"}, "ledger", "it is guarded and needs privacy.ledger = sqlite"),
    ],
)
def test_a_word_of_the_driver_does_not_switch_protection_off(door, tmp_path, monkeypatch, change, code, message):
    write_policy(door.policies)
    made = experiment(tmp_path, noise="seeded" if "guarded" in change else "guarded")
    hostile = Hostile(made.config, made.run, made.dataset, made.plan, made.statistics)
    monkeypatch.setattr(f"{__name__}.HOSTILE", change)
    with pytest.raises(SiloError, match=message) as caught:
        door.play(hostile, tmp_path)
    assert caught.value.code == code
    # Nor does a policy that only one silo has, or that is a link which leads nowhere.
    (door.policies / "default.yaml").unlink()
    (door.policies / "silo-001.yaml").symlink_to(door.policies / "gone")
    try:
        with pytest.raises(SiloError, match="its policy cannot be read" if "guarded" in change else "has no policy"):
            door.play(hostile, tmp_path)
    finally:
        (door.policies / "silo-001.yaml").unlink()


def test_a_guarded_silo_without_a_policy_or_with_a_broken_one_answers_nothing(door, tmp_path):
    made, default = experiment(tmp_path), door.policies / "default.yaml"
    default.unlink(missing_ok=True)
    message = refused(door.play, made, tmp_path)
    assert f"its operator writes {door.policies / 'silo-000.yaml'}, or default.yaml beside it" in message
    for text in (
        "methods: [mbsgd",
        "",
        "[]",
        "methods: [mbsgd]\n",
        "\x00",
        write_policy(door.policies).read_text() + "secret_patient: 17\n",
    ):
        default.write_text(text)
        message = refused(door.play, made, tmp_path)
        tells = "`fedcore policy show silo-000` tells its operator what is wrong"
        assert message == f"its policy cannot be read; {tells}"
    write_policy(door.policies)
    door.play(made, tmp_path)


def test_a_driver_has_no_say_in_where_policies_are(door, tmp_path, monkeypatch):
    """The process that opens the silo looks there, by its own environment."""
    write_policy(door.policies, methods=["scaffold"])
    monkeypatch.setenv("FEDCORE_POLICIES", str(write_policy(tmp_path / "generous").parent))
    if door.client is None:
        door.play(experiment(tmp_path), tmp_path)  # one process, one environment
        return
    assert "its policy allows methods = [scaffold]" in refused(door.play, experiment(tmp_path), tmp_path)


def test_a_second_run_at_silos_that_stay_open_is_refused_too(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDCORE_POLICIES", str(write_policy(tmp_path / "p", cap={"epsilon": 3, "delta": DELTA}).parent))
    first, greedy = experiment(tmp_path), experiment(tmp_path, 20.0, repetition=1)
    backend = registered(first, LedgerFolders.below(tmp_path)).in_process(LedgerFolders.below(tmp_path))
    backend.open()
    message = refused(InProcess(backend._site, greedy.agreement).open)
    assert f"run {greedy.run} asks for 20" in message
    backend.close()


def test_other_terms_do_not_clear_a_run_that_a_new_policy_stopped(tmp_path, monkeypatch):
    """The silo knows the run, so it may come back; it must not come back under a method that is allowed now."""
    policies = tmp_path / "p"
    write_policy(policies)
    monkeypatch.setenv("FEDCORE_POLICIES", str(policies))
    made = experiment(tmp_path)
    Door(policies, None).play(made, tmp_path, 2)
    write_policy(policies, methods=["localized-mbsgd"])
    backend = made.in_process(LedgerFolders.below(tmp_path))
    backend.open()
    allowed = experiment(tmp_path, name="localized-mbsgd", rounds=2)
    with pytest.raises(SiloError, match="was approved with plan"):
        InProcess(backend._site, dataclasses.replace(allowed.agreement, run=made.run)).open()
    loop = rounds(made.context, made.config.algorithm.init(made.start()), backend.ask)
    for _ in range(2):
        next(loop)
    assert "its policy allows methods = [localized-mbsgd]" in refused(next, loop)
    assert {silo.releases for silo in backend.accounts(made.run)} == {2}
    backend.close()


def test_no_run_takes_the_place_of_what_a_ledger_has_lost(tmp_path):
    """The driver chooses run names. One that equalled the account's entry for a reconciliation replaced its charge."""
    path, anchor, one = tmp_path / "v" / "ash.sqlite", tmp_path / "ash.anchor", Charge(0.25, 2.0, DELTA)
    ledger = SqliteLedger("ash", path, anchor)
    ledger.open_run("a", "plan", b"a" * 32, one, None)
    ledger.close()
    copy = path.read_bytes()
    ledger = SqliteLedger("ash", path, anchor)
    ledger.open_run("b", "plan", b"b" * 32, one, None)
    ledger.close()
    path.write_bytes(copy)
    ledger = SqliteLedger("ash", path, anchor, fitting=False)
    ledger.reconcile()  # charges what b had
    small = Charge(1e-6, 1e-3, DELTA)
    for number in range(1, 4):
        ledger.open_run(f"reconciliation {number}", "plan", b"c" * 32, small, None)
    assert math.fsum(charge.mu_squared for charge in ledger.charges().values()) == 2 * 0.25 + 3 * 1e-6
    ledger.close()
