"""What a run came to: made once, kept as JSON, and read by reports, tables and MLflow alike."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict

from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.released.kinds import statistic_of


class Kept(BaseModel):
    """Plain values; what does not apply to a run is not there in its JSON."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    def as_json(self) -> dict[str, Any]:
        return self.model_dump(mode="json", exclude_unset=True)


class Theorem(Kept):
    """The orders that a method's theorem names, without constants and logarithms."""

    source: str
    rounds: float
    gradient_evaluations: float


class SiloResult(Kept):
    """What a run cost one silo, by its ledger. An epsilon is None where it is infinite."""

    silo: str
    n: int
    releases: int
    epsilon: float | None
    delta: float
    epsilon_statistics: float | None = None
    """Of the moments that were released before the run; part of `epsilon`."""
    epsilon_training: float | None = None
    epsilon_whole_silo: float | None = None
    """For replacing all of its records, by the releases that took place; where that has a target."""
    disjoint: bool = False
    """Whether its operator has declared that persons of its other data versions are others (`fedcore budget register`).
    """


class Interval(Kept):
    """A measure and its interval of 95 percent: for the noise, and for which records there happen to be."""

    value: float
    low: float
    high: float


class HeldOut(Kept):
    """What silos released about records that they held out of training, in one phase."""

    phase: int
    records: int
    """Of all silos together."""
    error: Interval
    majority_error: Interval
    """Of always answering the most frequent class."""
    gain: Interval
    """By how much the model errs less than that."""
    recall: dict[str, Interval]
    """By class; of those that noise does not hide."""
    auc: Interval | None
    """Area under the ROC curve by bins of scores, of two classes."""
    silos: dict[str, Interval]
    """Errors by silo."""


class RunResult(Kept):
    """Of one finished run. An epsilon is None where it is infinite, or does not apply."""

    run: str
    method: str
    seed: int
    trust: str
    epsilon_target: float | None
    noise_multiplier: float | None = None
    epsilon_accounted: float | None
    """The largest of any silo, if it is asked in every round; with the statistics released before."""
    epsilon_spent: float | None
    """The largest of any silo, by the releases that took place."""
    epsilon_paper: float | None
    epsilon_shuffled: float | None = None
    """Of privacy.trust = shuffler: the largest of any silo, towards who sees shuffled batches of at least the planned
    minimum only. Ledgers charge what it is without a shuffler, `epsilon_spent`."""
    epsilon_honest_sampling: float | None = None
    delta: float
    epsilon_whole_silo_target: float | None = None
    epsilon_whole_silo: float | None = None
    """For replacing all records of a silo, at `delta_whole_silo`: the largest of any, if it is asked in every round."""
    delta_whole_silo: float | None = None
    unit: str = "records"
    """What epsilon is for and n counts: records, or persons by the column that says whose a row is."""
    rounds: int
    gradient_evaluations: int
    theorem: Theorem | None
    seconds: float
    """Of all rounds."""
    weights_sha256: str
    weights_shape: tuple[Any, ...]
    noise: str
    code: str
    test_loss: float | None = None
    """On public test data."""
    test_error: float | None = None
    test_error_tail: float | None = None
    """Mean over the last tenth of rounds."""
    majority_error: float | None = None
    """On the test data, of always answering their most frequent class."""
    test_recall: dict[str, float] | None = None
    """By class: part of its test records that is recognised."""
    test_auc: float | None = None
    """Area under the ROC curve; of more than two classes the mean of each against the rest."""
    test_errors: dict[str, float] | None = None
    """By silo, on the test records of its kind, where test data come from silos' places."""
    silo_mean_error: float | None = None
    """Plain mean of `test_errors`: each silo counts alike, whatever its number of test records."""
    silo_mean_majority_error: float | None = None
    """Of always answering, for each silo, the most frequent class of its test records."""
    test_rmse: float | None = None
    """Of labels that are numbers, in their own units: root of the mean squared error of the predicted mean."""
    test_mae: float | None = None
    """Of labels that are numbers, in their own units: mean absolute error of the predicted mean."""
    mean_rmse: float | None = None
    """Of always answering the mean of the test labels: their standard deviation."""
    variance_explained: float | None = None
    """1 - test_rmse^2 / mean_rmse^2."""
    held_out: tuple[HeldOut, ...] | None = None
    """By evaluation, in the order of phases; the last one is of the run's model."""
    simulation: dict[str, float] | None = None
    """NOT PRIVATE: over all silos' records, at the end."""
    silos: tuple[SiloResult, ...]
    epsilon_statistics: float | None = None
    epsilon_training: float | None = None
    statistics: str | None = None
    """Id of the release of moments before the run."""

    @property
    def relative_rmse(self) -> float | None:
        """test_rmse over mean_rmse: 1 is as good as always answering the mean of the test labels; None without.

        Lowy and Razaviyayn's measure, but for the mean: theirs is that of all training labels, a number from silos'
        records, and this one is public.
        """
        if self.test_rmse is None or not self.mean_rmse:
            return None
        return self.test_rmse / self.mean_rmse

    @property
    def error(self) -> float | None:
        """The part of wrong classes, or the RMSE of real labels: on test data, else on held-out
        records; None without."""
        if self.test_rmse is not None or self.test_error is not None:
            return self.test_rmse if self.test_rmse is not None else self.test_error
        return None if self.at_last is None else self.at_last.error.value

    @property
    def at_last(self) -> HeldOut | None:
        """What held-out records say of the run's model; None where none were asked."""
        return self.held_out[-1] if self.held_out else None

    @property
    def measure(self) -> str:
        """What `error` is."""
        if self.test_rmse is None and self.test_error is None and self.held_out:
            return "held-out error"
        return "test error" if self.test_rmse is None else "test RMSE"

    @property
    def baseline(self) -> float | None:
        """The same error without a model."""
        if self.measure == "held-out error":
            return None if self.at_last is None else self.at_last.majority_error.value
        return self.mean_rmse if self.test_rmse is not None else self.majority_error


class AbandonedRun(Kept):
    """Of a run that a sweep's patience ended for good: where, why, and what it has released and spent until then."""

    run: str
    sweep: str | None
    round: int
    """Of training, after which it was abandoned."""
    rounds: int
    """That were planned."""
    reason: str
    diverged: bool
    """Whether its values were no model any more; else by training losses of raw records (simulation/)."""
    epsilon_spent: float | None
    """The largest of any silo; None where it is infinite."""
    delta: float
    silos: tuple[SiloResult, ...]
    noise: str
    code: str

    @property
    def sentence(self) -> str:
        by = "a sweep" if self.sweep is None else f"sweep {self.sweep}"
        why = self.reason if self.diverged else f"by training losses of raw records: {self.reason}"
        return f"abandoned by the patience of {by} after round {self.round} of {self.rounds}, {why}"

    @property
    def refusal(self) -> str:
        """Why the run does not go on."""
        return (
            f"run {self.run} was {self.sentence}; its silos have closed it, so it does not go on: set repetition to "
            "another number to run it anew, at a charge of its own"
        )


class StatisticsResult(Kept):
    """Of one finished release of moments."""

    run: str
    epsilon_target: float | None
    epsilon_accounted: float | None
    delta: float
    numbers: int
    """Of the statistic."""
    moments_sha256: str
    silos: tuple[SiloResult, ...]
    code: str


def shortfall(result: RunResult) -> str | None:
    """A sentence where the model is no better on the test data than none would be; None where it is, or none knows."""
    error, alone, last = result.error, result.baseline, result.at_last
    if error is None or alone is None:
        return None
    if result.measure == "held-out error" and last is not None and last.gain.low <= 0.0:
        unit = result.unit.split()[0]
        return (
            f"not shown by held-out {unit} to be better than always answering the most frequent class: error "
            f"{error:.3f}, without a model {alone:.3f}, less by {last.gain.low:.3f} to {last.gain.high:.3f}"
        )
    return no_better(error, alone, "most frequent class" if result.test_rmse is None else "mean")


def no_better(error: float, alone: float, constant: str) -> str | None:
    """A sentence where an error is no less than that of always answering the same, `alone`; None where it is less."""
    if error < alone:
        return None
    return f"no better than always answering the {constant}: error {error:.4g}, without a model {alone:.4g}"


STAMP = "seeded simulation: the noise follows from the public seed and protects nobody who knows it"
GUARDED = "noise on an integer grid under secret keys of the silos; the guarantee is computational"
AGGREGATOR = (
    "SIMULATION of a trusted aggregator (privacy.trust = central): it sees the sums of every silo without noise, and "
    "adds one noise for all"
)
SECRET = "noise in double precision under secret keys of one call, which forgot them: no other call repeats it"
UNPROTECTED = {
    "data.pca.constants = simulation": "principal components of all silos' records",
    "data.standardise = global": "means and standard deviations of all silos' records",
    "data.standardise = row-minmax": "the smallest and largest entries of single records of each silo",
    "data.split = flamby": "row numbers that a benchmark chose by missing values and labels of the records",
}
"""With which constants records were prepared, by `ExperimentConfig.unprotected_constants`."""
RELEASED = (
    "{use} that the silos released with noise; accounted epsilon covers that release and training together "
    "({key}.constants = released)"
)


def stamp(config: ExperimentConfig, secret: bool = False) -> str:
    """What every artefact of a run says of its noise, and of constants that no noise protects.

    `secret`: whether silos that are not guarded had secret keys.
    """
    noise = GUARDED if config.privacy.noise == "guarded" else SECRET if secret else STAMP
    if config.privacy.trust == "central":
        followed = "which follows from the public seed and protects nobody who knows it"
        noise = f"{AGGREGATOR}; {SECRET}" if secret else f"{AGGREGATOR}, {followed}"
    if (statistic := statistic_of(config)) is not None:
        return f"{noise}; {RELEASED.format(use=statistic.use, key=statistic.section.key)}"
    key = config.unprotected_constants
    if key is None:
        return noise
    return (
        f"{noise}; its records were prepared with {UNPROTECTED[key]}, computed without noise: "
        f"OUTSIDE OF THE GUARANTEE ({key})"
    )
