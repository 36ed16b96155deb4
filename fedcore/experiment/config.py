"""All that `conf/` may say, as pydantic models; the same models are the parameters of the Prefect flows.

The sections of data, model and privacy are in `config.py` of their packages. Defaults live in these four files and
nowhere else. Every key is explained in `conf/reference.yaml`; a test keeps the two equal. Unknown keys are refused.
What changes the result of a run is part of its identity (`fedcore.experiment.identity`); `cluster`, `orchestration` and
`tracking` say how it is executed and are not.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from fedcore.algorithms import AlgorithmConfig, with_trait
from fedcore.data.config import DataConfig
from fedcore.data.constants.pca import PcaConfig
from fedcore.data.constants.scaling import ReleasedScaling
from fedcore.data.sources.alpha_beta import AlphaBetaData
from fedcore.data.sources.hospitals import HospitalsData
from fedcore.data.sources.images import DigitsData, ImageData
from fedcore.data.sources.regression import RegressionData
from fedcore.data.tabular import FilesData
from fedcore.hyperparameters import Count, Real, Section, Whole
from fedcore.models.config import ModelConfig
from fedcore.models.smoothing import ConvolutionSmoothing
from fedcore.planning.config import PrivacyConfig
from fedcore.planning.curvature import KnownCurvature, ReleasedCurvature
from fedcore.planning.evaluation import MOST_BINS, Every
from fedcore.planning.participation import SilosPerRound
from fedcore.shuffling.forms import LONGEST_DEADLINE


class ParticipationConfig(Section):
    silos_per_round: SilosPerRound | None = None
    """M: silos that answer in a round, drawn uniformly by public randomness; null: all of them. Where their number is
    random itself: a list of numbers, each as likely, or binomial: q, every silo with chance q, given that one is there.
    """
    weights: Literal["equal", "records"] | tuple[Annotated[Real, Field(ge=0)], ...] = "equal"
    """How much each silo's answer counts in the objective: equal, by its public number of records, or as numbers above
    0, one for each silo in the order of the data: p_i up to a factor, whatever their sum. Applied once, by the server:
    silos answer as they would without."""


class ClusterConfig(Section):
    """Where the silos' computations run."""

    backend: Literal["dask", "in-process"] = "dask"
    workers: Count = Field(2, ge=1, le=256)
    """Dask workers of a local cluster; silos are placed on them by name."""
    address: str | None = None
    """Address of a running Dask scheduler (tcp://host:port); null: the cluster of `fedcore up`, else a local one."""
    deadline: Real = Field(120.0, gt=0)
    """Seconds to wait for a site's answer before the run stops with the names of its silos."""


class OrchestrationConfig(Section):
    tasks: Literal["auto", "round", "phase"] = "auto"
    """What is a Prefect task: each round and phase, or phases only; auto: rounds while there are at most 1,000."""
    checkpoint: Literal["each-round", "behind"] = "each-round"
    """each-round: on disk before the next broadcast leaves; behind: where ledgers are durable, by a thread, and a crash
    may redo more rounds."""


class TrackingConfig(Section):
    mlflow: bool = True
    evaluate_every: Count = Field(1, ge=1)
    """Rounds between two evaluations on the public test data; the last round of a phase is always evaluated."""
    evaluate_from: Real = Field(0.0, ge=0, le=1)
    """Part of the run's rounds before the first evaluation."""
    simulation_metrics: bool | None = None
    """Log unprotected training loss and error over all silos under simulation/; null: for generated data only."""


class EvaluationConfig(Section):
    """Federated evaluation: silos hold out a part of their records, and release how a model does on them."""

    epsilon: Real | None = Field(None, gt=0)
    """Target of all evaluations of the run together, at the run's delta; null: that of training (privacy.epsilon). A
    record is trained on or held out, so it pays the larger of the two and not both."""
    every: Every = "end"
    """end: of the last phase of training, with all of the target; phase: of each, which share it."""
    fraction: Real = Field(0.2, gt=0, le=0.5)
    """Part of each silo's records that is held out of training: by row index, the same for all runs."""
    bins: Count | None = Field(None, ge=2, le=MOST_BINS, multiple_of=2)
    """For two classes: bins of scores, from which the area under the ROC curve is computed; null: 4. Fewer have less
    noise, and 2 are enough for errors and recall; more make the area less coarse."""

    def held(self, n: int) -> int:
        """Records that a silo of n holds out: at least one."""
        return max(1, math.floor(self.fraction * n + 1e-9))


class ShufflerConfig(Section):
    """The process between silos and server that permutes the messages of a round (privacy.trust = shuffler)."""

    minimum: Count | None = Field(None, ge=2)
    """Messages of a batch below which nothing is handed on, and for which the epsilon of the shuffle model is
    computed; null: all that take part in a round."""
    deadline: Real = Field(60.0, gt=0, le=LONGEST_DEADLINE)
    """Seconds that the shuffler waits for the messages of a round, at most a week. Not part of what makes a run the
    same."""
    address: str | None = Field(None, pattern=r"^(https?://)?[A-Za-z0-9._\-]+:[0-9]{1,5}$")
    """host:port of a running shuffler, or https://host:port; null: the run starts its own. Not part of what makes a run
    the same."""


class ExperimentConfig(Section):
    """One run."""

    name: str = Field("experiment", pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,60}$")
    seed: Whole = Field(0, ge=0)
    """Public seed of the simulation: silos, splits, participation, noise."""
    repetition: Whole = Field(0, ge=0)
    """Counts deliberate repetitions: the same parameters are the same run, not run twice unless this differs."""
    data: DataConfig = DigitsData()
    model: ModelConfig = ModelConfig()
    privacy: PrivacyConfig
    algorithm: AlgorithmConfig
    participation: ParticipationConfig = ParticipationConfig()
    evaluation: EvaluationConfig | None = None
    """Held-out records of the silos themselves, where no public test file exists; null: all records are trained on."""
    shuffler: ShufflerConfig | None = None
    """Of privacy.trust = shuffler, where null means its defaults; null with any other trust."""
    cluster: ClusterConfig = ClusterConfig()
    orchestration: OrchestrationConfig = OrchestrationConfig()
    tracking: TrackingConfig = TrackingConfig()

    @property
    def simulation_metrics(self) -> bool:
        """Whether unprotected quantities of the silos are logged."""
        chosen = self.tracking.simulation_metrics
        guarded = self.privacy.noise == "guarded" or isinstance(self.data, FilesData)
        return not guarded if chosen is None else chosen

    @property
    def person(self) -> str | None:
        """The column of the persons that the guarantee is for; None: it is for records."""
        return self.data.person if isinstance(self.data, FilesData) else None

    @property
    def unprotected_constants(self) -> str | None:
        """Key and value by which records are prepared with constants from silos' records without noise, if any."""
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
        """The section whose constants come from statistics that silos release before training, if there is one."""
        return self.released_constants or self.released_curvature

    @property
    def released_curvature(self) -> ReleasedCurvature | None:
        """The section of the method's curvature, if silos release it before training."""
        return self.algorithm.released_curvature if isinstance(self.algorithm, KnownCurvature) else None

    @property
    def released_constants(self) -> PcaConfig | ReleasedScaling | None:
        """The section of the data whose constants come from statistics that silos release, if there is one."""
        if isinstance(self.data, FilesData):
            return self.data.scaling if isinstance(self.data.scaling, ReleasedScaling) else None
        pca = self.data.pca if isinstance(self.data, ImageData) else None
        return pca if pca is not None and pca.constants == "released" else None

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
        method, trust = self.algorithm, self.privacy.trust
        if trust != "shuffler":
            if self.shuffler is not None:
                raise ValueError(f"shuffler has no meaning with privacy.trust = {trust}: leave it out")
            return self
        if method.sends_own_arrays or method.several_answers:
            own, often = "sends silos arrays of their own", "asks silos several times in a round"
            why = own if method.sends_own_arrays else often
            raise ValueError(
                f"privacy.trust = shuffler: algorithm.name = {method.name!r} {why}, which needs to know whose a "
                "message is; choose a method of minibatch SGD"
            )
        if (batch := getattr(method, "batch", None)) is not None:
            raise ValueError(
                f"privacy.trust = shuffler has its accounting for full batches only: algorithm.batch = {batch} must be "
                "null"
            )
        if self.privacy.whole_silo is not None:
            raise ValueError(
                "privacy.whole_silo is a target without a shuffler, and privacy.trust = shuffler has none for whole "
                "silos: leave one out"
            )
        if self.participation.weights != "equal":
            raise ValueError(
                "privacy.trust = shuffler needs participation.weights = equal: the server cannot tell whose message it "
                "weighs"
            )
        if self.evaluation is not None:
            raise ValueError(
                "privacy.trust = shuffler has no evaluation of held-out records, which names the silo of each answer: "
                "leave evaluation out"
            )
        if self.released is not None:
            raise ValueError(
                f"{self.released.key}.constants = released: each silo's statistic goes to the driver by its name, "
                "which privacy.trust = shuffler does not cover; choose public constants"
            )
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
        """`data` without a source is that of the digits, `loss` without a name the logistic one, and trust in a
        shuffler has a section of it."""
        if not isinstance(values, dict):
            return values
        values = dict(values)
        if isinstance(values.get("data"), dict):
            values["data"] = {"source": "digits", **values["data"]}
        if isinstance(values.get("model"), dict) and isinstance(values["model"].get("loss"), dict):
            values["model"] = {**values["model"], "loss": {"name": "logistic", **values["model"]["loss"]}}
        privacy = values.get("privacy")
        trust = privacy.get("trust") if isinstance(privacy, dict) else getattr(privacy, "trust", None)
        if trust == "shuffler" and values.get("shuffler") is None:
            values["shuffler"] = {}
        return values

    @model_validator(mode="after")
    def _method_fits_network(self) -> ExperimentConfig:
        method = self.algorithm
        if self.model.convex:
            return self
        network = f"model.hidden = {self.model.hidden} makes a network, which is neither convex nor smooth"
        if not method.takes_nonconvex:
            raise ValueError(
                f"{network}, and algorithm.name = {method.name!r} takes its steps from such constants: use "
                f"{_listed(with_trait('takes_nonconvex'))}"
            )
        if method.from_theory:
            left = " and ".join(f"algorithm.{key} = {getattr(method, key) or 'null'}" for key in method.from_theory)
            raise ValueError(f"{network}, and no theorem is about such models: {left} must be given as numbers")
        return self

    @model_validator(mode="after")
    def _method_fits_loss(self) -> ExperimentConfig:
        if self.model.convex and not self.model.smooth and not self.algorithm.takes_nonsmooth:
            raise ValueError(
                f"algorithm.name = {self.algorithm.name!r} needs a smooth loss, and loss {self.model.loss.name!r} is "
                f"nonsmooth: use {_listed(with_trait('takes_nonsmooth'))}, or smooth the loss with "
                "model.smoothing.name=moreau (or convolution)"
            )
        return self

    @model_validator(mode="after")
    def _noise_fits_method(self) -> ExperimentConfig:
        both = self.privacy.epsilon is not None and self.privacy.noise_multiplier is not None
        if both and not self.algorithm.several_answers:
            raise ValueError(
                f"privacy.epsilon and privacy.noise_multiplier are both given: {self.algorithm.name} needs one of them "
                f"({', '.join(with_trait('several_answers'))} find a number of rounds for both)"
            )
        fits = self.algorithm.takes_given_noise and not self.algorithm.from_theory
        if self.privacy.noise_multiplier is not None and not fits:
            raise ValueError(
                f"privacy.noise_multiplier: {self.algorithm.name} takes numbers of its schedule from privacy.epsilon, "
                f"which is what to give; noise can be given to {', '.join(with_trait('takes_given_noise'))} (not with "
                "numbers that are left to a theorem)"
            )
        return self

    @model_validator(mode="after")
    def _labels_fit_loss(self) -> ExperimentConfig:
        values, name = self.data.label_values, self.model.loss.name
        if values is None and (self.model.loss.binary or self.model.class_ids):
            fix = "set data.classes"
            if isinstance(self.data, RegressionData):
                fix = "the label is a number: choose model.loss.name = squared, huber, absolute or quantile"
            raise ValueError(f"loss {name!r} needs {'two ' * self.model.loss.binary}classes: {fix}")
        if values is not None and len(values) > 2 and not self.model.class_ids:
            other = ", or two data.classes"
            if isinstance(self.data, ImageData):
                other = ", or data.labels = odd-even" if self.data.split == "odd-even" else ""
            raise ValueError(
                f"loss {name!r} is not one of several classes, and the label has {len(values)}: choose "
                f"model.loss.name = softmax{other}"
            )
        return self


def _listed(names: list[str]) -> str:
    return " or ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
