"""The agreement of a run: its content, its form on the wire, and the plan that silos make from it.

The form is JSON, rebuilt and checked at the silo. It names the method and the objective: a silo runs the ones that are
installed there, with the declared values.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache, cached_property
from types import UnionType
from typing import Any, get_args

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic_core import from_json

from fedcore.accounting.noise_search import NoiseCache, noise_cached_in
from fedcore.algorithms import METHODS, Method
from fedcore.algorithms.statistics.evaluated import evaluated
from fedcore.arrays import canonical_json, digest
from fedcore.errors import InputError
from fedcore.limits import LARGEST_AGREEMENT, MOST_KEYS, MOST_SHARES
from fedcore.models import Objective
from fedcore.planning.plan import Plan
from fedcore.planning.problem import LONGEST_NAME, Problem
from fedcore.planning.whole_silo import planned
from fedcore.silo.question import Forms, forms_of


def _members(union: Any) -> list[Any]:
    return [each for part in get_args(union) for each in _members(part)] if isinstance(union, UnionType) else [union]


OBJECTIVES: dict[str, Any] = {kind.__name__: kind for kind in _members(Objective)}
"""Objectives that silos take gradients of, by class name."""
FORM = 3
"""Version of an agreement's form on the wire. Driver and silo must have the same."""
FIELDS = 6
"""Number of fields of that form: run, plan, problem, method, objective and its version."""


@dataclass(frozen=True)
class Agreement:
    """Public facts and hyperparameters, from which each silo makes the plan itself.

    `plan`: the digest that the driver claims for it. `loss`: None for the release of statistics.
    """

    run: str
    problem: Problem
    method: Method[Any]
    loss: Objective | None
    plan: str

    @cached_property
    def lengths(self) -> tuple[int, ...]:
        """Lengths of answers: those of the problem, then further ones of the method's messages."""
        of_method = set(self.method.message_lengths(self.problem))
        return (*self.problem.lengths, *sorted(of_method - set(self.problem.lengths)))

    def to_bytes(self) -> bytes:
        """The form on the wire: canonical JSON."""
        fields = [self.run, self.plan, _plain(Problem, self.problem), *_named(self.method, self.loss), FORM]
        return canonical_json(fields).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Agreement:
        """The agreement that `to_bytes` wrote. Raises ValueError for other bytes, with a sentence that quotes none."""
        if type(data) is not bytes or len(data) > LARGEST_AGREEMENT:
            raise ValueError(f"an agreement is at most {LARGEST_AGREEMENT} bytes")
        try:
            if not _has_form(data):
                raise ValueError  # before validation, which lists an error for each superfluous entry
            run, plan, problem, (method, hyper), objective, _ = _FORM.validate_json(data)
        except (ValueError, TypeError):
            raise ValueError(
                f"an agreement of form {FORM} has run, plan, problem, method, objective and {FORM}; another form "
                "is another version's: install the same version of fedcore at the driver and at this silo"
            ) from None
        if not 0 < len(run) <= LONGEST_NAME or not run.isprintable():
            raise ValueError(f"a run's id has 1 to {LONGEST_NAME} printable characters")
        if method not in METHODS:
            raise ValueError("it knows no method of that name")
        if objective is not None and objective[0] not in OBJECTIVES:
            raise ValueError("it knows no objective of that name")
        found = cls(
            run,
            _rebuilt("problem", Problem, problem),
            _rebuilt("method", METHODS[method], hyper),
            None if objective is None else _rebuilt("objective", OBJECTIVES[objective[0]], objective[1]),
            plan,
        )
        if found.to_bytes() != data:
            raise ValueError("an agreement has one form, and this is another")
        return found


def own_plan(agreement: Agreement, noise: NoiseCache | None) -> tuple[Plan, str, Forms]:
    """The plan that these silos make of an agreement, its digest, and the forms of its questions.

    Raises InputError if there is no plan; the reason is public, since no record has been read yet.
    """
    try:
        with noise_cached_in(noise):
            method = evaluated(agreement.method, agreement.problem)
            plan = planned(method, agreement.problem)
        return plan, plan.digest, forms_of(method, plan)
    except InputError:
        raise
    except Exception:
        pass
    raise InputError(f"{agreement.method.name} makes no plan of these numbers: some are too large, or too small")


def terms(plan: str, method: Method[Any], loss: Objective | None) -> str:
    """SHA-256 (hex) of a run's terms: the plan's digest, method and loss with all numbers."""
    return digest(plan.encode(), canonical_json(_named(method, loss)).encode()).hex()


def _has_form(data: bytes) -> bool:
    """True if the bytes are a JSON list of this version's form; the parsed list is freed before validation."""
    fields = from_json(data)
    return type(fields) is list and len(fields) == FIELDS and fields[-1] == FORM


_FORM = TypeAdapter(
    tuple[str, str, dict[str, Any], tuple[str, dict[str, Any]], tuple[str, dict[str, Any]] | None, int],
    config=ConfigDict(strict=True),
)


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def _named(method: Method[Any], loss: Objective | None) -> list[Any]:
    """Method and loss, each as its name and declared fields."""
    kind, objective = type(method), type(loss)
    return [
        [method.name, _plain(kind, method)],
        None if loss is None else [objective.__name__, _plain(objective, loss)],
    ]


def _plain(kind: Any, value: Any) -> dict[str, Any]:
    plain: dict[str, Any] = _adapter(kind).dump_python(value, mode="python")
    return plain


def _is_short(values: Any) -> bool:
    """True if no list has more than `MOST_SHARES` values and no section more than `MOST_KEYS` keys."""
    if isinstance(values, dict):
        return len(values) <= MOST_KEYS and all(_is_short(value) for value in values.values())
    return not isinstance(values, list) or (len(values) <= MOST_SHARES and all(_is_short(each) for each in values))


def _rebuilt(part: str, kind: Any, values: dict[str, Any]) -> Any:
    """The dataclass of these declared values. Raises ValueError that names the first value that does not fit."""
    if not _is_short(values):  # each value that does not fit would be an error of its own, a kilobyte each
        raise ValueError(f"its {part} does not fit: a list or a section of it is too long")
    try:
        return _adapter(kind).validate_json(json.dumps(values))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        # The location also names validators, with addresses in this process's memory: only fields are named.
        named = [str(part) for part in first["loc"] if isinstance(part, int) or part.isidentifier()]
        fault = f"{'.'.join(named)}: {first['msg']}" if named else first["msg"]
    except (ValueError, ArithmeticError):
        fault = "a number is too long"
    raise ValueError(f"its {part} does not fit: {fault}")
