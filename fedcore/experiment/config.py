"""The config of an experiment as pydantic models; the same models are the parameters of the Prefect flows.

The sections of data (`data_config.py`), model (`model_config.py`) and plan (`plan_config.py`) are in their packages;
`compatibility.py` checks that sections fit together. Only these models define defaults. `conf/reference.yaml` explains
every key; a test holds the two equal. Unknown keys are refused.

Keys that change the result of a run are part of its identity (`fedcore.experiment.identity`). `cluster`,
`orchestration` and `tracking` only configure its execution, and are not.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from fedcore.algorithms import AlgorithmConfig
from fedcore.data.constants.pca import PcaConfig
from fedcore.data.constants.scaling import ReleasedScaling
from fedcore.data.data_config import DataConfig
from fedcore.data.sources.alpha_beta import AlphaBetaData
from fedcore.data.sources.hospitals import HospitalsData
from fedcore.data.sources.images import DigitsData, ImageData
from fedcore.data.tabular import FilesData, OwnTable
from fedcore.experiment.compatibility import (
    check_absent,
    check_aggregated,
    check_federation,
    check_labels,
    check_linear,
    check_loss,
    check_network,
    check_noise,
    check_shared,
    check_shuffled,
)
from fedcore.hyperparameters import Count, Real, Section, Seed
from fedcore.limits import MOST_CELLS
from fedcore.models.model_config import ModelConfig
from fedcore.models.smoothing import ConvolutionSmoothing
from fedcore.paths import LocalPath
from fedcore.planning.curvature import KnownCurvature, ReleasedCurvature
from fedcore.planning.plan_config import EvaluationConfig, ParticipationConfig, PrivacyConfig, ShufflerConfig


class TlsConfig(Section):
    """TLS files by which a driver and one's own Dask cluster authenticate; paths are relative to the working folder."""

    ca: LocalPath
    """PEM file of the authority, used for this cluster only: anyone it certifies can run code where records are
    open."""
    certificate: LocalPath
    """PEM file of the driver's certificate."""
    key: LocalPath
    """PEM file of the driver's private key, without a pass phrase and unreadable for other accounts."""


class ClusterConfig(Section):
    """The backend that runs the silos' computations."""

    backend: Literal["dask", "in-process", "federation"] = "dask"
    """federation: the silos' own services, of data.source = federation alone, whose default it is."""
    workers: Count = Field(2, ge=1, le=256)
    """Dask workers of a local cluster; silos are placed on them by name."""
    address: str | None = None
    """Address of a running Dask scheduler (tls://host:port); null: the cluster of `fedcore up`, else a local one."""
    tls: TlsConfig | None = None
    """Keys for a tls:// address."""
    insecure: bool = False
    """Allows a scheduler without TLS (tcp://host:port), which every account of its machine and network can reach."""
    deadline: Real = Field(120.0, gt=0)
    """Seconds to wait for a site's answer before the run stops and names the site's silos."""

    @model_validator(mode="after")
    def _keys_fit_the_address(self) -> ClusterConfig:
        if self.tls is not None and not (self.address or "").startswith("tls://"):
            raise ValueError(f"tls has keys, but address = {self.address} is no address of TLS (tls://host:port)")
        return self


class OrchestrationConfig(Section):
    tasks: Literal["auto", "round", "phase"] = "auto"
    """Prefect tasks: one per round and phase, or per phase only; auto: per round too while rounds are few."""
    checkpoint: Literal["each-round", "behind"] = "each-round"
    """each-round: on disk before the next broadcast leaves. behind: with durable ledgers a thread writes it, and a
    crash may redo more rounds."""
    scheduled: Literal["unfinished", "repetition"] = "unfinished"
    """Effect of a schedule's firing: unfinished runs of these parameters go on, or a new repetition of them starts."""


class TrackingConfig(Section):
    mlflow: bool = True
    evaluate_every: Count = Field(1, ge=1)
    """Rounds between two evaluations on the public test data; the last round of a phase is always evaluated."""
    evaluate_from: Real = Field(0.0, ge=0, le=1)
    """Part of the run's rounds before the first evaluation."""
    simulation_metrics: bool | None = None
    """Log unprotected training loss and error over all silos under simulation/; null: for generated data only."""
    register_models: Literal["runs", "cells", "none"] = "runs"
    """Private models to register as versions of the model of this name. runs: single runs and a sweep's best cell;
    cells: all. A model without privacy is never registered."""


class ExperimentConfig(Section):
    """One run."""

    name: str = Field("experiment", pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,60}$")
    seed: Seed = 0
    """Public seed of the simulation: silos, splits, participation, noise."""
    repetition: Seed = 0
    """Number of a deliberate repetition: equal parameters are the same run, which runs once."""
    data: DataConfig = DigitsData()
    model: ModelConfig = ModelConfig()
    privacy: PrivacyConfig
    algorithm: AlgorithmConfig
    participation: ParticipationConfig = ParticipationConfig()
    evaluation: EvaluationConfig | None = None
    """Evaluation on records that silos hold out, where no public test file exists; null: silos train on all records."""
    shuffler: ShufflerConfig | None = None
    """Settings of privacy.trust = shuffler, where null means its defaults; null with any other trust."""
    cluster: ClusterConfig = ClusterConfig()
    orchestration: OrchestrationConfig = OrchestrationConfig()
    tracking: TrackingConfig = TrackingConfig()

    @property
    def simulation_metrics(self) -> bool:
        """True if unprotected quantities of the silos are logged."""
        chosen = self.tracking.simulation_metrics
        guarded = self.privacy.noise == "guarded" or isinstance(self.data, OwnTable)
        return not guarded if chosen is None else chosen

    @property
    def person(self) -> str | None:
        """The column of persons that the guarantee protects; None: it protects records."""
        return self.data.person if isinstance(self.data, OwnTable) else None

    @property
    def unprotected_constants(self) -> str | None:
        """Key and value of the constants that follow from silos' records without noise; None if there are none."""
        pca = self.data.pca if isinstance(self.data, ImageData) else None
        if pca is not None and pca.constants == "simulation":
            return "data.pca.constants = simulation"
        if isinstance(self.data, AlphaBetaData) and self.data.standardise != "none":
            return f"data.standardise = {self.data.standardise}"
        if isinstance(self.data, HospitalsData) and self.data.split == "flamby":
            return "data.split = flamby"
        return None

    @property
    def released(self) -> PcaConfig | ReleasedScaling | ReleasedCurvature | None:
        """The section whose constants follow from statistics that silos release before training, if there is one."""
        return self.released_constants or self.released_curvature

    @property
    def released_curvature(self) -> ReleasedCurvature | None:
        """The section of the method's curvature, if silos release it before training."""
        return self.algorithm.released_curvature if isinstance(self.algorithm, KnownCurvature) else None

    @property
    def released_constants(self) -> PcaConfig | ReleasedScaling | None:
        """The data section whose constants follow from statistics that silos release, if there is one."""
        if isinstance(self.data, FilesData):
            return self.data.scaling if isinstance(self.data.scaling, ReleasedScaling) else None
        pca = self.data.pca if isinstance(self.data, ImageData) else None
        return pca if pca is not None and pca.constants == "released" else None

    @model_validator(mode="after")
    def _data_can_be_held(self) -> ExperimentConfig:
        """Bounds generated data before they are generated."""
        silos, records, features, tested = (
            getattr(self.data, key, None) for key in ("silos", "records", "features", "test_records")
        )
        each = features if isinstance(features, int) else max(1, len(features or ()))
        if isinstance(records, tuple):
            silos, records = 1, sum(records)
        if isinstance(silos, int) and isinstance(records, int) and (cells := silos * records * each) > MOST_CELLS:
            raise ValueError(
                f"data.records = {records}: {silos} silos of so many, with their features, are {cells:,} numbers, "
                f"more than {MOST_CELLS:,}; choose fewer"
            )
        if isinstance(tested, int) and (cells := tested * each) > MOST_CELLS:
            raise ValueError(
                f"data.test_records = {tested}: with their features these are {cells:,} numbers, more than "
                f"{MOST_CELLS:,}; choose fewer"
            )
        return self

    @model_validator(mode="after")
    def _statistics_have_a_target(self) -> ExperimentConfig:
        section, private = self.released, self.privacy.trust != "none"
        if section is not None and private and section.epsilon is None:
            raise ValueError(
                f"{section.key}.epsilon is missing: released constants need a target of their own, for instance 1.0"
            )
        if section is not None and not private and section.epsilon is not None:
            raise ValueError(f"{section.key}.epsilon has no meaning with privacy.trust = none (no noise): leave it out")
        return self

    @model_validator(mode="after")
    def _whole_silo_covers_all(self) -> ExperimentConfig:
        if self.privacy.whole_silo is not None and self.released is not None:
            raise ValueError(
                f"{self.released.key}.constants = released is a release of its own, with noise for each record that "
                "privacy.whole_silo does not cover: choose public constants, or leave one out"
            )
        return self

    @model_validator(mode="after")
    def _one_release_before_training(self) -> ExperimentConfig:
        if self.released_curvature is None:
            return self
        if (section := self.released_constants) is not None:
            raise ValueError(
                f"algorithm.smoothness = released asks about records that {section.key}.constants = released prepares, "
                "and one release before training is supported: give one of the two as public"
            )
        if isinstance(self.model.smoothing, ConvolutionSmoothing) and self.model.smoothing.estimate == "sampled":
            raise ValueError(
                "algorithm.smoothness = released: model.smoothing.estimate = sampled smooths short records less than "
                "long ones, so their curvature does not follow from second moments; take estimate = exact"
            )
        return self

    @model_validator(mode="after")
    def _shuffler_fits(self) -> ExperimentConfig:
        if self.privacy.trust != "shuffler":
            if self.shuffler is not None:
                raise ValueError(f"shuffler has no meaning with privacy.trust = {self.privacy.trust}: leave it out")
            return self
        check_shuffled(
            self.algorithm,
            self.privacy,
            self.participation,
            self.evaluation,
            None if self.released is None else self.released.key,
        )
        return self

    @model_validator(mode="after")
    def _aggregator_fits(self) -> ExperimentConfig:
        if self.privacy.trust == "central":
            released = None if self.released is None else self.released.key
            check_aggregated(self.algorithm, self.participation, self.evaluation, released)
        return self

    @model_validator(mode="after")
    def _evaluation_has_a_target(self) -> ExperimentConfig:
        if self.evaluation is None:
            return self
        given, privacy = self.evaluation.epsilon is not None, self.privacy
        if given and privacy.trust == "none":
            raise ValueError("evaluation.epsilon has no meaning with privacy.trust = none (no noise): leave it out")
        if not given and privacy.trust != "none" and privacy.epsilon is None:
            raise ValueError(
                "evaluation.epsilon is missing: with privacy.noise_multiplier there is no privacy.epsilon to take"
            )
        return self

    @model_validator(mode="after")
    def _guarded_silos_show_nothing_else(self) -> ExperimentConfig:
        if self.privacy.noise == "guarded" and self.tracking.simulation_metrics:
            raise ValueError("tracking.simulation_metrics = true shows what privacy.noise = guarded protects")
        if self.privacy.noise == "guarded" and self.unprotected_constants:
            kinds = {AlphaBetaData: "none", HospitalsData: "index"}
            other = kinds.get(type(self.data), "public or released")
            raise ValueError(
                f"{self.unprotected_constants} shows what privacy.noise = guarded protects: choose {other}"
            )
        return self

    @model_validator(mode="before")
    @classmethod
    def _fill_kinds(cls, values: Any) -> Any:
        """Fills in the digits as source of `data`, logistic as `loss`, a federation's backend, and a shuffler."""
        if not isinstance(values, dict):
            return values
        values = dict(values)
        if isinstance(values.get("data"), dict):
            values["data"] = {"source": "digits", **values["data"]}
        if isinstance(values.get("model"), dict) and isinstance(values["model"].get("loss"), dict):
            values["model"] = {**values["model"], "loss": {"name": "logistic", **values["model"]["loss"]}}
        if isinstance(values.get("data"), dict) and values["data"]["source"] == "federation":
            cluster = values.get("cluster") or {}
            if isinstance(cluster, dict):
                values["cluster"] = {"backend": "federation", **cluster}
        privacy = values.get("privacy")
        trust = privacy.get("trust") if isinstance(privacy, dict) else getattr(privacy, "trust", None)
        if trust == "shuffler" and values.get("shuffler") is None:
            values["shuffler"] = {}
        return values

    @model_validator(mode="after")
    def _federation_fits(self) -> ExperimentConfig:
        check_federation(
            self.data, self.privacy, self.cluster.backend, None if self.released is None else self.released.key
        )
        return self

    @model_validator(mode="after")
    def _absence_fits(self) -> ExperimentConfig:
        check_shared(self.privacy, self.cluster.address)
        check_absent(self.data, self.privacy, self.participation, self.evaluation)
        return self

    @model_validator(mode="after")
    def _method_fits(self) -> ExperimentConfig:
        check_network(self.algorithm, self.model)
        check_linear(self.algorithm, self.model)
        check_loss(self.algorithm, self.model)
        check_noise(self.algorithm, self.privacy)
        check_labels(self.data, self.model)
        return self
