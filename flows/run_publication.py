"""Publishes a run to MLflow and its folder: config at the start, result and privacy cost at the end."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fedcore.configfile.yaml_writer import yaml_block
from fedcore.directed_rounding import number_up
from fedcore.experiment.experiment import Experiment
from fedcore.experiment.patience import PatienceConfig
from fedcore.experiment.result import AbandonedRun, RunResult
from fedcore.experiment.served.phase_model import phase_model
from fedcore.experiment.statistics import plan_as_json
from fedcore.experiment.stored.configs import shown_experiment
from fedcore.printable import in_markdown
from flows.driver.session import Session
from tasks.result_file import jsonable, write_atomically
from tasks.run_parameters import run_parameters
from tasks.run_store import RunStore
from tasks.statement import evaluation_metrics, privacy_tags, recall_metrics
from tasks.tracking.run_writer import cell_tag
from tasks.tracking.tracker import TrackedRun
from tasks.training import Training

_SPENT = ("epsilon_accounted", "epsilon_statistics", "epsilon_training", "epsilon_paper", "epsilon_shuffled", "delta")
_MEASURED = (
    "test_error",
    "test_loss",
    "rounds",
    "seconds",
    "majority_error",
    "test_auc",
    "test_rmse",
    "test_mae",
    "variance_explained",
    "silo_mean_error",
)


class RunPublication:
    """Publication of one run. `name`: of the run in MLflow.

    For a cell, `sweep` is the sweep's id and `patience` its rule of choice.
    """

    def __init__(
        self,
        experiment: Experiment,
        session: Session,
        sweep: str | None,
        name: str,
        flow_run: dict[str, str],
        patience: PatienceConfig | None,
    ) -> None:
        self._experiment, self._session = experiment, session
        self.sweep, self._name, self._flow_run, self._patience = sweep, name, flow_run, patience

    def begin(self) -> TrackedRun:
        """Opens the run in MLflow."""
        experiment = self._experiment
        config = experiment.config
        tags = {"fedcore.method": config.algorithm.name, "fedcore.trust": config.privacy.trust}
        tags |= {"fedcore.sweep": self.sweep, cell_tag(self.sweep): "yes"} if self.sweep else {}
        tags |= {f"prefect.{key}": value for key, value in self._flow_run.items()}
        params = run_parameters(config, experiment.plan, experiment.statistics)
        return self._session.track(experiment, self._name, params, tags | self._shown(self._statement(None)))

    def _shown(self, statement: Mapping[str, str]) -> dict[str, str]:
        """Tags of the run: the statement, and the description on its page in MLflow."""
        note = in_markdown(statement["privacy.statement"])
        if self._patience is not None:
            note += f" {in_markdown(self._patience.statement)}."
        if "flow_run_url" in self._flow_run:
            note += f"\n\n[Flow run in Prefect]({self._flow_run['flow_run_url']})"
        return {**statement, "mlflow.note.content": note}

    def write(self, result: RunResult | AbandonedRun) -> None:
        """Writes the files of a run that has ended, except its model."""
        for name, text in self._texts(result).items():
            write_atomically(self._session.home.runs / result.run / name, text.encode())

    def write_all(self, result: RunResult, w: np.ndarray) -> None:
        """Writes the files of a finished run, with its model."""
        self.write(result)
        self._write_model(w, result)

    def _write_model(self, w: np.ndarray, result: RunResult) -> None:
        weights = {"w": w.tolist(), "shape": phase_model(self._experiment, w).weights_shape}
        path = self._session.home.runs / self._experiment.run / "model.json"
        write_atomically(path, jsonable({**weights, **self._statement(result)}))

    def finish(self, tracker: TrackedRun, w: np.ndarray, result: RunResult) -> None:
        """Sends result, files, model and privacy statement to MLflow's writer."""
        classes = self._experiment.config.data.label_values
        recall = recall_metrics(result.test_recall or {}, classes)
        held_out = {} if result.at_last is None else evaluation_metrics(result.at_last, classes)
        statement = self._statement(result)
        if any(silo.disjoint for silo in result.silos):
            tracker.set_tags(self._shown(statement))
        tracker.finish(
            "FINISHED",
            _metrics(result) | recall | held_out,
            self._texts(result),
            phase_model(self._experiment, w),
            register_as=self._registered,
            privacy_tags=statement,
        )
        self._session.finished(self._experiment.run)

    def finish_again(self, store: RunStore, result: RunResult) -> None:
        """Publishes a finished run again, whose driver ended before MLflow had all of it."""
        tracker, training = self._again(store)
        self.finish(tracker, training.model, result)

    def abandon(self, tracker: TrackedRun, ended: AbandonedRun) -> None:
        """Ends the run in MLflow without a model: KILLED with a reason, for lack of an ABANDONED state."""
        tracker.set_tags({"fedcore.abandoned": ended.sentence})
        spent = {} if ended.epsilon_spent is None else {"epsilon_spent": number_up(ended.epsilon_spent)}
        tracker.finish("KILLED", {"rounds": float(ended.round), **spent}, self._texts(ended))
        self._session.finished(self._experiment.run)

    def abandon_again(self, store: RunStore, ended: AbandonedRun) -> None:
        """Publishes an abandoned run again."""
        tracker, _ = self._again(store)
        self.abandon(tracker, ended)

    def _again(self, store: RunStore) -> tuple[TrackedRun, Training]:
        tracker = self.begin()
        training = Training(self._experiment, None, store, tracker)
        training.load()
        training.track_again()
        return tracker, training

    @property
    def _registered(self) -> str | None:
        """Name of the registered model; None for a model without privacy, or by the config."""
        config = self._experiment.config
        wanted = {"cells": True, "runs": self.sweep is None, "none": False}[config.tracking.register_models]
        return config.name if wanted and config.privacy.trust != "none" else None

    def _statement(self, result: RunResult | None) -> dict[str, str]:
        """Privacy statement of the run; with a result, including declarations of silos' operators."""
        experiment, silos = self._experiment, () if result is None else result.silos
        chosen = {} if self._patience is None else {"privacy.choice": self._patience.statement}
        return privacy_tags(experiment.config, experiment.plan, experiment.statistics, silos) | chosen

    def _texts(self, result: RunResult | AbandonedRun) -> dict[str, str]:
        """Texts of the run's files, which are also its artifacts in MLflow, by name."""
        experiment = self._experiment
        return {
            "config.yaml": yaml_block(shown_experiment(experiment.config, self._session.home.anchor)),
            "plan.json": jsonable(plan_as_json(experiment.plan, experiment.statistics)).decode(),
            "ledger.json": jsonable(
                {"noise": result.noise, "silos": [silo.as_json() for silo in result.silos]}
            ).decode(),
            ("result.json" if isinstance(result, RunResult) else "abandoned.json"): jsonable(result.as_json()).decode(),
        }


def _metrics(result: RunResult) -> dict[str, float]:
    """The result as metrics. MLflow's pages show all digits, so epsilons and delta are rounded up."""
    measured = {key: float(value) for key in _MEASURED if (value := getattr(result, key)) is not None}
    return measured | {key: number_up(value) for key in _SPENT if (value := getattr(result, key)) is not None}
