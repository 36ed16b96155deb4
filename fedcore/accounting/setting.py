"""Noise, epsilon and rounds of a silo with one kind of answers: each from the other two."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any, get_args

from fedcore.accounting.composition import spent
from fedcore.accounting.events import GaussianRelease, Sampling, is_number, is_whole
from fedcore.accounting.gaussian import mu_of
from fedcore.accounting.honest_sampling import honest_sampling
from fedcore.accounting.noise_search import least_noise
from fedcore.accounting.published.claims import FormulaInputs, PaperFormula, Scheme
from fedcore.accounting.published.papers import published
from fedcore.accounting.rounds_search import most_rounds
from fedcore.directed_rounding import in_full
from fedcore.errors import InputError

_SCHEMES = (*get_args(Sampling), "once")
_MOST = 2**53
"""Largest count: floats represent every whole number up to it."""


def _typed(value: object) -> str:
    return in_full(value) if isinstance(value, float) and not math.isnan(value) else f"{value!s:.40}"


def _check_target(epsilon: float) -> None:
    """Raises InputError unless epsilon is a positive number."""
    if not (is_number(epsilon) and 0 < epsilon < math.inf):
        raise InputError(f"epsilon = {_typed(epsilon)} must be a positive number")


@dataclass(frozen=True)
class Setting:
    """One silo's noised means of clipped gradients, over all rounds of a run.

    Gradients are clipped to norm `clip`, and each answer is about a batch of the silo's n records. A round has one
    answer, or `local_steps` of them, each at its own model and sample. Sigma is the standard deviation per coordinate
    of the noise on the mean.
    `sampling`: the whole silo ("full", batch = n), a sample drawn anew each round, or "once". The batches of "once" are
    disjoint, so that each record is used in one round.
    Raises InputError for numbers that do not fit together.
    """

    n: int
    rounds: int
    delta: float
    batch: int | None = None
    clip: float = 1.0
    sampling: Scheme = "full"
    local_steps: int = 1

    def __post_init__(self) -> None:
        for name in ("n", "rounds", "local_steps", *(() if self.batch is None else ("batch",))):
            value = getattr(self, name)
            if not (is_whole(value) and value <= _MOST):
                raise InputError(f"{name} = {value!s:.40} must be a whole number, at least 1 and at most {_MOST:,}")
            object.__setattr__(self, name, int(value))  # NumPy's integers lack some methods of int
        for name in ("delta", "clip"):
            if not is_number(getattr(self, name)):
                raise InputError(f"{name} = {getattr(self, name)!s:.40} must be a number")
        if self.sampling not in _SCHEMES:
            raise InputError(f"there is no sampling {self.sampling!r:.40}; there are {', '.join(_SCHEMES)}")
        whole = self.batch is None or self.batch == self.n
        checks = [
            (self.n >= 1, f"n = {self.n} must be at least 1"),
            (self.rounds >= 1, f"rounds = {self.rounds} must be at least 1"),
            (self.local_steps >= 1, f"local_steps = {self.local_steps} must be at least 1"),
            (0 < self.clip < math.inf, f"clip = {in_full(self.clip)} must be a positive number"),
            (
                0 < self.delta * self.n < 1,
                f"delta = {in_full(self.delta)} must be above 0 and below 1/n (n = {self.n})",
            ),
            (1 <= self.size <= self.n, f"batch = {self.size} must lie between 1 and n = {self.n}"),
            (whole or self.sampling != "full", f"batch = {self.size} with sampling full must be n = {self.n}"),
        ]
        if self.sampling == "once":
            fits = self.answers * self.size <= self.n
            checks.append((fits, f"{self.answers} rounds of {self.size} records, each once, need n >= their product"))
        for holds, sentence in checks:
            if not holds:
                raise InputError(sentence)

    @property
    def size(self) -> int:
        """Records of a batch (expected, for Poisson samples)."""
        return self.n if self.batch is None else self.batch

    @property
    def answers(self) -> int:
        """All answers of a silo that takes part in every round."""
        return self.rounds * self.local_steps

    @property
    def sensitivity(self) -> float:
        return self.event(1.0).sensitivity

    def event(self, sigma: float) -> GaussianRelease:
        """The privacy event of all rounds, for the record that they touch most often."""
        return self._event(self.answers, sigma)

    def _event(self, answers: int, sigma: float) -> GaussianRelease:
        if not (is_number(sigma) and 0 <= sigma < math.inf):
            raise InputError(f"sigma = {_typed(sigma)} must be a number, at least 0")
        return replace(self.inputs().event(answers), sigma=sigma)

    def epsilon(self, sigma: float) -> float:
        """Accounted epsilon of this noise (`composition.spent`); infinite without noise or accountant."""
        return spent([self.event(sigma)], self.delta)

    def honest_sampling(self, sigma: float, participation: float) -> float:
        """Epsilon of this noise if the server really draws the silo with this chance, anew in each round.

        At most `epsilon`; see `accounting.honest_sampling`. Equal to `epsilon` for disjoint batches: a silo that is
        left out may come to the record's batch in a later round.
        """
        if not (is_number(participation) and 0 < participation <= 1):
            raise InputError(f"participation = {participation!s:.40} must be above 0 and at most 1")
        if self.sampling == "once":
            return self.epsilon(sigma)
        event = self._event(self.local_steps, sigma)
        return honest_sampling(event, self.rounds, participation, self.delta)

    def sigma(self, epsilon: float) -> float:
        """The least noise within `epsilon`: to 1e-10 for full batches and once, else to 1e-4, from above.

        Raises InputError if epsilon is not positive, or no accountant is known for the sampling.
        """
        _check_target(epsilon)
        full = self.sensitivity * math.sqrt(self.event(1.0).count) / mu_of(epsilon, self.delta)
        if self.sampling in ("full", "once"):
            return full
        # A sample is never worse than answering about all records each time, with the same noise.
        if math.isinf(self.epsilon(full)):
            raise InputError(f"sampling {self.sampling}: no sound accountant is known here; use another scheme")
        return least_noise(self.epsilon, full, epsilon, {**asdict(self), "epsilon": epsilon})

    def inputs(self, **options: Any) -> FormulaInputs:
        """This setting as input of the published formulas. Raises InputError for options out of range.

        `local_steps` is among the options: a formula's local steps are not always a number of answers.
        """
        return FormulaInputs(self.n, self.rounds, self.delta, self.size, self.clip, self.sampling, **options)

    @property
    def paper(self) -> PaperFormula:
        """The published formula of the main method: its multi-pass one, or (once) its one-pass baseline's.

        The formula has no local steps: each answer is a round of its own.
        """
        inputs = replace(self.inputs(), rounds=self.answers)
        return published("lowy-2023-one-pass" if self.sampling == "once" else "gao-2024", inputs)

    def rounds_for(self, epsilon: float, sigma: float) -> int:
        """The largest number of rounds within `epsilon` with this noise; 0 if one is too many.

        Raises InputError if there is no bound below 10 million, or epsilon is no positive number.
        """
        _check_target(epsilon)

        def keeps(rounds: int) -> bool:
            return replace(self, rounds=rounds).epsilon(sigma) <= epsilon

        if self.sampling == "once":
            return self.n // (self.size * self.local_steps) if keeps(1) else 0
        return most_rounds(keeps)
