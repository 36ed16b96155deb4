"""Config sections `privacy`, `participation`, `evaluation` and `shuffler`, from which plans are made."""

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
    """The limit on a silo's privacy loss over all runs on its records, which its ledger enforces."""

    epsilon: Real = Field(gt=0)
    """Largest epsilon over all runs, at `delta`."""
    delta: Real | Literal["1/n^2"] = "1/n^2"
    """A number, or 1/n^2 with each silo's own number of records n."""
    rule: Rule = "gdp"
    """Rule that adds up runs. gdp: exact for full batches, counts a sample as all records; rdp: Renyi divergences add
    up at one order, which the account's first cap fixes, and samples count with their own; basic: epsilons and deltas
    add up."""

    def of(self, n: int) -> Cap:
        """The cap of a silo with n records."""
        return Cap(self.epsilon, 1.0 / n**2 if isinstance(self.delta, str) else float(self.delta), self.rule)


class WholeSiloConfig(Section):
    """A second guarantee, for replacing all records of a silo, such as one that is a single person."""

    epsilon: Real = Field(gt=0)
    """Target for all messages of the silo in the run."""
    delta: Real = Field(gt=0, lt=1)
    """A number, below one over the number of silos."""

    @property
    def target(self) -> WholeSilo:
        return WholeSilo(float(self.epsilon), float(self.delta))


class PrivacyConfig(Section):
    """The guarantee of every silo towards everyone else, for replacement of one record."""

    trust: Literal["inter-silo", "shuffler", "central", "none"] = "inter-silo"
    """inter-silo: every vector that leaves a silo is differentially private; shuffler: also, a process between silos
    and server permutes the messages of a round, for which a second epsilon is shown; central: SIMULATION of a trusted
    aggregator that receives clipped sums and adds one noise for all; none: NO NOISE, for reference."""
    epsilon: Real | None = Field(None, gt=0)
    """Target for the whole run; required unless trust is none, or noise_multiplier is given."""
    noise_multiplier: Real | None = Field(None, gt=0)
    """Given noise: sigma over the sensitivity of an answer. With epsilon too, methods with local steps run the largest
    number of rounds that keeps to epsilon (algorithm.rounds = null)."""
    delta: Real | Literal["1/n^2"] = "1/n^2"
    """A number, or 1/n^2 with each silo's own number of records n."""
    calibration: Calibration = "exact"
    """exact: least noise, by the closed Gaussian formula; paper: the published constants of the method's paper;
    experiments: the unproved formula of Lowy and Razaviyayn's experiments, which may spend more than its target."""
    noise: Literal["seeded", "guarded"] = "seeded"
    """seeded: normals that follow from the public seed, a simulation; guarded: noise on an integer grid, from a secret
    key that each silo makes for the run and stores in its ledger (sqlite)."""
    ledger: Literal["memory", "sqlite"] = "memory"
    """memory: simulated silos, stored with the checkpoint; sqlite: durable, one file per silo."""
    whole_silo: WholeSiloConfig | None = None
    """A target for the whole data set of each silo, beside that for each record: noise meets both; null: none."""
    cap: CapConfig | None = None
    """Limit over all runs; needs the sqlite ledger, since a ledger in memory forgets. Not part of a run's identity."""

    @property
    def level(self) -> str:
        """Target or noise in words, for lists of runs."""
        parts = [] if self.epsilon is None else [f"epsilon {in_full(self.epsilon)}"]
        parts += [] if self.noise_multiplier is None else [f"noise {in_full(self.noise_multiplier)}"]
        parts += [] if self.whole_silo is None else [f"whole-silo {in_full(self.whole_silo.epsilon)}"]
        return ", ".join(parts) or "no privacy"

    @model_validator(mode="after")
    def _target_fits_trust(self) -> PrivacyConfig:
        if self.trust == "none" and self.epsilon is not None:
            raise ValueError("privacy.epsilon has no meaning with privacy.trust = none (no noise): set it to null")
        if self.trust == "none" and self.noise_multiplier is not None:
            raise ValueError("privacy.noise_multiplier has no meaning with privacy.trust = none (no noise): null")
        if self.trust != "none" and self.epsilon is None and self.noise_multiplier is None:
            raise ValueError(
                "privacy.epsilon is missing: give a positive number, for instance 1.0; for a run without noise set "
                "privacy.trust = none"
            )
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
    """M: silos that answer in a round, drawn uniformly by public randomness; null: all. A random M is a list of equally
    likely numbers, or binomial: q. With binomial each silo takes part with chance q, given that one does."""
    weights: Literal["equal", "records"] | tuple[Annotated[Real, Field(ge=0)], ...] = "equal"
    """p_i, the weight of each silo's answer in the objective: equal, or records, its public number of records. As
    numbers: above 0, with sum 1, one per silo in the order of the data. The server applies them once; silos do not."""
    absent: Literal["wait", "skip"] = "wait"
    """Waits for silos of a federation that do not answer, or goes on without them: the mean is then over those that
    answered. A skipped silo may have been charged for an answer that was not counted. Not part of a run's identity, so
    a run that waits can be resumed with skip."""
    deadline: Real = Field(60.0, gt=0, le=LONGEST_DEADLINE)
    """Seconds after which silos are skipped, at most a week. Not part of a run's identity."""
    minimum: Count | None = Field(None, ge=1)
    """Number of answers without which no round goes on; null: half of those that are asked, rounded up. Not part of a
    run's identity."""


class EvaluationConfig(Section):
    """Federated evaluation: silos hold out a part of their records, and release a model's scores on them."""

    epsilon: Real | None = Field(None, ge=EPSILONS[0], le=EPSILONS[1])
    """Target of all evaluations of the run together, at the run's delta; null: that of training (privacy.epsilon). A
    record is trained on or held out, so it pays the larger of the two and not both."""
    every: Every = "end"
    """end: once, after the last phase of training, with all of the target; phase: after each phase, with a share."""
    fraction: Real = Field(0.2, gt=0, le=0.5)
    """Part of each silo's records that is held out of training, by row index, the same for all runs."""
    bins: Count | None = Field(None, ge=2, le=MOST_BINS, multiple_of=2)
    """Bins of scores for two classes, from which the area under the ROC curve is computed; null: 4. Fewer have less
    noise, and 2 are enough for errors and recall. More make the area less coarse."""

    def held(self, n: int) -> int:
        """Number of held-out records of a silo of n: at least one."""
        return max(1, math.floor(self.fraction * n + 1e-9))


class ShufflerConfig(Section):
    """The process between silos and server that permutes a round's messages (privacy.trust = shuffler)."""

    minimum: Count | None = Field(None, ge=2)
    """Least number of messages of a batch that the shuffler forwards. The epsilon of the shuffle model is computed for
    it. null: all that take part in a round."""
    deadline: Real = Field(60.0, gt=0, le=LONGEST_DEADLINE)
    """Seconds that the shuffler waits for the messages of a round, at most a week. Not part of a run's identity."""
    address: str | None = Field(None, pattern=r"^(https?://)?[A-Za-z0-9._\-]+:[0-9]{1,5}$")
    """host:port of a running shuffler, or https://host:port; null: the run starts its own. Not part of a run's
    identity."""
    secret: LocalPath | None = None
    """File with the secret that the shuffler at `address` requires of its callers; relative paths: from the working
    folder. Not part of a run's identity."""

    @model_validator(mode="after")
    def _secret_has_an_address(self) -> ShufflerConfig:
        if self.secret is not None and self.address is None:
            raise ValueError(
                f"secret = {self.secret!r} is for a shuffler that another party runs, and address is null: a run's own "
                "shuffler makes its own; leave one out"
            )
        return self
