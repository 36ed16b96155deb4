"""Checks that methods, losses, labels, noise and trust of a config fit together; each error names its keys."""

from __future__ import annotations

from fedcore.algorithms import AlgorithmConfig, with_trait
from fedcore.data.data_config import DataConfig
from fedcore.data.federations.federation_data import FederationData
from fedcore.data.sources.images import ImageData
from fedcore.data.sources.regression import RegressionData
from fedcore.data.sources.tables.split import TablesData
from fedcore.data.sources.teacher import TeacherData
from fedcore.data.tabular import OwnTable
from fedcore.losses import LOSSES, REALS
from fedcore.models.model_config import ModelConfig
from fedcore.models.smoothing import ConvolutionSmoothing
from fedcore.planning.plan_config import EvaluationConfig, ParticipationConfig, PrivacyConfig

_OF_NUMBERS = [name for name, loss in LOSSES.items() if loss.labels == REALS]


def check_shuffled(
    method: AlgorithmConfig,
    privacy: PrivacyConfig,
    participation: ParticipationConfig,
    evaluation: EvaluationConfig | None,
    released: str | None,
) -> None:
    """Raises ValueError for settings that identify messages of a batch, or lack an accounting for shuffled batches.

    `released`: the key of the section whose constants silos release before the run; None if there is none.
    """
    if method.sends_own_arrays or method.several_answers:
        own, often = "sends silos arrays of their own", "asks silos several times in a round"
        why = own if method.sends_own_arrays else often
        raise ValueError(
            f"privacy.trust = shuffler: algorithm.name = {method.name!r} {why}, which needs to know whose a "
            "message is; choose a method of minibatch SGD"
        )
    if len(method.asks) > 1:
        raise ValueError(
            f"privacy.trust = shuffler has its accounting for rounds of one kind, and algorithm.name = {method.name!r} "
            f"asks for {_listed(list(method.asks))}; choose a method of minibatch SGD"
        )
    if (batch := getattr(method, "batch", None)) is not None:
        raise ValueError(
            f"privacy.trust = shuffler has its accounting for full batches only: algorithm.batch = {batch} must be null"
        )
    if privacy.whole_silo is not None:
        raise ValueError(
            "privacy.whole_silo is a target without a shuffler, and privacy.trust = shuffler has none for whole "
            "silos: leave one out"
        )
    if participation.weights != "equal":
        raise ValueError(
            "privacy.trust = shuffler needs participation.weights = equal: the server cannot tell whose message it "
            "weighs"
        )
    if evaluation is not None:
        raise ValueError(
            "privacy.trust = shuffler has no evaluation of held-out records, which names the silo of each answer: "
            "leave evaluation out"
        )
    if released is not None:
        raise ValueError(
            f"{released}.constants = released: each silo's statistic goes to the driver by its name, "
            "which privacy.trust = shuffler does not cover; choose public constants"
        )


def check_aggregated(
    method: AlgorithmConfig,
    participation: ParticipationConfig,
    evaluation: EvaluationConfig | None,
    released: str | None,
) -> None:
    """Raises ValueError for settings without a meaning or a plan where an aggregator adds the noise.

    `released`: the key of the section whose constants silos release before the run; None if there is none.
    """
    if not method.takes_aggregator or method.from_theory:
        raise ValueError(
            f"privacy.trust = central: algorithm.name = {method.name!r} is planned for silos that add their noise "
            f"themselves; use {_listed(with_trait('takes_aggregator'))}, with no number left to a theorem"
        )
    if participation.silos_per_round is not None:
        raise ValueError(
            "privacy.trust = central needs all silos in every round: leave participation.silos_per_round out"
        )
    if evaluation is not None:
        raise ValueError(
            "privacy.trust = central has no evaluation of held-out records, to which silos add their own noise: leave "
            "evaluation out"
        )
    if released is not None:
        raise ValueError(
            f"{released}.constants = released: silos release that statistic themselves, which privacy.trust = central "
            "does not cover; choose public constants"
        )


def check_network(method: AlgorithmConfig, model: ModelConfig) -> None:
    """Raises ValueError for a network with a method that takes its steps or rounds from theorems."""
    if model.convex:
        return
    network = f"model.hidden = {model.hidden} makes a network, which is neither convex nor smooth"
    if not method.takes_nonconvex:
        raise ValueError(
            f"{network}, and algorithm.name = {method.name!r} takes its steps from such constants: use "
            f"{_listed(with_trait('takes_nonconvex'))}"
        )
    if method.from_theory:
        left = " and ".join(f"algorithm.{key} = {getattr(method, key) or 'null'}" for key in method.from_theory)
        raise ValueError(f"{network}, and no theorem is about such models: {left} must be given as numbers")


def check_linear(method: AlgorithmConfig, model: ModelConfig) -> None:
    """Raises ValueError for a model that is no linear predictor with a method that needs Hessians of one."""
    if not method.linear_only:
        return
    fix = None
    if not model.convex:
        fix = f"model.hidden = {model.hidden} makes a network"
    elif model.class_ids:
        fix = f"loss {model.loss.name!r} has a predictor for each class"
    elif isinstance(model.smoothing, ConvolutionSmoothing) and model.smoothing.estimate == "sampled":
        fix = "model.smoothing.estimate = sampled draws its points anew for each answer"
    if fix is not None:
        raise ValueError(
            f"algorithm.name = {method.name!r} asks for Hessians of one linear predictor, and {fix}: choose another "
            "method or model"
        )


def check_loss(method: AlgorithmConfig, model: ModelConfig) -> None:
    """Raises ValueError for a nonsmooth loss with a method that needs a smooth one."""
    if model.convex and not model.smooth and not method.takes_nonsmooth:
        raise ValueError(
            f"algorithm.name = {method.name!r} needs a smooth loss, and loss {model.loss.name!r} is "
            f"nonsmooth: use {_listed(with_trait('takes_nonsmooth'))}, or smooth the loss with "
            "model.smoothing.name=moreau (or convolution)"
        )


def check_noise(method: AlgorithmConfig, privacy: PrivacyConfig) -> None:
    """Raises ValueError for a noise multiplier with a method that does not take one, or not beside epsilon."""
    both = privacy.epsilon is not None and privacy.noise_multiplier is not None
    if both and not method.several_answers:
        raise ValueError(
            f"privacy.epsilon and privacy.noise_multiplier are both given: {method.name} needs one of them "
            f"({', '.join(with_trait('several_answers'))} find a number of rounds for both)"
        )
    fits = method.takes_given_noise and not method.from_theory
    if privacy.noise_multiplier is not None and not fits:
        raise ValueError(
            f"privacy.noise_multiplier: {method.name} takes numbers of its schedule from privacy.epsilon, "
            f"which is what to give; noise can be given to {', '.join(with_trait('takes_given_noise'))} (not with "
            "numbers that are left to a theorem)"
        )


def check_labels(data: DataConfig, model: ModelConfig) -> None:
    """Raises ValueError for labels that the loss does not take."""
    values, name, labels = data.label_values, model.loss.name, model.loss.labels
    if values is None and labels.classes:
        fix = "set data.classes"
        if isinstance(data, RegressionData | TablesData | TeacherData):
            fix = f"the label is a number: choose model.loss.name = {_listed(_OF_NUMBERS)}"
        raise ValueError(f"loss {name!r} needs {labels.name}: {fix}")
    if labels.whole and not labels.classes:
        _check_counts(data, model)
    if values is not None and len(values) > 2 and not model.class_ids:
        other = ", or two data.classes"
        if isinstance(data, ImageData):
            other = ", or data.labels = odd-even" if data.split == "odd-even" else ""
        if isinstance(data, TablesData):
            other = ", or another data.table"
        raise ValueError(
            f"loss {name!r} is not one of several classes, and the label has {len(values)}: choose "
            f"model.loss.name = softmax{other}"
        )


def check_federation(data: DataConfig, privacy: PrivacyConfig, backend: str, released: str | None) -> None:
    """Raises ValueError unless silos of a federation are asked by their services, with guarded noise, and alone."""
    if not isinstance(data, FederationData):
        if backend == "federation":
            raise ValueError(
                f"cluster.backend = federation asks silos' own services, and data.source = {data.source} has none"
            )
        return
    if backend != "federation":
        raise ValueError(
            f"cluster.backend = {backend}, but silos of data.source = federation guard real records and answer by "
            "their own services only: leave it out"
        )
    if privacy.noise != "guarded":
        raise ValueError("data.source = federation needs privacy.noise = guarded and privacy.ledger = sqlite")
    if privacy.trust == "shuffler":
        raise ValueError("privacy.trust = shuffler is not supported with data.source = federation yet: choose silos")
    if released is not None:
        raise ValueError(
            f"{released} = released is a release before training, not supported with data.source = federation yet: "
            "give public constants"
        )


def check_shared(privacy: PrivacyConfig, address: str | None) -> None:
    """Raises ValueError for guarded silos on a Dask cluster that others may use."""
    if privacy.noise == "guarded" and address is not None:
        raise ValueError(
            f"cluster.address = {address}: whoever reaches a shared scheduler runs code where records are, so guarded "
            "silos answer on this machine (leave cluster.address out) or by services of their own (data.source = "
            "federation)"
        )


def check_absent(
    data: DataConfig, privacy: PrivacyConfig, participation: ParticipationConfig, evaluation: EvaluationConfig | None
) -> None:
    """Raises ValueError if silos may be skipped where there are no services, or where the result needs all of them."""
    if participation.absent == "wait":
        return
    if privacy.trust == "central":
        raise ValueError("participation.absent = skip: an aggregator needs all silos in every round; say wait")
    if not isinstance(data, FederationData):
        raise ValueError(
            f"participation.absent = skip is about the services of data.source = federation, not {data.source}: leave "
            "it out"
        )
    if evaluation is not None:
        raise ValueError(
            "participation.absent = skip: an evaluation counts the held-out records of all silos; say wait, or leave "
            "evaluation out"
        )


def _check_counts(data: DataConfig, model: ModelConfig) -> None:
    """Raises ValueError unless the label is an integer column of a file."""
    name, takes = model.loss.name, model.loss.labels.name
    if not isinstance(data, OwnTable):
        raise ValueError(f"loss {name!r} takes {takes}, and data.source = {data.source!r} has none: use files")
    if data.label_values is not None:
        raise ValueError(f"loss {name!r} takes {takes}, and data.classes codes classes: set data.classes = null")
    if data.label_range is not None:
        raise ValueError(f"loss {name!r} takes {takes}, and data.label_range maps the label to -1 to 1: leave it out")


def _listed(names: list[str]) -> str:
    return " or ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
