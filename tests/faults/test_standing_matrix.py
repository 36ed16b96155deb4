"""The matrix of kills where workers outlive their driver: under `fedcore up`, and on a cluster of one's own.

The driver is killed at each of its own steps, and while a worker is at each step of the release path. A resume begins
at once, while that worker goes on with its step. In further cases the worker is killed there, without a resume.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.experiment import Experiment
from fedcore.experiment.identity import run_id
from fedcore.federation.rounds import rounds
from fedcore.home import Home, LedgerFolders
from fedcore.ledger.account import account
from fedcore.ledger.sqlite import SqliteLedger
from fedcore.ledger.storage.verify import faults
from flows.driver.session import Session
from flows.runs import store_path
from flows.training import train
from tasks.run_file import read_done
from tests.faults.clusters import LedgerState, state
from tests.faults.planted import DRIVER, RELEASE, STEPS, plant, plant_anew
from tests.faults.test_matrix import PHASES, SILOS, sent
from tests.patience import HANGS, SLOWNESS

pytestmark = [pytest.mark.faults, pytest.mark.slow, pytest.mark.minutes]
AT_SITE = [
    *(step for step in RELEASE if STEPS[step].ledger in ("both", "sqlite")),
    "before the ledgers are compared",
    "before the run is closed",
    "closed at one silo",
    "closed, before the result",
]
ONCE = {step for step in AT_SITE if "approv" in step or "cap" in step or "closed" in step or "compared" in step}
CHOSEN = {
    "driver": ("after COMMIT, before the anchor", "closed at one silo", "after the checkpoint"),
    "worker": ("after the noise",),
}
"""Steps at which `make slow` kills; `make faults` kills at every step."""


def cells() -> Iterator[tuple[str, str, int]]:
    """Victim, step, and its occurrence at one worker or in the driver: in the first round of the second phase."""
    ahead = {"after COMMIT, before the anchor": 2, "in the transaction, before COMMIT": 3}
    for step in AT_SITE:
        count = 1 if step in ONCE else ahead.get(step, 0) + PHASES[0] + 1
        yield "driver", step, count
        if step in RELEASE:
            yield "worker", step, count
    for step in DRIVER:
        if step not in AT_SITE:
            yield "driver", step, 1 if "result" in step else PHASES[0] + 1


@pytest.fixture(scope="module", params=["up", "own"])
def stands(request, tmp_path_factory) -> Iterator[LedgerState]:
    with state(request.param, tmp_path_factory.mktemp(request.param)) as found:
        yield found


@pytest.fixture(scope="module")
def processes():
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, "flows.training", "pandas", "pyarrow.parquet", "tasks.workers.sites"])
    return context


def config(stands: LedgerState, seed: int, phases: Sequence[int] = PHASES) -> ExperimentConfig:
    return ExperimentConfig.model_validate(
        {
            "name": "state",
            "seed": seed,
            "cluster": stands.cluster,
            "tracking": {"mlflow": False},
            "data": {"source": "synthetic", "silos": SILOS, "records": 60, "features": 5, "test_records": 40},
            "privacy": {"epsilon": 3, "delta": 1e-5, "ledger": "sqlite"},
            "algorithm": {"name": "localized-mbsgd", "step": 1, "lam": 0.01, "rounds": [*phases], "max_phases": 3},
        }
    )


def child(
    stands: LedgerState,
    seed: int,
    environment: dict[str, str],
    step: str | None,
    count: int,
    go: Path,
    phases: Sequence[int] = PHASES,
) -> None:
    os.environ.update(environment | {"FEDCORE_HOME": str(stands.home)})
    if step is not None:
        plant(step, count)
    until = time.monotonic() + HANGS
    while not go.exists():
        assert time.monotonic() < until
        time.sleep(0.005)

    def all_rounds(training) -> None:
        while training.phase is not None:
            training.advance()

    with Session.of_driver(Home(stands.home)) as session:
        train(config(stands, seed, phases), session, all_rounds)


def undisturbed(made: ExperimentConfig, folder: Path) -> np.ndarray:
    experiment = Experiment.prepare(made, folder / "silos")
    backend = experiment.in_process(LedgerFolders.below(folder))
    backend.open()
    *_, (_, _, last) = rounds(experiment.context, made.algorithm.init(experiment.start()), backend.ask)
    backend.close()
    return made.algorithm.output(last)


def at_workers(stands: LedgerState, environment: dict[str, str], step: str | None, count: int) -> None:
    with stands.client() as client:
        client.wait_for_workers(2, timeout=HANGS)
        client.run(plant_anew, environment, step, count)


def addresses(phases: Sequence[int]) -> list[tuple[int, int]]:
    return [(phase, round) for phase, count in enumerate(phases, 1) for round in range(1, count + 1)]


def check(stands: LedgerState, made: ExperimentConfig, scratch: Path, phases: Sequence[int]) -> None:
    """The bits are those of an undisturbed run, and every ledger is whole and shows each release once."""
    folder, planned = stands.home / "runs" / run_id(made), addresses(phases)
    weights = np.array(json.loads((folder / "model.json").read_text())["w"])
    np.testing.assert_array_equal(weights, undisturbed(made, scratch))
    folders, seen = LedgerFolders.below(stands.home), 0
    for version, silo in folders.found():
        assert faults(silo, *folders.of(version, silo)) == []
        ledger = SqliteLedger(silo, *folders.of(version, silo))
        charged = [run for run in account(ledger)["runs"] if run["run"] == run_id(made)]
        found = [(row.phase, row.round) for row in ledger.rows(run_id(made))]
        ledger.close()
        if charged:
            assert [(run["state"], run["releases"]) for run in charged] == [("closed", len(planned))]
            assert sorted(found) == planned
            seen += 1
    assert seen == SILOS


@pytest.mark.parametrize("victim, step, count", list(cells()))
def test_a_kill_where_workers_live_on_loses_and_doubles_nothing(
    processes, stands, tmp_path, request, fault_table, victim, step, count
):
    if step not in CHOSEN[victim] and not request.config.getoption("--fault-table"):
        pytest.skip("`make faults` kills at every step")
    seed = 100 + list(cells()).index((victim, step, count))
    made, here = config(stands, seed), step in AT_SITE
    environment = {"FAULT_SENT": str(tmp_path / "sent"), "FAULT_FILE": str(tmp_path / "hit")}
    go = tmp_path / "go"
    first = processes.Process(target=child, args=(stands, seed, environment, None if here else step, count, go))
    first.start()
    victims = {"driver": str(first.pid), "worker": "self"}
    at_workers(stands, environment | {"FAULT_VICTIM": victims[victim]}, step if here else None, count)
    go.touch()
    first.join(HANGS)
    assert (tmp_path / "hit").read_text().split("|")[0] == step
    took = 0.0
    if victim == "worker":
        assert first.exitcode == 0
    else:
        assert first.exitcode == -signal.SIGKILL
        began = time.monotonic()  # nothing is waited for: the worker may be in the middle of it
        second = processes.Process(target=child, args=(stands, seed, environment, None, 1, go))
        second.start()
        second.join(HANGS)
        took = time.monotonic() - began
        assert second.exitcode == 0

    check(stands, made, tmp_path, PHASES)
    planned = addresses(PHASES)
    after = sent(tmp_path)
    assert all(len(digests) == 1 for addresses in after.values() for digests in addresses.values()), "two payloads"
    if victim == "driver":  # a worker that is made again is not planted
        assert {silo: sorted(addresses) for silo, addresses in after.items()} == {silo: planned for silo in after}
    kind = "`up`" if "address" not in stands.cluster else "a cluster of one's own"
    fault_table.add(f"{victim if victim == 'driver' else 'Dask worker'} of {kind}", step, "sqlite", count)
    print(f"{kind} {victim} {step}: {took:.1f} s")


WITHIN = 30.0 * SLOWNESS
"""Seconds from the start of a driver to the next round of its run, where the driver before was killed."""


def test_drivers_killed_at_random_rounds_are_resumed_at_once(processes, stands, tmp_path, request):
    """Twenty in `make faults`, one after another, of two runs."""
    each, took = 10 if request.config.getoption("--fault-table") else 2, list[float]()
    for number in range(2):
        phases, drawn = (40 * each, 20, 10), random.Random(number)
        made = config(stands, number, phases)
        store = store_path(Home(stands.home), run_id(made))
        environment = {"FAULT_SENT": str(tmp_path / f"sent-{number}")}
        go = tmp_path / "go"
        go.touch()
        for kill in range(each + 1):
            before, began = read_done(store), time.monotonic()
            driver = processes.Process(target=child, args=(stands, number, environment, None, 1, go, phases))
            driver.start()
            while read_done(store) <= before:
                assert driver.is_alive() and time.monotonic() < began + HANGS
                time.sleep(0.002)
            if kill:
                took.append(time.monotonic() - began)
                print(f"resumed within {took[-1]:.1f} s", flush=True)
            if kill < each:
                at = drawn.randint(before + 2, max(before + 3, 40 * (kill + 1)))
                while read_done(store) < at:
                    assert driver.is_alive() and time.monotonic() < began + HANGS
                    time.sleep(0.002)
                driver.kill()
            driver.join(HANGS)
        assert driver.exitcode == 0
        check(stands, made, tmp_path / f"undisturbed-{number}", phases)
    kind = "up" if "address" not in stands.cluster else "own"
    print(f"{kind}: {len(took)} drivers killed, {np.median(took):.1f} s (median), {max(took):.1f} s (most)")
    assert max(took) < WITHIN
