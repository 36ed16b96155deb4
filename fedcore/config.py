"""All that `conf/` may say, as pydantic models; the same models are the parameters of the Prefect flows.

Defaults live here and nowhere else. Every key is explained in `conf/reference.yaml`; a test keeps the two equal.
Unknown keys are refused. What changes the result of a run is part of its identity (`fedcore.identity`);
`cluster`, `orchestration` and `tracking` say how it is executed and are not.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from fedcore.algorithms import LOCAL_STEPS, NONCONVEX, SUBGRADIENT, AlgorithmConfig, LocalizedMbsgd, Mbsgd, OnePassMbsgd
from fedcore.data.alpha_beta import Standardise
from fedcore.data.mnist import CLASSES, Flavour
from fedcore.data.records import Normalise
from fedcore.data.similarity import Rest
from fedcore.hyperparameters import Count, Real
from fedcore.losses import Logistic, LossConfig, Smoothable, Softmax
from fedcore.losses.smoothing import ConvolutionSmoothing, MoreauSmoothing
from fedcore.privacy.filters import Cap, Rule


class Section(BaseModel):
    """A part of the configuration: frozen, unknown keys refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)


class PcaConfig(Section):
    """Principal components in place of pixels: every record is projected by itself, with constants of this origin."""

    dimension: Count = Field(50, ge=1)
    """Features of a projected record, without the bias column."""
    constants: Literal["public", "simulation", "released"] = "public"
    """public: from images that no silo holds; simulation: from all silos' records without noise, OUTSIDE OF THE
    GUARANTEE, as papers do; released: from moments that silos release with noise and a charge before training."""
    fraction: Real = Field(0.1, gt=0, lt=1)
    """With public constants: part of the images set aside, before silos are built, to compute them."""

    epsilon: Real | None = Field(None, gt=0)
    """With released constants, required unless privacy.trust is none: target for the release of the moments, at the
    run's delta. It comes on top of privacy.epsilon, which is for training; results say what both compose to."""
    bound: Real | None = Field(None, gt=0)
    """With released constants: each image (pixels in 0 to 1) is scaled by itself to at most this norm for its moments;
    null: half of the root of the number of pixels."""

    @model_validator(mode="after")
    def _keys_fit_the_origin(self) -> PcaConfig:
        if self.constants != "public" and self.fraction != type(self).model_fields["fraction"].default:
            raise ValueError(f"data.pca.fraction has no meaning with constants = {self.constants}: leave it out")
        for key in ("epsilon", "bound"):
            if self.constants != "released" and getattr(self, key) is not None:
                raise ValueError(f"data.pca.{key} has no meaning with constants = {self.constants}: leave it out")
        return self


class SimilarityConfig(Section):
    """Silos by similarity: gamma of a silo's images are i.i.d. over the classes, the rest have few of them."""

    silos: Count = Field(20, ge=1)
    records: Count | None = Field(None, ge=3)
    """R: images of each silo before its own split into training and test; null: all images in equal numbers."""
    gamma: Real = Field(0.1, ge=0, le=1)
    """Part of a silo's images whose classes are drawn uniformly; 1: all silos alike."""
    rest: Rest = "one-class"
    """The other images: one-class: of class i mod classes in silo i, fewer than R if that class runs out;
    sorted-blocks: the next ones of all images that are left, sorted by label."""


class ImageData(Section):
    """Images of classes; by default silo (o, e) holds one odd and one even digit."""

    source: Literal["digits", "mnist"]
    split: Literal["odd-even", "similarity"] = "odd-even"
    """odd-even: 25 silos, each with one odd and one even digit; similarity: as `similarity` says (labels digit)."""
    similarity: SimilarityConfig | None = None
    """With split similarity: who gets which images; null there: its defaults."""
    labels: Literal["odd-even", "digit"] = "odd-even"
    """odd-even: two classes, even and odd; digit: the ten digits (of emnist-balanced: its 47 classes), loss softmax."""
    test_fraction: Real = Field(0.2, gt=0, lt=1)
    """Part of the images set aside as public test data: of all before silos are built; with split similarity of each
    silo's own."""
    pca: PcaConfig | None = None
    """Principal components in place of pixels; null: pixels."""

    @property
    def classes(self) -> int:
        """Classes that images have, numbered from 0."""
        return 10

    @property
    def label_values(self) -> tuple[int, ...]:
        """The classes, in the order of their numbers."""
        return tuple(range(self.classes)) if self.labels == "digit" else (0, 1)

    @property
    def public_fraction(self) -> float:
        """Part of the images set aside, before silos are built, to compute public constants."""
        return self.pca.fraction if self.pca is not None and self.pca.constants == "public" else 0.0

    @model_validator(mode="before")
    @classmethod
    def _similarity_has_defaults(cls, values: Any) -> Any:
        """A split by similarity without the section is one with its defaults: both are the same run."""
        if isinstance(values, dict) and values.get("split") == "similarity" and values.get("similarity") is None:
            return {**values, "similarity": {}}
        return values

    @model_validator(mode="after")
    def _keys_fit_the_split(self) -> ImageData:
        if self.split == "odd-even" and self.similarity is not None:
            raise ValueError("data.similarity has no meaning with split = odd-even: leave it out, or set data.split")
        if self.split == "similarity" and self.labels != "digit":
            raise ValueError(
                "data.split = similarity needs data.labels = digit (and model.loss.name = softmax): its silos differ "
                "in their classes"
            )
        return self


class DigitsData(ImageData):
    """Handwritten digits of scikit-learn (1,797 images of 8 x 8 pixels)."""

    source: Literal["digits"] = "digits"


class MnistData(ImageData):
    """MNIST or EMNIST, from IDX files in a local folder."""

    source: Literal["mnist"] = "mnist"
    folder: str
    """Where the IDX files are, plain or .gz; relative paths start at the working folder."""
    flavour: Flavour = "mnist"
    """Which files: mnist has 70,000 images, emnist-digits 280,000, emnist-mnist 70,000; emnist-balanced 112,800 of 47
    classes (its training file alone), for split similarity."""
    per_digit: Count | None = Field(None, ge=1)
    """Images of each digit (or class) that are used, drawn by the seed; null: all there are."""

    @property
    def classes(self) -> int:
        """Classes that images have, numbered from 0."""
        return CLASSES[self.flavour]

    @model_validator(mode="after")
    def _only_digits_are_odd_or_even(self) -> MnistData:
        if self.split == "odd-even" and self.classes != 10:
            raise ValueError(
                f"data.flavour = {self.flavour} has {self.classes} classes, which are no digits: set "
                "data.split = similarity and data.labels = digit"
            )
        return self


class SyntheticData(Section):
    """Logistic data made from a seed: silo l draws features around its own mean and labels from its own weights.

    With more than two classes the labels are multinomial logistic.
    """

    source: Literal["synthetic"] = "synthetic"
    silos: Count = Field(25, ge=1)
    records: Count = Field(400, ge=2)
    """Records of each silo."""
    features: Count = Field(20, ge=1)
    """Features of a record, without the bias column."""
    heterogeneity: Real = Field(1.0, ge=0)
    """Standard deviation of the silos' means and weights around the common ones; 0: all silos alike."""
    test_records: Count = Field(2000, ge=1)
    classes: Count = Field(2, ge=2, le=1000)
    """Classes of the label; more than two need the softmax loss."""

    @property
    def label_values(self) -> tuple[int, ...]:
        """The classes, in the order of their numbers."""
        return tuple(range(self.classes))


class AlphaBetaData(Section):
    """synthetic(alpha, beta) of the paper of DP-SCAFFOLD: each silo has a softmax-regression law of its own."""

    source: Literal["synthetic-alpha-beta"] = "synthetic-alpha-beta"
    silos: Count = Field(100, ge=1)
    records: Count = Field(5000, ge=3)
    """Records of each silo before its own split: with the default test_fraction it trains on 4,000."""
    test_fraction: Real = Field(0.2, gt=0, lt=1)
    """Part of each silo's records that is set aside; the union over silos is the public test set."""
    features: Count = Field(40, ge=1)
    """Features of a record, without the bias column; the j-th has variance j^-1.2 within a silo."""
    classes: Count = Field(10, ge=2, le=1000)
    """Classes of the label; more than two need the softmax loss."""
    alpha: Real = Field(0.0, ge=0)
    """Variance of the means around which a silo's weights are drawn, with variance 1: heterogeneity of models."""
    beta: Real = Field(0.0, ge=0)
    """Variance of the means around which a silo's mean record is drawn, with variance 1: heterogeneity of features."""
    flip: Real = Field(0.05, ge=0, le=1)
    """Probability that a label is replaced by one drawn from all classes."""
    standardise: Standardise = "none"
    """none; global: z-scores by all silos' training records; row-minmax: by single records of each silo, a mistake of
    the paper's code, to compare with it. Both are computed from records without noise: OUTSIDE OF THE GUARANTEE."""

    @property
    def label_values(self) -> tuple[int, ...]:
        """The classes, in the order of their numbers."""
        return tuple(range(self.classes))


class SiloFile(Section):
    """One silo's own file, at its own place."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")
    path: str
    """CSV (.csv) or Parquet (.parquet) file; relative paths start at the working folder."""


class FilesData(Section):
    """A user's own silos: one CSV or Parquet file per silo, with the same columns."""

    source: Literal["files"] = "files"
    silos: tuple[SiloFile, ...] = Field(min_length=1)
    features: tuple[str, ...] = Field(min_length=1)
    """Names of the feature columns, in the order of the model's weights."""
    label: str
    """Name of the label column."""
    classes: tuple[str | int, ...] | None = Field((0, 1), min_length=2)
    """The values that the label may take: of two, the first as -1 and the second as +1, more for the softmax loss; null
    for a real-valued label."""
    test: str | None = None
    """A public file with the same columns that no silo holds; without it no test error is reported."""
    divide_by: Real = Field(1.0, gt=0)
    """Public constant that all features are divided by before the bias column is appended."""

    @model_validator(mode="after")
    def _names_are_distinct(self) -> FilesData:
        names = [silo.name for silo in self.silos]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"silo name {name!r} is used twice")
        if len(set(self.features)) < len(self.features):
            raise ValueError("a feature is named twice")
        if self.label in self.features:
            raise ValueError(f"label {self.label!r} is also a feature")
        for value in self.classes or ():
            if self.classes is not None and self.classes.count(value) > 1:
                raise ValueError(f"two classes are equal: {value!r}")
        return self

    @property
    def label_values(self) -> tuple[str | int, ...] | None:
        """The classes, in the order of their numbers; None for a real-valued label."""
        return self.classes


DataConfig = Annotated[
    DigitsData | MnistData | SyntheticData | AlphaBetaData | FilesData, Field(discriminator="source")
]


class ModelConfig(Section):
    """A model, chosen by its loss, and the public constants that the guarantee and the theory need."""

    loss: LossConfig = Logistic()
    smoothing: MoreauSmoothing | ConvolutionSmoothing | None = Field(None, discriminator="name")
    """Train on a smoothed form of a loss with kinks (hinge, absolute, quantile); null: on the loss itself."""
    hidden: Count | None = Field(None, ge=1)
    """ReLU units of a hidden layer between features and classes (loss softmax); null: predictors are linear."""
    bias: bool = True
    """Append a constant feature 1 to each record; `normalise` says whether before or after it is scaled."""
    feature_bound: Real = Field(1.0, gt=0)
    """What `normalise` names is scaled, record by record, to at most this Euclidean norm."""
    normalise: Normalise = "record"
    """record: the record with its bias; features: the features alone, before the bias is appended (as in the paper of
    DP-SCAFFOLD), so that a record's norm is at most sqrt(feature_bound^2 + 1)."""
    clip: Real | None = Field(None, gt=0)
    """Bound C on the Euclidean norm of one record's gradient; null: the loss's Lipschitz bound times that of a record's
    norm."""
    diameter: Real = Field(20.0, gt=0)
    """Diameter D of the ball around 0 that the model stays in (radius D/2), also the D of the schedules."""
    ridge: Real = Field(0.0, ge=0)
    """Weight of (ridge/2)|w|^2 in what is minimised, bias included; added after noise, so it costs no privacy."""

    @property
    def record_bound(self) -> float:
        """Bound on the Euclidean norm of a prepared record, bias column included."""
        if self.normalise == "features" and self.bias:
            return math.hypot(self.feature_bound, 1.0)
        return self.feature_bound

    @property
    def gradient_bound(self) -> float:
        """C: clipping bound of one record's gradient, in units of loss per weight."""
        return self.clip if self.clip is not None else self.loss.lipschitz * self.record_bound

    @model_validator(mode="after")
    def _features_have_a_bias_beside_them(self) -> ModelConfig:
        if self.normalise == "features" and not self.bias:
            raise ValueError("model.normalise = features has no meaning with model.bias = false: leave it out")
        return self

    @model_validator(mode="after")
    def _network_is_complete(self) -> ModelConfig:
        if self.hidden is not None and not self.class_ids:
            raise ValueError(
                f"model.hidden = {self.hidden} needs model.loss.name = softmax, not {self.loss.name!r}: a network has "
                "one output per class"
            )
        if self.hidden is not None and self.clip is None:
            raise ValueError(
                f"model.hidden = {self.hidden}: gradients of a network grow with its weights, so no constant bounds "
                "them: set model.clip to a positive number"
            )
        return self

    @model_validator(mode="after")
    def _gradient_is_bounded(self) -> ModelConfig:
        if self.clip is None and not self.loss.lipschitz < float("inf"):
            raise ValueError(f"loss {self.loss.name!r} has no Lipschitz constant: set model.clip to a positive number")
        return self

    @model_validator(mode="after")
    def _smoothing_has_a_kink(self) -> ModelConfig:
        if self.smoothing is not None and not isinstance(self.loss, Smoothable):
            raise ValueError(f"model.smoothing must be null: loss {self.loss.name!r} is smooth already")
        return self

    @property
    def class_ids(self) -> bool:
        """Whether labels are numbers of classes, 0 to C-1; else two classes are -1 and +1, or labels are real."""
        return isinstance(self.loss, Softmax)

    @property
    def convex(self) -> bool:
        """Whether what is trained is convex in the weights; else there are no constants for theorems either."""
        return self.hidden is None

    @property
    def smooth(self) -> bool:
        """Whether what is trained has a finite smoothness constant."""
        return self.convex and (self.smoothing is not None or self.loss.smoothness < float("inf"))


class CapConfig(Section):
    """The limit of every silo over all runs on its records, kept by its ledger."""

    epsilon: Real = Field(gt=0)
    """At most this much, at `delta`, over all runs."""
    delta: Real | Literal["1/n^2"] = "1/n^2"
    """A number, or 1/n^2 with each silo's own number of records n."""
    rule: Rule = "gdp"
    """How runs add up: gdp loses nothing for Gaussian noise; rdp and basic are more cautious."""

    def of(self, n: int) -> Cap:
        """The cap of a silo with n records."""
        return Cap(self.epsilon, 1.0 / n**2 if isinstance(self.delta, str) else float(self.delta), self.rule)


class PrivacyConfig(Section):
    """The guarantee of every silo towards everybody else, for replacement of one record."""

    trust: Literal["inter-silo", "none"] = "inter-silo"
    """inter-silo: every vector that leaves a silo is differentially private; none: NO NOISE, for reference only."""
    epsilon: Real | None = Field(None, gt=0)
    """Target for the whole run; required unless trust is none, or noise_multiplier is given."""
    noise_multiplier: Real | None = Field(None, gt=0)
    """Noise given instead of found: sigma over the sensitivity of an answer. With epsilon too, methods with local steps
    run the largest number of rounds that keeps to it (algorithm.rounds = null)."""
    delta: Real | Literal["1/n^2"] = "1/n^2"
    """A number, or 1/n^2 with each silo's own number of records n."""
    calibration: Literal["exact", "paper"] = "exact"
    """exact: least noise, by the closed Gaussian formula; paper: the printed constants of the method's paper."""
    noise: Literal["seeded", "guarded"] = "seeded"
    """seeded: NumPy's normals that follow from the public seed, a simulation; guarded: on an integer grid, from a
    secret key that each silo makes for the run and keeps in its ledger (sqlite)."""
    ledger: Literal["memory", "sqlite"] = "memory"
    """memory: simulated silos, kept with the checkpoint; sqlite: durable, one file per silo."""
    cap: CapConfig | None = None
    """Over all runs; needs the sqlite ledger, since the other one forgets. Not part of what makes a run the same."""

    @property
    def level(self) -> str:
        """Target or noise, as people look for it in a list of runs."""
        said = [] if self.epsilon is None else [f"epsilon {self.epsilon:g}"]
        said += [] if self.noise_multiplier is None else [f"noise {self.noise_multiplier:g}"]
        return ", ".join(said) or "no privacy"

    @model_validator(mode="after")
    def _target_fits_trust(self) -> PrivacyConfig:
        if self.trust == "none" and self.epsilon is not None:
            raise ValueError("privacy.epsilon has no meaning with privacy.trust = none (no noise): set it to null")
        if self.trust == "none" and self.noise_multiplier is not None:
            raise ValueError("privacy.noise_multiplier has no meaning with privacy.trust = none (no noise): null")
        if self.trust == "inter-silo" and self.epsilon is None and self.noise_multiplier is None:
            raise ValueError("privacy.epsilon is missing: give a positive number, for instance 1.0")
        if not isinstance(self.delta, str) and not 0 < self.delta < 1:
            raise ValueError(f"privacy.delta = {self.delta} must lie strictly between 0 and 1")
        if self.noise == "guarded" and self.ledger != "sqlite":
            raise ValueError("privacy.noise = guarded needs privacy.ledger = sqlite, where the secret key is kept")
        if self.noise == "guarded" and self.trust == "none":
            raise ValueError("privacy.noise = guarded has no meaning with privacy.trust = none (no noise)")
        if self.cap is not None and self.ledger != "sqlite":
            raise ValueError("privacy.cap needs privacy.ledger = sqlite: a ledger in memory forgets earlier runs")
        if self.cap is not None and not isinstance(self.cap.delta, str) and not 0 < self.cap.delta < 1:
            raise ValueError(f"privacy.cap.delta = {self.cap.delta} must lie strictly between 0 and 1")
        return self


class ParticipationConfig(Section):
    silos_per_round: Count | None = Field(None, ge=1)
    """M: silos that answer in a round, drawn uniformly by public randomness; null: all of them."""


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
    """each-round: on disk before the next broadcast leaves; behind: by a thread, a crash may redo more rounds."""


class TrackingConfig(Section):
    mlflow: bool = True
    evaluate_every: Count = Field(1, ge=1)
    """Rounds between two evaluations on the public test data; the last round of a phase is always evaluated."""
    evaluate_from: Real = Field(0.0, ge=0, le=1)
    """Part of the run's rounds before the first evaluation."""
    simulation_metrics: bool | None = None
    """Log unprotected training loss and error over all silos under simulation/; null: for generated data only."""


class ExperimentConfig(Section):
    """One run."""

    name: str = Field("experiment", pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,60}$")
    seed: Count = Field(0, ge=0)
    """Public seed of the simulation: silos, splits, participation, noise."""
    repetition: Count = Field(0, ge=0)
    """Counts deliberate repetitions: the same parameters are the same run, not run twice unless this differs."""
    data: DataConfig = DigitsData()
    model: ModelConfig = ModelConfig()
    privacy: PrivacyConfig
    algorithm: AlgorithmConfig
    participation: ParticipationConfig = ParticipationConfig()
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
    def unprotected_constants(self) -> str | None:
        """Key and value by which records are prepared with constants from silos' records without noise, if any."""
        pca = self.data.pca if isinstance(self.data, ImageData) else None
        if pca is not None and pca.constants == "simulation":
            return "data.pca.constants = simulation"
        if isinstance(self.data, AlphaBetaData) and self.data.standardise != "none":
            return f"data.standardise = {self.data.standardise}"
        return None

    @property
    def released_pca(self) -> PcaConfig | None:
        """The section of principal components from released statistics, if that is where they come from."""
        pca = self.data.pca if isinstance(self.data, ImageData) else None
        return pca if pca is not None and pca.constants == "released" else None

    @model_validator(mode="after")
    def _statistics_have_a_target(self) -> ExperimentConfig:
        pca, private = self.released_pca, self.privacy.trust != "none"
        if pca is not None and private and pca.epsilon is None:
            raise ValueError(
                "data.pca.epsilon is missing: released constants need a target of their own, for instance 1.0"
            )
        if pca is not None and not private and pca.epsilon is not None:
            raise ValueError("data.pca.epsilon has no meaning with privacy.trust = none (no noise): leave it out")
        return self

    @model_validator(mode="after")
    def _guarded_silos_show_nothing_else(self) -> ExperimentConfig:
        if self.privacy.noise == "guarded" and self.tracking.simulation_metrics:
            raise ValueError("tracking.simulation_metrics = true shows what privacy.noise = guarded protects")
        if self.privacy.noise == "guarded" and self.unprotected_constants:
            other = "none" if isinstance(self.data, AlphaBetaData) else "public or released"
            raise ValueError(
                f"{self.unprotected_constants} shows what privacy.noise = guarded protects: choose {other}"
            )
        return self

    @model_validator(mode="before")
    @classmethod
    def _fill_kinds(cls, values: Any) -> Any:
        """`data` without a source is that of the digits, `loss` without a name the logistic one."""
        if not isinstance(values, dict):
            return values
        values = dict(values)
        if isinstance(values.get("data"), dict):
            values["data"] = {"source": "digits", **values["data"]}
        if isinstance(values.get("model"), dict) and isinstance(values["model"].get("loss"), dict):
            values["model"] = {**values["model"], "loss": {"name": "logistic", **values["model"]["loss"]}}
        return values

    @model_validator(mode="after")
    def _method_fits_network(self) -> ExperimentConfig:
        method = self.algorithm
        if self.model.convex:
            return self
        network = f"model.hidden = {self.model.hidden} makes a network, which is neither convex nor smooth"
        if method.name not in NONCONVEX:
            raise ValueError(
                f"{network}, and algorithm.name = {method.name!r} takes its steps from such constants: use "
                f"{', '.join(NONCONVEX[:-1])} or {NONCONVEX[-1]}"
            )
        if isinstance(method, LocalizedMbsgd) and (method.rounds is None or method.lam is None):
            raise ValueError(
                f"{network}: no theorem gives its schedule; give algorithm.rounds and algorithm.lam numbers"
            )
        if isinstance(method, Mbsgd | LocalizedMbsgd) and method.batch == "theory":
            raise ValueError(f"{network}: algorithm.batch = theory has no theorem for it; give a number, or null")
        return self

    @model_validator(mode="after")
    def _method_fits_loss(self) -> ExperimentConfig:
        name = self.algorithm.name
        if self.model.convex and not self.model.smooth and name not in SUBGRADIENT:
            raise ValueError(
                f"algorithm.name = {name!r} needs a smooth loss, and loss {self.model.loss.name!r} has kinks: use "
                f"{' or '.join(SUBGRADIENT)}, or smooth the loss with model.smoothing.name=moreau (or convolution)"
            )
        return self

    @model_validator(mode="after")
    def _noise_fits_method(self) -> ExperimentConfig:
        both = self.privacy.epsilon is not None and self.privacy.noise_multiplier is not None
        if both and self.algorithm.name not in LOCAL_STEPS:
            raise ValueError(
                f"privacy.epsilon and privacy.noise_multiplier are both given: {self.algorithm.name} needs one of them "
                f"({', '.join(LOCAL_STEPS)} find a number of rounds for both)"
            )
        stepped = (*LOCAL_STEPS, Mbsgd.name, OnePassMbsgd.name)
        theory = getattr(self.algorithm, "batch", None) == "theory"
        if self.privacy.noise_multiplier is not None and (self.algorithm.name not in stepped or theory):
            raise ValueError(
                f"privacy.noise_multiplier: {self.algorithm.name} takes numbers of its schedule from privacy.epsilon, "
                f"which is what to give; noise can be given to {', '.join(stepped)} (not with batch = theory)"
            )
        return self

    @model_validator(mode="after")
    def _labels_fit_loss(self) -> ExperimentConfig:
        values, name = self.data.label_values, self.model.loss.name
        if values is None and (self.model.loss.binary or self.model.class_ids):
            raise ValueError(f"loss {name!r} needs {'two ' * self.model.loss.binary}classes: set data.classes")
        if values is not None and len(values) > 2 and not self.model.class_ids:
            other = ", or two data.classes"
            if isinstance(self.data, ImageData):
                other = ", or data.labels = odd-even" if self.data.split == "odd-even" else ""
            raise ValueError(
                f"loss {name!r} is not one of several classes, and the label has {len(values)}: choose "
                f"model.loss.name = softmax{other}"
            )
        return self
