"""The public problem of a config and public sizes, from which plans are made; its training loss and start."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fedcore.accounting.calibration import Budget
from fedcore.accounting.tiny_silos import refusal
from fedcore.arrays import Vector
from fedcore.errors import InputError
from fedcore.experiment.config import ExperimentConfig
from fedcore.losses import DrawnConvolution, Smoothable, Softmax
from fedcore.models import Network, Objective, OneHiddenLayer, RegressionNetwork, SoftmaxRegression, model_of
from fedcore.models.regression_network import RegressionLoss
from fedcore.planning.evaluation import BINS, Evaluation
from fedcore.planning.participation import SilosPerRound
from fedcore.planning.problem import ObjectiveFacts, Problem, SiloFacts, Trust
from fedcore.planning.shuffle import Shuffle
from fedcore.randomness import draws, public_key

SUM_TO_1 = 1e-6
"""Tolerance on the sum of weights given as numbers, enough for thirds of six decimals."""


def make_problem(config: ExperimentConfig, silos: Sequence[SiloFacts], features: int) -> Problem:
    """The public problem, for records of so many features. Raises InputError naming the key that does not fit."""
    privacy = config.privacy
    budget = Budget(
        privacy.epsilon,
        None if isinstance(privacy.delta, str) else float(privacy.delta),
        privacy.calibration,
        "discrete-gaussian" if privacy.noise == "guarded" else "gaussian",
        privacy.noise_multiplier,
        None if privacy.whole_silo is None else privacy.whole_silo.target,
    )
    for silo in silos:
        if silo.n < 2:
            raise InputError(f"silo {silo.name}: {silo.n} records are too few; at least 2 are needed")
        budget.check(silo.name, silo.n)
        _check_tiny(config, silo)
    if config.evaluation is not None:
        silos = [replace(silo, held=config.evaluation.held(silo.n)) for silo in silos]
    problem = Problem(
        silos=_weighted(config, silos),
        objective=ObjectiveFacts(
            dim=features,
            clip=config.model.gradient_bound,
            smoothness=config.model.loss.smoothness_within(config.model.reach) * config.model.record_bound**2,
            diameter=config.model.diameter,
            ridge=config.model.ridge,
        ),
        budget=budget,
        participants=_participants(config, len(silos)),
        trust=Trust(config.person, _shuffle(config, len(silos)), config.privacy.trust == "central"),
        evaluation=_evaluation(config),
    )
    objective = training_loss(config, problem)
    start(config, objective, features)  # a domain that is too small for it is a mistake of the config
    beta = objective.smoothness_within(config.model.reach) * config.model.record_bound**2
    dim, drawn = model_of(objective).weights(features), isinstance(objective, DrawnConvolution)
    return replace(problem, objective=replace(problem.objective, dim=dim, smoothness=beta, drawn_points=drawn))


def _check_tiny(config: ExperimentConfig, silo: SiloFacts) -> None:
    """Raises InputError where 1/n^2 of a silo is no small delta and the config has it by default, not as a number."""
    if config.privacy.trust == "none":
        return
    deltas = {"privacy.delta": config.privacy.delta}
    if config.privacy.cap is not None:
        deltas["privacy.cap.delta"] = config.privacy.cap.delta
    for key, delta in deltas.items():
        if (why := refusal(delta, silo.n, key, "records" if config.person is None else "persons")) is not None:
            raise InputError(f"silo {silo.name}: {why}")


def _participants(config: ExperimentConfig, silos: int) -> SilosPerRound:
    """Number of silos per round, or the law of that number. Raises InputError for more than there are."""
    given = config.participation.silos_per_round
    if given is None:
        return silos
    if isinstance(given, int) and given > silos:
        raise InputError(f"participation.silos_per_round = {given} is more than the {silos} silos there are")
    if isinstance(given, tuple) and max(given) > silos:
        raise InputError(
            f"participation.silos_per_round lists {max(given)}, which is more than the {silos} silos there are"
        )
    return given


def _weighted(config: ExperimentConfig, silos: Sequence[SiloFacts]) -> tuple[SiloFacts, ...]:
    """The silos with their weights, of mean 1. Raises InputError for numbers that do not fit the silos."""
    chosen = config.participation.weights
    if chosen == "equal":
        return tuple(silos)
    given = [float(silo.n) for silo in silos] if isinstance(chosen, str) else list(chosen)
    total = sum(given)
    if len(given) != len(silos):
        raise InputError(
            f"participation.weights has {len(given)} numbers, and there are {len(silos)} silos: give one for each"
        )
    if not isinstance(chosen, str) and not abs(total - 1.0) <= SUM_TO_1:
        raise InputError(
            f"participation.weights add up to {total:.9g} and must to 1, to {SUM_TO_1:g}: divide each by their sum, or "
            "say records for weights by numbers of records"
        )
    relative = tuple(weight * len(given) / total for weight in given)
    for silo, weight in zip(silos, relative, strict=True):
        if weight == 0:
            raise InputError(
                f"participation.weights: silo {silo.name} has weight 0; it would answer and be charged for nothing, so "
                "leave it out of the data"
            )
    return tuple(replace(silo, weight=weight) for silo, weight in zip(silos, relative, strict=True))


def _shuffle(config: ExperimentConfig, n_silos: int) -> Shuffle | None:
    """Public facts of the shuffler, if there is one. Raises InputError for a random number of participants."""
    section, participants = config.shuffler, config.participation.silos_per_round
    if section is None:
        return None
    return Shuffle.of(section.minimum, n_silos if participants is None else participants)


def _evaluation(config: ExperimentConfig) -> Evaluation | None:
    """The evaluation on held-out records, if there is one. Raises InputError for labels that are no classes."""
    section, classes, loss = config.evaluation, config.data.label_values, config.model.loss
    if section is None:
        return None
    if classes is None or not loss.labels.classes:
        raise InputError(
            f"evaluation: a histogram of held-out records counts classes, and loss {loss.name!r} takes "
            f"{loss.labels.name}: choose data.classes and a loss of classes, or leave evaluation out"
        )
    if section.bins is not None and len(classes) > 2:
        raise InputError(
            f"evaluation.bins = {section.bins} is for two classes; of {len(classes)} the predicted one is counted: "
            "leave it out"
        )
    epsilon = config.privacy.epsilon if section.epsilon is None else section.epsilon
    bins = BINS if section.bins is None else section.bins
    return Evaluation(epsilon, section.every, len(classes), bins, config.model.record_bound)


def training_loss(config: ExperimentConfig, problem: Problem) -> Objective:
    """The objective of training: the config's loss, its smoothed form for the problem, or a model with the data's
    classes."""
    loss, smoothing = config.model.loss, config.model.smoothing
    if isinstance(loss, Softmax):
        classes, hidden = len(config.data.label_values or ()), config.model.hidden
        if hidden is None:
            return SoftmaxRegression(classes)
        return OneHiddenLayer(classes, hidden, config.model.activation)
    if config.model.hidden is not None and isinstance(loss, RegressionLoss):
        return RegressionNetwork(config.model.hidden, config.model.activation, loss)
    if smoothing is None or not isinstance(loss, Smoothable):
        return loss
    return smoothing.of(loss, problem, config.model.record_bound, config.algorithm.envelope)


def start(config: ExperimentConfig, objective: Objective, features: int) -> Vector:
    """w_0 (d,) of the model, the same for all silos and methods; a random one is drawn by the public seed.

    Raises InputError if it lies outside of the domain.
    """
    drawn = draws(public_key(config.seed), "start")
    if isinstance(objective, Network):
        w = objective.start(features, drawn, config.model.start)
    else:
        w = model_of(objective).start(features, drawn)
    norm = float(np.linalg.norm(w))
    if norm > config.model.diameter / 2:
        raise InputError(
            f"model.diameter = {config.model.diameter:g}: the network starts at weights of norm {norm:.4g}, outside of "
            f"the ball around 0 of this diameter; choose more than {2 * norm:.4g}"
        )
    return w
