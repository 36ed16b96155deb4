"""Results of runs: made once, stored as JSON, and read by reports, tables and MLflow."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict

from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.released.kinds import statistic_of


class Stored(BaseModel):
    """Plain values, stored as JSON without the fields that do not apply to a run."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    def as_json(self) -> dict[str, Any]:
        return self.model_dump(mode="json", exclude_unset=True)


class Theorem(Stored):
    """The orders in a method's theorem, without constants and logarithms."""

    source: str
    rounds: float
    gradient_evaluations: float


class SiloResult(Stored):
    """Cost of a run to one silo, by its ledger. An epsilon is None where it is infinite."""

    silo: str
    n: int
    releases: int
    epsilon: float | None
    delta: float
    epsilon_statistics: float | None = None
    """Epsilon of the statistics released before the run; part of `epsilon`."""
    epsilon_training: float | None = None
    epsilon_whole_silo: float | None = None
    """Epsilon for replacing all of its records, by the releases that took place; where it has a target."""
    disjoint: bool = False
    """Its operator has declared that its other data versions hold other persons (`fedcore budget register`)."""


class Interval(Stored):
    """A measure and its interval of 95 percent, for the noise and for the sampling of records."""

    value: float
    low: float
    high: float


class HeldOut(Stored):
    """Measures of a model from the histograms of held-out records that silos released in one phase."""

    phase: int
    records: int
    """Number of held-out records of all silos."""
    error: Interval
    majority_error: Interval
    """Error of always answering the most frequent class."""
    gain: Interval
    """`majority_error` minus `error`."""
    recall: dict[str, Interval]
    """By class, without classes that noise hides."""
    auc: Interval | None
    """Area under the ROC curve, by bins of scores; None for more than two classes."""
    silos: dict[str, Interval]
    """Errors by silo."""


class RunResult(Stored):
    """Result of one finished run. An epsilon is None where it is infinite, or does not apply."""

    run: str
    method: str
    seed: int
    trust: str
    epsilon_target: float | None
    noise_multiplier: float | None = None
    epsilon_accounted: float | None
    """Largest epsilon of any silo if it answers in every round, with the statistics released before."""
    epsilon_spent: float | None
    """Largest epsilon of any silo by the releases that took place."""
    epsilon_paper: float | None
    epsilon_shuffled: float | None = None
    """With privacy.trust = shuffler: largest epsilon of any silo towards an observer of shuffled batches of at least
    the planned minimum. Ledgers charge the epsilon without a shuffler, `epsilon_spent`."""
    epsilon_honest_sampling: float | None = None
    delta: float
    epsilon_whole_silo_target: float | None = None
    epsilon_whole_silo: float | None = None
    """Largest epsilon for replacing all records of a silo, at `delta_whole_silo`, if it answers in every round."""
    delta_whole_silo: float | None = None
    unit: str = "records"
    """Unit that epsilon protects and n counts: records, or persons by a column."""
    rounds: int
    gradient_evaluations: int
    theorem: Theorem | None
    seconds: float
    """Time of all rounds."""
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
    """Error on the test data of always answering their most frequent class."""
    test_recall: dict[str, float] | None = None
    """By class: fraction of its test records predicted as it."""
    test_auc: float | None = None
    """Area under the ROC curve; for more than two classes the mean of each against the rest."""
    test_errors: dict[str, float] | None = None
    """Error by silo on the test records of its kind, where test data come from silos' places."""
    silo_mean_error: float | None = None
    """Plain mean of `test_errors`: each silo counts alike, whatever its number of test records."""
    silo_mean_majority_error: float | None = None
    """Mean over silos of the error of always answering the most frequent class of the silo's test records."""
    test_rmse: float | None = None
    """For numeric labels, in their own units: root mean squared error of the predicted mean."""
    test_mae: float | None = None
    """For numeric labels, in their own units: mean absolute error of the predicted mean."""
    mean_rmse: float | None = None
    """Error of always answering the mean of the test labels: their standard deviation."""
    variance_explained: float | None = None
    """1 - test_rmse^2 / mean_rmse^2."""
    held_out: tuple[HeldOut, ...] | None = None
    """One per evaluation, in the order of phases; the last one is of the run's model."""
    simulation: dict[str, float] | None = None
    """NOT PRIVATE: measures over all silos' records, at the end."""
    silos: tuple[SiloResult, ...]
    epsilon_statistics: float | None = None
    epsilon_training: float | None = None
    statistics: str | None = None
    """Id of the release of statistics before the run."""

    @property
    def relative_rmse(self) -> float | None:
        """test_rmse / mean_rmse: 1 is as good as always answering the mean of the test labels; None without them.

        Lowy and Razaviyayn's measure with another mean: theirs is of all training labels, a number from silos' records.
        This one is of the public test labels.
        """
        if self.test_rmse is None or not self.mean_rmse:
            return None
        return self.test_rmse / self.mean_rmse

    @property
    def error(self) -> float | None:
        """Fraction of wrong classes, or RMSE of numeric labels: on test data, else on held-out records; else None."""
        if self.test_rmse is not None or self.test_error is not None:
            return self.test_rmse if self.test_rmse is not None else self.test_error
        return None if self.at_last is None else self.at_last.error.value

    @property
    def at_last(self) -> HeldOut | None:
        """Measures of the run's model on held-out records; None without an evaluation."""
        return self.held_out[-1] if self.held_out else None

    @property
    def measure(self) -> str:
        """Name of the measure in `error`."""
        if self.test_rmse is None and self.test_error is None and self.held_out:
            return "held-out error"
        return "test error" if self.test_rmse is None else "test RMSE"

    @property
    def baseline(self) -> float | None:
        """`error` of always answering the same, without a model."""
        if self.measure == "held-out error":
            return None if self.at_last is None else self.at_last.majority_error.value
        return self.mean_rmse if self.test_rmse is not None else self.majority_error


class AbandonedRun(Stored):
    """Record of a run that a sweep's patience ended for good: round, reason, and privacy cost until then."""

    run: str
    sweep: str | None
    round: int
    """Round of training after which it was abandoned."""
    rounds: int
    """Number of planned rounds."""
    reason: str
    diverged: bool
    """Its values were not finite; False: training losses of raw records decided (simulation/)."""
    epsilon_spent: float | None
    """Largest epsilon of any silo; None where it is infinite."""
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
        """Sentence that refuses to go on with the run."""
        return (
            f"run {self.run} was {self.sentence}; its silos have closed it, so it does not go on: set repetition to "
            "another number to run it anew, at a charge of its own"
        )


class StatisticsResult(Stored):
    """Result of one finished release of statistics."""

    run: str
    epsilon_target: float | None
    epsilon_accounted: float | None
    delta: float
    numbers: int
    """Length of the statistic."""
    moments_sha256: str
    silos: tuple[SiloResult, ...]
    code: str


def shortfall(result: RunResult) -> str | None:
    """A sentence if the model is no better than a constant answer; None if it is, or without an error to compare."""
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
    """A sentence if `error` is not below `alone`, the error of a constant answer; else None."""
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
"""Unprotected constants that prepared the records, by `ExperimentConfig.unprotected_constants`."""
RELEASED = (
    "{use} that the silos released with noise; accounted epsilon covers that release and training together "
    "({key}.constants = released)"
)


def stamp(config: ExperimentConfig, secret: bool = False) -> str:
    """The notice on every artefact of a run: the kind of its noise, and constants that no noise protects.

    `secret`: silos that are not guarded had secret keys.
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
