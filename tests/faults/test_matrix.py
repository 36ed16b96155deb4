"""SIGKILL at every step boundary of the release path and of the driver, then a resume: nothing is lost or doubled.

Each cell kills a process of its own by SIGKILL and looks at what an observer outside saw. The driver here is the real
one (`flows.training`) without Prefect and MLflow, in a forked child; tests/faults/test_engines.py has the engines.
"""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import shutil
import signal
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import pytest

from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.experiment import Experiment, make_plan
from fedcore.federation.rounds import rounds
from fedcore.home import Home, LedgerFolders
from fedcore.ledger.account import account
from fedcore.ledger.sqlite import SqliteLedger
from fedcore.ledger.storage.verify import faults
from fedcore.optim.averaging import Messages
from fedcore.silo.policies.policy_in_force import utc_now
from fedcore.silo.registration import register_silos
from flows.commands.accounts.sources import silo_sources
from flows.driver.session import Session
from flows.training import train
from tests.faults.planted import DRIVER, RELEASE, STEPS, plant
from tests.gaussian_curve import epsilon_by_hand
from tests.patience import HANGS
from tests.policies import write_policy

pytestmark = pytest.mark.faults
PHASES = (3, 2, 1)
SILOS = 2
EPSILON, DELTA = 3.0, 1e-5


def config(ledger: str) -> ExperimentConfig:
    return ExperimentConfig.model_validate(
        {
            "name": "matrix",
            "seed": 4,
            "cluster": {"backend": "in-process"},
            "tracking": {"mlflow": False},
            "data": {"source": "synthetic", "silos": SILOS, "records": 60, "features": 5, "test_records": 40},
            "privacy": {
                "epsilon": EPSILON,
                "delta": DELTA,
                "ledger": "memory" if ledger == "memory" else "sqlite",
                "noise": "guarded" if ledger == "guarded" else "seeded",
            },
            "algorithm": {"name": "localized-mbsgd", "step": 1, "lam": 0.01, "rounds": [*PHASES], "max_phases": 3},
        }
    )


def child(folder: Path, ledger: str, step: str | None, count: int) -> None:
    """Drives the run from its present state to its end, in a separate process."""
    places = {
        "FEDCORE_HOME": "home",
        "FEDCORE_POLICIES": "policies",
        "FAULT_SENT": "sent",
        "FAULT_FILE": "hit",
        "FEDCORE_REGISTER": "register",
    }
    os.environ.update({name: str(folder / place) for name, place in places.items()})
    (folder / "policies").mkdir(exist_ok=True)
    if ledger == "guarded":
        write_policy(folder / "policies")
        home = Home(folder / "home").make()
        register_silos(silo_sources(config(ledger), home.silos), home.ledger_folders, True, lambda *_: False, utc_now)
    plant(step, count)

    def all_rounds(training) -> None:
        while training.phase is not None:
            training.advance()

    with Session.of_driver(Home.current().make()) as session:
        train(config(ledger), session, all_rounds)


@pytest.fixture(scope="session")
def processes():
    context = multiprocessing.get_context("forkserver")
    # This module brings what a child needs: a child that imports it by itself takes four times as long.
    context.set_forkserver_preload([__name__, "flows.training", "pandas", "pyarrow.parquet"])
    return context


@pytest.fixture(scope="session")
def silo_files(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("silos")


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory, silo_files) -> dict[str, np.ndarray]:
    """Final weights of an undisturbed plain loop, by ledger (it is part of a run's parameters)."""
    found = {}
    for ledger in ("memory", "sqlite"):
        folder, made = tmp_path_factory.mktemp("undisturbed"), config(ledger)
        experiment = Experiment.prepare(made, silo_files)
        backend = experiment.in_process(LedgerFolders.below(folder))
        backend.open()
        *_, (_, _, last) = rounds(experiment.context, made.algorithm.init(experiment.start()), backend.ask)
        backend.close()
        found[ledger] = made.algorithm.output(last)
    return found


def run(processes, *arguments) -> int:
    process = processes.Process(target=child, args=arguments)
    process.start()
    process.join(HANGS)
    return process.exitcode


def sent(folder: Path) -> dict[str, dict[tuple[int, int], set[str]]]:
    """Releases that left the silos, seen from outside: digests of the bytes by silo and address."""
    seen: dict[str, dict[tuple[int, int], set[str]]] = defaultdict(lambda: defaultdict(set))
    path = folder / "sent"
    for line in path.read_text().splitlines() if path.exists() else []:
        silo, phase, round, digest = line.split()
        seen[silo][int(phase), int(round)].add(digest)
    return seen


PLAN = make_plan(config("memory"))


def true_epsilon(addresses, silo: str) -> float:
    """Epsilon of the answers at these addresses, from the plan's sigma by the formula, written anew."""
    counts, worst = Counter(phase for phase, _ in addresses), 0.0
    for phase in PLAN.phases:
        share = phase.by_silo[silo]
        mu_squared = counts[phase.index] * (2 * phase.question.clip * 1.000001 / share.batch / share.sigma) ** 2
        worst = max(worst, mu_squared)  # phases use other records
    return epsilon_by_hand(math.sqrt(worst), DELTA)


def accounts(folder: Path) -> dict[str, dict]:
    folders, found = LedgerFolders.below(folder / "home"), {}
    for version, silo in folders.found():
        assert faults(silo, *folders.of(version, silo)) == []
        ledger = SqliteLedger(silo, *folders.of(version, silo))
        found[silo] = account(ledger)
        ledger.close()
    return found


def occurrences(step: str, ledger: str, full: bool) -> list[int]:
    """Numbers of the killed occurrences: one in the middle of phase 2, and with `full` the first and the last too."""
    per_round, per_silo_round = sum(PHASES), sum(PHASES) * SILOS
    once = {
        "before the cap check": SILOS,
        "after the cap check, before its commit": SILOS,
        "run approved by one silo": SILOS,
        "approval committed, before the anchor": 2 * SILOS,
        "before the ledgers are compared": 1,
        "before the run is closed": 1,
        "closed at one silo": SILOS,
        "closed, before the result": 1,
        "between two result files": 2,
    }
    # Silos with ledgers in memory answer a round in columns.
    of_rounds = (set(RELEASE) if ledger == "memory" else {"before the send", "after the send"}) | set(DRIVER)
    if step in once:
        return [1, once[step]] if full and once[step] > 1 else [once[step]]
    # Where the ledger itself is wrapped, the silos' openings and approvals come first. An approval's transaction also
    # has the entry of the lease.
    ahead = SILOS * {"after COMMIT, before the anchor": 2, "in the transaction, before COMMIT": 3}.get(step, 0)
    last = per_round if step in of_rounds else per_silo_round
    middle = 4 if step in of_rounds else 3 * SILOS + 2  # in the first round of phase 2
    return [ahead + 1, ahead + middle, ahead + last] if full else [ahead + middle]


def folded(folder: Path) -> np.ndarray:
    """The model that a server computes from the ledgers' bytes; with secret keys no run can be repeated elsewhere."""
    folders, payloads = LedgerFolders.below(folder / "home"), defaultdict(dict)
    for version, silo in folders.found():
        ledger = SqliteLedger(silo, *folders.of(version, silo))
        (run,) = ledger.charges()
        for row in ledger.rows(run):
            payloads[row.phase, row.round][silo] = np.frombuffer(ledger.find(run, row.phase, row.round).payload)
        ledger.close()
    method = config("guarded").algorithm
    state = method.init(np.zeros(PLAN.problem.objective.dim))
    for phase in PLAN.phases:
        for round in range(1, phase.rounds + 1):
            answers = payloads[phase.index, round]
            state = method.server_update(state, Messages(enumerate(answers[silo] for silo in sorted(answers))), phase)
    return method.output(state)


GUARDED = (
    "after the cap check, before its commit",
    "before the noise on the grid",
    "after the noise on the grid",
    "in the transaction, before COMMIT",
    "after COMMIT, before the anchor",
    "after the send",
    "in the checkpoint, before COMMIT",
    "closed at one silo",
)
"""Steps that are also killed with secret keys."""


BOUNDED = {
    "memory": ("after the commit in memory", "in the checkpoint, before COMMIT", "after the send"),
    "guarded": ("after the noise on the grid", "after COMMIT, before the anchor"),
}
"""Of these ledgers, what every `make test` kills; of sqlite, it is one occurrence of each step."""


def cells(full: bool):
    for step, place in STEPS.items():
        for ledger in ("memory", "sqlite", "guarded"):
            if (step in GUARDED) if ledger == "guarded" else place.ledger in ("both", ledger):
                bounded = occurrences(step, ledger, False) if ledger not in BOUNDED or step in BOUNDED[ledger] else []
                for count in occurrences(step, ledger, full):
                    marks = [] if count in bounded else [pytest.mark.slow, pytest.mark.minutes, pytest.mark.hours]
                    yield pytest.param(step, ledger, count, marks=marks, id=f"{step}-{ledger}-{count}")


@pytest.fixture
def folder(tmp_path, silo_files):
    """A home with the silos of the run in it, which are made once."""
    shutil.copytree(silo_files, tmp_path / "home" / "silos")
    return tmp_path


@pytest.mark.parametrize("step, ledger, count", list(cells(full=True)))
def test_a_kill_at_a_step_loses_and_doubles_nothing(processes, undisturbed, folder, fault_table, step, ledger, count):
    assert run(processes, folder, ledger, step, count) == -signal.SIGKILL
    assert (folder / "hit").read_text().split("|")[0] == step  # it was hit there and nowhere else

    before = sent(folder)
    if ledger != "memory":
        for silo, account in accounts(folder).items():
            true = true_epsilon(before[silo], silo)
            assert account["epsilon_spent"] >= true * (1 - 1e-9)
            assert account["epsilon_charged"] >= account["epsilon_spent"] * (1 - 1e-9)
            assert sum(run["releases"] for run in account["runs"]) >= len(before[silo])

    assert run(processes, folder, ledger, None, 1) == 0
    (results,) = (folder / "home" / "runs").glob("*/result.json")
    result, weights = json.loads(results.read_text()), json.loads((results.parent / "model.json").read_text())["w"]
    expected = folded(folder) if ledger == "guarded" else undisturbed[ledger]
    np.testing.assert_array_equal(np.array(weights), expected)

    after = sent(folder)
    planned = [(phase, round) for phase, count in enumerate(PHASES, 1) for round in range(1, count + 1)]
    assert len(after) == SILOS
    for silo, addresses in after.items():
        assert sorted(addresses) == planned
        assert all(len(digests) == 1 for digests in addresses.values()), "an address had two payloads"
        for address, digests in before[silo].items():
            assert addresses[address] == digests
    reported = {silo["silo"]: silo for silo in result["silos"]}
    for silo in after:
        true = true_epsilon(after[silo], silo)
        assert reported[silo]["releases"] == len(planned)
        assert true * (1 - 1e-9) <= reported[silo]["epsilon"] <= EPSILON * (1 + 1e-9)
        assert true == pytest.approx(EPSILON, rel=1e-5)  # the target is what was planned for
    if ledger != "memory":
        for silo, account in accounts(folder).items():
            assert [(run["state"], run["releases"]) for run in account["runs"]] == [("closed", len(planned))]
            assert account["epsilon_charged"] == pytest.approx(true_epsilon(after[silo], silo), rel=1e-9)
    fault_table.add("driver with silos" if step in RELEASE else "driver", step, ledger, count)


def test_every_step_of_the_matrix_is_a_place_in_the_code_that_runs(processes, tmp_path):
    """The control: without a planted kill the same checks hold."""
    assert run(processes, tmp_path, "sqlite", None, 1) == 0
    assert not (tmp_path / "hit").exists()
    assert {silo: len(addresses) for silo, addresses in sent(tmp_path).items()} == {
        f"silo-{number:03d}": sum(PHASES) for number in range(SILOS)
    }
