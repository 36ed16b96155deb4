"""A silo's policy: what its operator allows, whoever asks. A file at the silo (`policy_file`), never sent by a driver.

A server names the method, the loss and the price of a run; the policy bounds all three, and how many runs there may be
and until when. What it refuses is decided by public facts, before anything is reserved.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import math
from collections.abc import Callable, Iterable
from datetime import UTC, date, datetime, time
from typing import Annotated, Any, Literal

from pydantic import Field, PlainSerializer, PlainValidator, ValidationInfo, field_validator

from fedcore.accounting.filters import SLACK, Charge
from fedcore.algorithms import METHODS, Method
from fedcore.algorithms.statistics.evaluated import Evaluated
from fedcore.errors import SiloError
from fedcore.hyperparameters import Count, Real, Section
from fedcore.ledger.ledger import Ledger
from fedcore.losses import LOSSES, Convolution, DrawnConvolution, Moreau, Softmax, unsmoothed
from fedcore.models import Objective, OneHiddenLayer, SoftmaxRegression
from fedcore.planning.config import CapConfig
from fedcore.planning.problem import LONGEST_NAME, unit_of

EVALUATES = "evaluation"
"""What a policy calls asking held-out records."""

MOST_RUNS = 10**6
"""Of one silo, over which the share of delta that is reserved for discrete noise is spread."""

_OWN = {SoftmaxRegression: Softmax().name, OneHiddenLayer: "network"}
_SMOOTHED = {Moreau: "moreau", Convolution: "convolution", DrawnConvolution: "convolution-sampled"}
OBJECTIVES = (*LOSSES, *_OWN.values(), *_SMOOTHED.values())
"""Losses that a policy can allow; a smoothed one needs its own name and that of the loss that it smooths."""

_ROUNDING = 1 + 1e-9
"""A run whose target is the largest epsilon of one run must fit in spite of rounding."""

Clock = Callable[[], datetime]
"""Says what time it is, with a zone."""


def utc_now() -> datetime:
    """The time of this machine's clock, in UTC."""
    return datetime.now(UTC)


def _moment(value: Any) -> date:
    """A date, or a date-time with a zone, also written as text. Raises ValueError for anything else."""
    if isinstance(value, str):
        try:
            value = date.fromisoformat(value) if len(value) == 10 else datetime.fromisoformat(value)
        except ValueError:
            value = None
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value
    if type(value) is date:
        return value
    raise ValueError("give a date (2027-01-31) or a date-time with a zone (2027-01-31T18:00:00+01:00)")


Moment = Annotated[date, PlainValidator(_moment), PlainSerializer(lambda moment: moment.isoformat(), return_type=str)]


class RunLimit(Section):
    """What one run may cost, by itself."""

    epsilon: Real = Field(gt=0)
    """The largest epsilon of one run, as accounted at the run's own delta."""
    delta: Real | Literal["1/n^2"] = "1/n^2"
    """The largest delta of one run: a number, or 1/n^2 with the silo's number of records n."""


class Policy(Section):
    """All that a silo's operator allows."""

    methods: tuple[str, ...]
    """Names of methods, as `algorithm.name`; second-moments and column-moments are the releases of
    `data.pca.constants: released` and of `data.scaling.constants: released`, and a run that evaluates held-out records
    (`evaluation`) needs evaluation besides the name of its method."""
    losses: tuple[str, ...]
    """Names of losses, as `model.loss.name`; network is `model.hidden`; a smoothed loss needs its own name and moreau,
    convolution or convolution-sampled."""
    cap: CapConfig
    """The limit over all runs on the records, beside that of the configuration (`privacy.cap`): both must admit a
    run."""
    one_run: RunLimit | None = None
    """The limit of each run by itself; null: only the cap bounds it, so one run may take all of it."""
    person: str | None = Field(None, min_length=1, max_length=LONGEST_NAME)
    """The column of the persons that every run has to be for (`data.person`); null: runs may be for records, or for the
    persons of any column, as far as the ledger goes along."""
    runs: Count = Field(ge=1, le=MOST_RUNS)
    """The largest number of runs that are ever approved, closed ones included."""
    expires: Moment
    """A date (until it ends in UTC), or a date-time with a zone. After it nothing new is approved or answered."""

    @field_validator("methods", mode="before")
    @classmethod
    def _known_methods(cls, names: Any) -> tuple[str, ...]:
        return _known(names, (*METHODS, EVALUATES), "method")

    @field_validator("losses", mode="before")
    @classmethod
    def _known_losses(cls, names: Any) -> tuple[str, ...]:
        return _known(names, OBJECTIVES, "loss")

    @field_validator("cap", "one_run")
    @classmethod
    def _delta_is_small(cls, limit: CapConfig | RunLimit | None, info: ValidationInfo) -> CapConfig | RunLimit | None:
        if limit is not None and not isinstance(limit.delta, str) and not 0 < limit.delta < 1:
            raise ValueError(f"{info.field_name}.delta = {limit.delta} must lie strictly between 0 and 1")
        return limit

    @property
    def text(self) -> str:
        """The policy as canonical JSON: equal for files that say the same, whatever their order and comments.

        A person that is not there is left out: it came later, and policies of before keep their digests.
        """
        values = self.model_dump(mode="json")
        if self.person is None:
            del values["person"]
        return json.dumps(values, sort_keys=True)

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of `text`."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    def expired(self, now: datetime) -> bool:
        """Whether `now`, with a zone, is after `expires`."""
        if isinstance(self.expires, datetime):
            return now > self.expires
        return now > datetime.combine(self.expires, time.max, UTC)


class PolicyInForce:
    """A policy at one silo of n records, or persons of a column. What it refuses is a SiloError with code `policy` and
    the policy's line."""

    def __init__(
        self, policy: Policy, silo: str, n: int, clock: Clock = utc_now, person: str | None = None
    ) -> None:
        self._policy, self._silo, self._n, self._clock, self._person = policy, silo, n, clock, person
        self._faults: dict[str, str | None] = {}

    def allows(self, run: str, method: Method[Any], loss: Objective | None, ledger: Ledger) -> None:
        """Raises SiloError for what `approve` refuses without a look at the charge; a plan may take long to make."""
        refused = self._expired(run) or self._terms_fault(run, method, loss, ledger)
        if refused is not None and not ledger.is_run(run):
            raise SiloError(self._silo, "policy", refused)

    def approve(self, run: str, method: Method[Any], loss: Objective | None, charge: Charge, ledger: Ledger) -> None:
        """Raises SiloError unless the policy allows one more run, with the full `charge` of its plan.

        A run that the ledger knows passes, since nothing more is reserved: what it has released may be sent again. If
        the policy that is in force now does not allow it, it gets no new answer (`answer`).
        """
        fault = self._fault(run, method, loss, charge, ledger)
        refused = self._expired(run) or fault
        if refused is not None and not ledger.is_run(run):
            raise SiloError(self._silo, "policy", refused)
        # Kept while the silo is open: the same run may come again with other terms, which the ledger then refuses.
        self._faults[run] = self._faults.get(run) or fault

    def answer(self, run: str) -> None:
        """Raises SiloError unless the policy allows a new answer in this run, which `approve` has seen."""
        refused = self._expired(run) or self._faults[run]
        if refused is not None:
            raise SiloError(self._silo, "policy", refused)

    def _expired(self, run: str) -> str | None:
        now = self._clock()
        if not self._policy.expired(now):
            return None
        said = now.astimezone(UTC).isoformat(sep=" ", timespec="seconds")
        return f"its policy allows nothing new after expires = {self._policy.expires}; run {run} asks at {said}"

    def _fault(
        self, run: str, method: Method[Any], loss: Objective | None, charge: Charge, ledger: Ledger
    ) -> str | None:
        """The first line of the policy that the run breaks, as a sentence; None if it breaks none."""
        charges = ledger.charges()
        if ledger.is_run(run):
            charge = charges.pop(run)
        return (
            self._terms_fault(run, method, loss, ledger)
            or self._one_run_fault(run, charge)
            or self._cap_fault(run, charge, list(charges.values()))
        )

    def _terms_fault(self, run: str, method: Method[Any], loss: Objective | None, ledger: Ledger) -> str | None:
        policy = self._policy
        for asked in method_names(method):
            if asked in policy.methods:
                continue
            return f"its policy allows methods = {_listed(policy.methods)}; run {run} asks for {asked}"
        for asked in () if loss is None else loss_names(loss):
            if asked not in policy.losses:
                return f"its policy allows losses = {_listed(policy.losses)}; run {run} asks for {asked}"
        if policy.person is not None and policy.person != self._person:
            return f"its policy allows person = {policy.person!r}; run {run} asks for {unit_of(self._person)}"
        before = ledger.runs - ledger.is_run(run)
        if before >= policy.runs:
            return f"its policy allows runs = {policy.runs} ({before} approved before); run {run} is one more"
        return None

    def _one_run_fault(self, run: str, charge: Charge) -> str | None:
        limit = self._policy.one_run
        if limit is None:
            return None
        if not charge.epsilon <= limit.epsilon * _ROUNDING:
            return (
                f"its policy allows one_run.epsilon = {limit.epsilon:g}; run {run} asks for {_epsilon(charge.epsilon)}"
            )
        delta = 1.0 / self._n**2 if isinstance(limit.delta, str) else float(limit.delta)
        if not charge.delta <= delta * _ROUNDING:
            return f"its policy allows one_run.delta = {delta:.4g}; run {run} asks for {charge.delta:.4g}"
        return None

    def _cap_fault(self, run: str, charge: Charge, before: list[Charge]) -> str | None:
        cap = self._policy.cap.of(self._n)
        if cap.admits([*before, charge]):
            return None
        spent = math.fsum(other.delta for other in before)
        if cap.rule == "basic" and not spent + charge.delta <= cap.delta * SLACK:
            left, key, asked = max(0.0, cap.delta - spent), f"cap.delta = {cap.delta:.4g}", f"{charge.delta:.4g}"
        else:
            left, key, asked = cap.left(before), f"cap.epsilon = {cap.epsilon:g}", _epsilon(charge.epsilon)
        return f"its policy allows {key} over all runs ({left:.4g} left); run {run} asks for {asked}"


def method_names(method: Method[Any]) -> tuple[str, ...]:
    """The names that a policy must have for a method: that of its class, whatever the object calls itself, and another
    where it asks held-out records, too."""
    if isinstance(method, Evaluated):
        return (*method_names(method.inner), EVALUATES)
    return (next((name for name, kind in METHODS.items() if type(method) is kind), "an unknown method"),)


def loss_names(loss: Objective) -> tuple[str, ...]:
    """The names that a policy must have for a loss, by its class: one, or of a smoothed loss two."""
    kind: type = type(loss)
    if kind in _OWN:
        return (_OWN[kind],)
    if isinstance(loss, Moreau | Convolution | DrawnConvolution) and kind in _SMOOTHED:
        return (_SMOOTHED[kind], *loss_names(unsmoothed(loss)))
    return (next((name for name, known in LOSSES.items() if kind is known), "an unknown loss"),)


def _known(names: Any, known: Iterable[str], what: str) -> tuple[str, ...]:
    """The names in order, each once. Raises ValueError unless they are a list of known ones."""
    listed = sorted(known)
    if not isinstance(names, list | tuple) or not names or not all(isinstance(name, str) for name in names):
        raise ValueError(f"give a list of names, for instance [{listed[0]}]")
    for name in names:
        if name not in listed:
            close = difflib.get_close_matches(name, listed, 1)
            hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(listed)}"
            raise ValueError(f"{name!r} is no {what}; {hint}")
    return tuple(sorted(set(names)))


def _listed(names: tuple[str, ...]) -> str:
    return f"[{', '.join(names)}]"


def _epsilon(value: float) -> str:
    return f"{value:.4g}" if math.isfinite(value) else "answers without noise"
