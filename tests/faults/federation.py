"""A small run of a few seconds, its drivers, and checks of the files and records that it leaves."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import yaml

from fedcore.experiment.experiment import Experiment, make_plan
from fedcore.experiment.identity import run_id
from fedcore.experiment.loading import load_experiment
from fedcore.federation.rounds import rounds
from fedcore.home import Home, LedgerFolders
from flows.driver.session import Session
from flows.training import train
from tasks.run_file import read_done, read_meta
from tasks.training import Training
from tests.patience import HANGS


@dataclass
class Federation:
    """One config in one home, driven by the real command line in processes of its own, or in this process."""

    home: Path
    config: Path
    log: Path

    @classmethod
    def make(cls, home: Path, name: str, phases: Sequence[int] = (40, 20, 10), **sections: object) -> Federation:
        values = {
            "name": name,
            "data": {"source": "synthetic", "silos": 6, "records": 300, "features": 15, "test_records": 200},
            "privacy": {"epsilon": 4},
            "algorithm": {"name": "localized-mbsgd", "step": 1, "lam": 0.01, "rounds": [*phases], "max_phases": 3},
            **sections,
        }
        folder = home / "configs"
        folder.mkdir(parents=True, exist_ok=True)
        config = folder / f"{name}.yaml"
        config.write_text(yaml.safe_dump(values))
        return cls(home, config, folder / f"{name}.log")

    @property
    def run(self) -> str:
        return run_id(load_experiment(self.config))

    @property
    def store(self) -> Path:
        return self.home / "runs" / self.run / "checkpoint.sqlite"

    def start(self, *arguments: str, program: Sequence[str] = ("-m", "flows.commands.app")) -> subprocess.Popen[str]:
        environment = {**os.environ, "FEDCORE_HOME": str(self.home), "FEDCORE_SILO_LOG": str(self.log)}
        return subprocess.Popen(
            [sys.executable, *program, *arguments],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def call(self, *arguments: str, code: int = 0) -> str:
        process = self.start(*arguments)
        out, err = process.communicate(timeout=HANGS)
        assert process.returncode == code, (process.returncode, out, err)
        return out if code == 0 else err

    def drive(self) -> None:
        """The run in this process, without Prefect."""

        def all_rounds(training: Training) -> None:
            while training.phase is not None:
                training.advance()

        with Session.of_driver(Home(self.home).make()) as session:
            train(load_experiment(self.config), session, all_rounds)

    def resume(self) -> dict:
        return json.loads(self.call("resume", self.run, "--json"))

    def wait_for_rounds(self, process: subprocess.Popen[str], count: int) -> None:
        until = time.monotonic() + HANGS
        while read_done(self.store) < count:
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < until, "too slow"
            time.sleep(0.002)

    def state(self) -> str:
        return next(run["state"] for run in json.loads(self.call("runs", "--json")) if run["run"] == self.run)

    def meta(self) -> dict[str, str]:
        return read_meta(self.store)

    def computed(self) -> Counter[tuple[int, int, str]]:
        """Number of times that each silo finished computing each round, from the sites' own log."""
        lines = [line.split() for line in self.log.read_text().splitlines()]
        return Counter((int(f[3]), int(f[4]), f[5]) for f in lines if f[1] == "end" and f[2] == self.run)

    def repeated_rounds(self) -> dict[str, int]:
        """Per silo, how many rounds it computed more than once."""
        again: Counter[str] = Counter()
        for (_, _, silo), count in self.computed().items():
            again[silo] += count > 1
        return dict(again)

    def undisturbed(self, scratch: Path) -> np.ndarray:
        """Final weights of the same config in a plain loop in this process, without any engine."""
        config = load_experiment(self.config)
        experiment = Experiment.prepare(config, scratch / "silos")
        backend = experiment.in_process(LedgerFolders.below(scratch))
        backend.open()
        state = config.algorithm.init(experiment.start())
        for _, _, after in rounds(experiment.context, state, backend.ask):
            state = after
        backend.close()
        return config.algorithm.output(state)

    def weights(self) -> np.ndarray:
        return np.array(json.loads((self.home / "runs" / self.run / "model.json").read_text())["w"])

    def mlflow_client(self):
        from mlflow import MlflowClient

        uri = f"sqlite:///{self.home / 'mlflow.db'}"
        return MlflowClient(tracking_uri=uri, registry_uri=uri)

    def mlflow_runs(self, kind: str) -> list:
        client = self.mlflow_client()
        experiments = [e.experiment_id for e in client.search_experiments()]
        query = f"tags.`fedcore.run_id` = '{self.run}' AND tags.`fedcore.kind` = '{kind}'"
        return list(client.search_runs(experiments, query))

    def check_complete(self, scratch: Path) -> None:
        """Checks everything that a finished run must show, whatever faults it had."""
        np.testing.assert_array_equal(self.weights(), self.undisturbed(scratch))
        config = load_experiment(self.config)
        phases = make_plan(config).phases
        planned = {str(phase.index): phase.rounds for phase in phases}
        result = json.loads((self.home / "runs" / self.run / "result.json").read_text())
        for silo in result["silos"]:
            kinds = [kind for phase in phases for kind in phase.kinds]
            counts = [kind.turns_of(silo["silo"]) if kind.schedule.in_turn else kind.rounds for kind in kinds]
            assert silo["releases"] == sum(counts)
        assert 0.999 * 4 <= result["epsilon_accounted"] <= 4
        if config.tracking.mlflow:
            self._check_mlflow(planned)

    def _check_mlflow(self, planned: dict[str, int]) -> None:
        parents, phases = self.mlflow_runs("experiment"), self.mlflow_runs("phase")
        assert [run.info.status for run in parents] == ["FINISHED"]
        assert sorted(run.data.tags["fedcore.phase"] for run in phases) == sorted(planned)
        for run in phases:
            assert run.info.status == "FINISHED"
            steps = [m.step for m in self.mlflow_client().get_metric_history(run.info.run_id, "test/error")]
            assert sorted(steps) == list(range(1, planned[run.data.tags["fedcore.phase"]] + 1))
