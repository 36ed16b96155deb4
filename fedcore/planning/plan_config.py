"""What `privacy`, `participation`, `evaluation` and `shuffler` may say: what plans take from a config."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import Field, model_validator

from fedcore.accounting.calibration import EPSILONS, Calibration
from fedcore.accounting.filters import Cap, Rule
from fedcore.accounting.whole_silo import WholeSilo
from fedcore.directed_rounding import in_full
from fedcore.hyperparameters import Count, Real, Section
from fedcore.paths import LocalPath
from fedcore.planning.evaluation import MOST_BINS, Every
from fedcore.planning.participation import SilosPerRound
from fedcore.planning.shuffle import LONGEST_DEADLINE


class CapConfig(Section):
    """The limit of every silo over all runs on its records, kept by its ledger."""

    epsilon: Real = Field(gt=0)
    """At most this much, at `delta`, over all runs."""
    delta: Real | Literal["1/n^2"] = "1/n^2"
    """A number, or 1/n^2 with each silo's own number of records n."""
    rule: Rule = "gdp"
    """How runs add up. gdp: loses nothing for full batches, and counts a sample as all records. rdp: Renyi divergences
    of one order add up, samples at their own; that order is the account's, which its first cap implied, for life.
    basic: epsilons and deltas add up."""

    def of(self, n: int) -> Cap:
        """The cap of a silo with n records."""
        return Cap(self.epsilon, 1.0 / n**2 if isinstance(self.delta, str) else float(self.delta), self.rule)


class WholeSiloConfig(Section):
    """A second guarantee, for replacing all records of a silo: where a silo is one person, or is to be protected."""

    epsilon: Real = Field(gt=0)
    """Target for all that the silo sends in the run."""
    delta: Real = Field(gt=0, lt=1)
    """A number, below one over the number of silos."""

    @property
    def target(self) -> WholeSilo:
        return WholeSilo(float(self.epsilon), float(self.delta))


class PrivacyConfig(Section):
    """The guarantee of every silo towards everybody else, for replacement of one record."""

    trust: Literal["inter-silo", "shuffler", "central", "none"] = "inter-silo"
    """inter-silo: every vector that leaves a silo is differentially private; shuffler: so, and a process between silos
    and server permutes the messages of a round, for which a second epsilon is shown; central: SIMULATION of an
    aggregator that silos trust with clipped sums and that adds one noise for all; none: NO NOISE, for reference."""
    epsilon: Real | None = Field(None, gt=0)
    """Target for the whole run; required unless trust is none, or noise_multiplier is given."""
    noise_multiplier: Real | None = Field(None, gt=0)
    """Noise given instead of found: sigma over the sensitivity of an answer. With epsilon too, methods with local steps
    run the largest number of rounds that keeps to it (algorithm.rounds = null)."""
    delta: Real | Literal["1/n^2"] = "1/n^2"
    """A number, or 1/n^2 with each silo's own number of records n."""
    calibration: Calibration = "exact"
    """exact: least noise, by the closed Gaussian formula; paper: the published constants of the method's paper;
    experiments: the formula without proof of Lowy and Razaviyayn's experiments, which may spend more than it says."""
    noise: Literal["seeded", "guarded"] = "seeded"
    """seeded: NumPy's normals that follow from the public seed, a simulation; guarded: on an integer grid, from a
    secret key that each silo makes for the run and keeps in its ledger (sqlite)."""
    ledger: Literal["memory", "sqlite"] = "memory"
    """memory: simulated silos, kept with the checkpoint; sqlite: durable, one file per silo."""
    whole_silo: WholeSiloConfig | None = None
    """A target for the whole data set of each silo, beside that for each record: noise is what both need; null: none.
    """
    cap: CapConfig | None = None
    """Over all runs; needs the sqlite ledger, since the other one forgets. Not part of what makes a run the same."""

    @property
    def level(self) -> str:
        """Target or noise, as people look for it in a list of runs."""
        said = [] if self.epsilon is None else [f"epsilon {in_full(self.epsilon)}"]
        said += [] if self.noise_multiplier is None else [f"noise {in_full(self.noise_multiplier)}"]
        said += [] if self.whole_silo is None else [f"whole-silo {in_full(self.whole_silo.epsilon)}"]
        return ", ".join(said) or "no privacy"

    @model_validator(mode="after")
    def _target_fits_trust(self) -> PrivacyConfig:
        if self.trust == "none" and self.epsilon is not None:
            raise ValueError("privacy.epsilon has no meaning with privacy.trust = none (no noise): set it to null")
        if self.trust == "none" and self.noise_multiplier is not None:
            raise ValueError("privacy.noise_multiplier has no meaning with privacy.trust = none (no noise): null")
        if self.trust != "none" and self.epsilon is None and self.noise_multiplier is None:
            raise ValueError("privacy.epsilon is missing: give a positive number, for instance 1.0")
        if self.whole_silo is not None:
            if self.trust == "none":
                raise ValueError("privacy.whole_silo has no meaning with privacy.trust = none (no noise): null")
            if self.noise_multiplier is not None:
                raise ValueError("privacy.whole_silo finds noise, and privacy.noise_multiplier gives it: leave one out")
            if self.calibration == "paper":
                raise ValueError("privacy.whole_silo needs privacy.calibration = exact: no paper's noise is for it")
        if not isinstance(self.delta, str) and not 0 < self.delta < 1:
            raise ValueError(f"privacy.delta = {self.delta} must lie strictly between 0 and 1")
        if self.noise == "guarded" and self.ledger != "sqlite":
            raise ValueError("privacy.noise = guarded needs privacy.ledger = sqlite, where the secret key is kept")
        if self.noise == "guarded" and self.trust == "none":
            raise ValueError("privacy.noise = guarded has no meaning with privacy.trust = none (no noise)")
        if self.noise == "guarded" and self.trust == "central":
            raise ValueError(
                "privacy.noise = guarded: such silos trust no aggregator with sums, and privacy.trust = central is a "
                "simulation: choose seeded, or inter-silo"
            )
        if self.trust == "central" and self.whole_silo is not None:
            raise ValueError("privacy.whole_silo has no noise of an aggregator: leave it out with trust = central")
        if self.trust == "shuffler" and self.ledger != "sqlite":
            raise ValueError(
                "privacy.trust = shuffler needs privacy.ledger = sqlite: a ledger in memory leaves receipts with the "
                "driver, which name the silo of each message"
            )
        if self.trust == "shuffler" and self.calibration != "exact":
            raise ValueError(
                f"privacy.calibration = {self.calibration} has no noise for shuffled batches, whose published "
                "constant is unspecified: choose exact"
            )
        if self.cap is not None and self.ledger != "sqlite":
            raise ValueError("privacy.cap needs privacy.ledger = sqlite: a ledger in memory forgets earlier runs")
        if self.cap is not None and not isinstance(self.cap.delta, str) and not 0 < self.cap.delta < 1:
            raise ValueError(f"privacy.cap.delta = {self.cap.delta} must lie strictly between 0 and 1")
        return self


class ParticipationConfig(Section):
    silos_per_round: SilosPerRound | None = None
    """M: silos that answer in a round, drawn uniformly by public randomness; null: all of them. Where their number is
    random itself: a list of numbers, each as likely, or binomial: q, every silo with chance q, given that one is there.
    """
    weights: Literal["equal", "records"] | tuple[Annotated[Real, Field(ge=0)], ...] = "equal"
    """p_i, how much each silo's answer counts in the objective: equal, by its public number of records, or as numbers
    above 0 that add up to 1, one for each silo in the order of the data. Applied once, by the server: silos answer as
    they would without."""


class EvaluationConfig(Section):
    """Federated evaluation: silos hold out a part of their records, and release how a model does on them."""

    epsilon: Real | None = Field(None, ge=EPSILONS[0], le=EPSILONS[1])
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
    secret: LocalPath | None = None
    """File that holds what the shuffler at `address` asks its callers for; relative paths: from the working folder. Not
    part of what makes a run the same."""

    @model_validator(mode="after")
    def _secret_has_an_address(self) -> ShufflerConfig:
        if self.secret is not None and self.address is None:
            raise ValueError(
                f"secret = {self.secret!r} is for a shuffler that somebody else runs, and address is null: a run's own "
                "shuffler makes its own; leave one out"
            )
        return self
