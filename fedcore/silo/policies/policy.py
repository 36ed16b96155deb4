"""A silo's policy: the limits that its operator sets for every driver, in a file at the silo (`policy_file`).

A driver names the method, the loss and the price of a run. The policy bounds all three, the number of runs and the
period. Refusals follow from public facts, before any charge is reserved.
"""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Iterable
from datetime import UTC, date, datetime, time
from typing import Annotated, Any, Literal

from pydantic import Field, PlainSerializer, PlainValidator, ValidationInfo, field_validator

from fedcore.algorithms import METHODS, Method
from fedcore.algorithms.statistics.evaluated import Evaluated
from fedcore.hyperparameters import Count, Real, Section
from fedcore.losses import LOSSES, Convolution, DrawnConvolution, Moreau, Softmax, unsmoothed
from fedcore.models import Objective, OneHiddenLayer, RegressionNetwork, SoftmaxRegression
from fedcore.planning.plan_config import CapConfig
from fedcore.planning.problem import LONGEST_NAME

EVALUATES = "evaluation"
"""The name in a policy for evaluation on held-out records."""

MOST_RUNS = 10**6
"""Runs of one silo at most; the share of delta reserved for discrete noise is spread over them."""

_OWN = {SoftmaxRegression: Softmax().name, OneHiddenLayer: "network"}
"""Names of losses with a class of their own; a network for real labels needs the name of its loss besides."""
_SMOOTHED = {Moreau: "moreau", Convolution: "convolution", DrawnConvolution: "convolution-sampled"}
OBJECTIVES = (*LOSSES, *_OWN.values(), *_SMOOTHED.values())
"""Names that a policy can allow; a smoothed loss needs its own name and that of the loss that it smooths."""


def _moment(value: Any) -> date:
    """Parses a date, or a date-time with a zone. Raises ValueError for anything else."""
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
    """Limit on the cost of one run."""

    epsilon: Real = Field(gt=0)
    """The largest epsilon of one run, as accounted at the run's own delta."""
    delta: Real | Literal["1/n^2"] = "1/n^2"
    """The largest delta of one run: a number, or 1/n^2 with the silo's number of records n."""


class Policy(Section):
    """The limits of a silo's operator on methods, losses, cost, number and period of runs."""

    methods: tuple[str, ...]
    """Names of methods, as `algorithm.name`. second-moments and column-moments are the releases of
    `data.pca.constants: released` and `data.scaling.constants: released`. A run that evaluates held-out records
    (`evaluation`) needs evaluation besides the name of its method."""
    losses: tuple[str, ...]
    """Names of losses, as `model.loss.name`. network is `model.hidden`; for real labels it needs the name of their loss
    besides. A smoothed loss needs its own name and moreau, convolution or convolution-sampled."""
    cap: CapConfig
    """The limit over all runs on the records. It and the configuration's (`privacy.cap`) must both admit a run. An
    account's first cap fixes the order of rule `rdp` for life."""
    one_run: RunLimit | None = None
    """The limit of each run by itself; null: one run may use up the whole cap."""
    person: str | None = Field(None, min_length=1, max_length=LONGEST_NAME)
    """The column of persons that every run must protect (`data.person`); null: runs may protect records, or persons of
    any column, as far as the ledger allows."""
    decides: Literal["policy", "operator"] = "policy"
    """The party that decides if a run may begin: this policy alone, or the operator besides, run by run (`fedcore silo
    approve`)."""
    runs: Count = Field(ge=1, le=MOST_RUNS)
    """The largest number of runs ever approved, closed ones included."""
    expires: Moment
    """A date (to its end in UTC), or a date-time with a zone. After it no new run is approved and no round answered."""

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
        """The policy as canonical JSON, independent of order and comments in the file.

        Defaults of `person` and `decides` are left out: these keys came later, and older policies must keep their
        digests.
        """
        values = self.model_dump(mode="json")
        for key in ("person", "decides"):
            if values[key] == type(self).model_fields[key].default:
                del values[key]
        return json.dumps(values, sort_keys=True)

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of `text`."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    def expired(self, now: datetime) -> bool:
        """True if `now`, with a zone, is after `expires`."""
        if isinstance(self.expires, datetime):
            return now > self.expires
        return now > datetime.combine(self.expires, time.max, UTC)


def method_names(method: Method[Any]) -> tuple[str, ...]:
    """The names that a policy must have for a method: that of its class, and `EVALUATES` if it evaluates.

    The name that the object itself carries does not count.
    """
    if isinstance(method, Evaluated):
        return (*method_names(method.inner), EVALUATES)
    return (next((name for name, kind in METHODS.items() if type(method) is kind), "an unknown method"),)


def loss_names(loss: Objective) -> tuple[str, ...]:
    """The names that a policy must have for a loss, by its class.

    Two for a smoothed loss and for a network for real labels, one for any other.
    """
    kind: type = type(loss)
    if kind in _OWN:
        return (_OWN[kind],)
    if isinstance(loss, RegressionNetwork) and kind is RegressionNetwork:
        return ("network", *loss_names(loss.loss))
    if isinstance(loss, Moreau | Convolution | DrawnConvolution) and kind in _SMOOTHED:
        return (_SMOOTHED[kind], *loss_names(unsmoothed(loss)))
    return (next((name for name, known in LOSSES.items() if kind is known), "an unknown loss"),)


def _known(names: Any, known: Iterable[str], kind: str) -> tuple[str, ...]:
    """The names sorted, each once. Raises ValueError unless they are a list of known ones."""
    listed = sorted(known)
    if not isinstance(names, list | tuple) or not names or not all(isinstance(name, str) for name in names):
        raise ValueError(f"give a list of names, for instance [{listed[0]}]")
    for name in names:
        if name not in listed:
            close = difflib.get_close_matches(name, listed, 1)
            hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(listed)}"
            raise ValueError(f"{name!r} is no {kind}; {hint}")
    return tuple(sorted(set(names)))
