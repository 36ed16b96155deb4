"""Orders: parameters of deployments, schedules and flow runs, as this home has recorded them.

Prefect's server receives a copy of each order, shows it, and sends its flow runs when they are due. A person with
access to the server can change them there. fedcore takes from the server only ids and the values of an order's free
fields, which are numbers. Paths, addresses, folders, ledgers, backends and code come from the order.
"""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast
from uuid import UUID

from pydantic import ValidationError

from fedcore.errors import InputError
from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.sweep import SweepConfig
from fedcore.home import Home
from flows.services.leases import read_json, write_json

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.objects import FlowRun

Kind = Literal["run", "sweep"]
Owner = Literal["deployment", "schedule", "flow-run"]
Field = tuple[str, ...]

FREE: tuple[Field, ...] = (("seed",), ("repetition",), ("privacy", "epsilon"))
"""Fields of a run that the server may change: Quick run, Custom run and the page's schedules do."""
MOST_VALUES = 100
"""Most values of one field in a sweep's grid that the server may set."""
BATCH = 200
"""Flow runs per request to the server."""
_FLOW_RUN = re.compile(r"flow-run-([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\.json")
_ABSENT = object()


def free_fields(kind: Kind) -> tuple[Field, ...]:
    """Free fields of an order of this kind; for a sweep in its base and its grid."""
    if kind == "run":
        return FREE
    return (*(("base", *path) for path in FREE), *(("grid", ".".join(path)) for path in FREE))


@dataclass(frozen=True)
class Order:
    """Kind of a flow, its parameters as JSON values, and the fields that the server may change."""

    kind: Kind
    parameters: Mapping[str, Any]
    free: tuple[Field, ...] = ()

    def record(self, home: Home, owner: Owner, identity: UUID | str) -> None:
        """Records the order, replacing an earlier one of the same owner. Raises OSError."""
        record = {"kind": self.kind, "parameters": dict(self.parameters), "free": [list(path) for path in self.free]}
        write_json(order_path(home, owner, identity), record)

    @classmethod
    def recorded(cls, home: Home, owner: Owner, identity: UUID | str) -> Order | None:
        """The recorded order; None if there is none, or its file holds something else."""
        record = read_json(order_path(home, owner, identity)) or {}
        kind, parameters, free = record.get("kind"), record.get("parameters"), record.get("free")
        if kind not in ("run", "sweep") or not isinstance(parameters, dict) or not isinstance(free, list):
            return None
        known = set(free_fields(cast(Kind, kind)))
        return cls(cast(Kind, kind), parameters, tuple(path for path in map(tuple, free) if path in known))

    def with_free(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The order's parameters with the free fields of `given`, the server's parameters.

        Raises InputError that names a field, if another one differs or a free one is no number.
        """
        made, own = copy.deepcopy(dict(self.parameters)), _normal(self.kind, self.parameters)
        for path in self.free:
            value = _at(given, path)
            if value is not _ABSENT and (value != _at(own, path) or isinstance(value, bool)):
                _put(made, path, _numbers(path, value), self.parameters)
        mine, theirs = _normal(self.kind, made), _normal(self.kind, given)
        for field in _differences(mine, theirs):
            raise InputError(
                f"{field} is not what this home has recorded; the page can vary {_names(self.free) or 'nothing'}: for "
                "anything else use `fedcore run`, `fedcore sweep` or `fedcore schedule add`"
            )
        return made


def order_path(home: Home, owner: Owner, identity: UUID | str) -> Path:
    return home.services / "orders" / f"{owner}-{UUID(str(identity))}.json"


def forget(home: Home, owner: Owner, identity: UUID | str) -> None:
    """Removes a recorded order, if there is one."""
    order_path(home, owner, identity).unlink(missing_ok=True)


def forget_gone(home: Home, client: SyncPrefectClient) -> None:
    """Removes orders of flow runs that the server no longer has, for instance deleted ones."""
    from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId

    names = (_FLOW_RUN.match(path.name) for path in (home.services / "orders").glob("*.json"))
    recorded = [UUID(found[1]) for found in names if found is not None]
    for at in range(0, len(recorded), BATCH):
        batch = recorded[at : at + BATCH]
        known = client.read_flow_runs(flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=batch)), limit=BATCH)
        for identity in set(batch) - {each.id for each in known}:
            forget(home, "flow-run", identity)


def carried_out(home: Home, flow_run: FlowRun) -> tuple[Kind, dict[str, Any]]:
    """Kind and parameters of a deployment's flow run, by its recorded order. Raises InputError if none fits."""
    served = None if flow_run.deployment_id is None else Order.recorded(home, "deployment", flow_run.deployment_id)
    if served is None:
        raise InputError("this home has recorded no such deployment")
    order, given = Order.recorded(home, "flow-run", flow_run.id), dict(flow_run.parameters)
    maker = flow_run.created_by
    if order is None and flow_run.auto_scheduled and maker is not None and maker.id is not None:
        order = Order.recorded(home, "schedule", maker.id)
        if order is not None and _is_own(served, given):
            # Prefect 3.8 empties the parameters of a schedule that is paused or resumed on its page.
            given = dict(order.parameters)
    order = served if order is None else order
    if order.kind != served.kind:
        raise InputError(f"this home has recorded a {order.kind} for it, and its deployment is of a {served.kind}")
    return order.kind, order.with_free(given)


def _is_own(served: Order, given: Mapping[str, Any]) -> bool:
    """True if `given` are the deployment's own parameters."""
    try:
        return _normal(served.kind, given) == _normal(served.kind, served.parameters)
    except InputError:
        return False


def _normal(kind: Kind, values: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters with all defaults, as JSON values. Raises InputError that names the first wrong field."""
    fields = ExperimentConfig.model_fields if kind == "run" else SweepConfig.model_fields
    known = {key: value for key, value in values.items() if key in fields}
    try:
        if kind == "run":
            made: Any = ExperimentConfig.model_validate(known).model_dump(mode="json")
        else:
            made = SweepConfig.model_validate({key: value for key, value in known.items() if value is not None})
            made.cells()
            made = made.model_dump(mode="json")
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise InputError(f"{'.'.join(map(str, first['loc'])) or kind}: {first['msg']}") from None
    return made | {key: value for key, value in values.items() if key not in fields and value is not None}


def _differences(mine: Any, theirs: Any, at: str = "") -> Iterator[str]:
    """Dotted names of fields that differ, by value or by JSON's type: true is not 1."""
    if isinstance(mine, dict) and isinstance(theirs, dict):
        for key in [*mine, *(key for key in theirs if key not in mine)]:
            below = f"{at}.{key}" if at else str(key)
            yield from _differences(mine.get(key, _ABSENT), theirs.get(key, _ABSENT), below)
    elif isinstance(mine, list) and isinstance(theirs, list) and len(mine) == len(theirs):
        for number, (one, other) in enumerate(zip(mine, theirs, strict=True)):
            yield from _differences(one, other, f"{at}.{number}")
    elif mine != theirs or isinstance(mine, bool) != isinstance(theirs, bool):
        yield at


def _numbers(path: Field, value: Any) -> Any:
    """The value of a free field, checked. Raises InputError unless it is a number, or a grid's list of numbers."""
    values = value if path[0] == "grid" else [value]
    if not isinstance(values, list) or not 0 < len(values) <= MOST_VALUES or not all(map(_is_number, values)):
        wanted = f"a list of 1 to {MOST_VALUES} numbers" if path[0] == "grid" else "a number"
        raise InputError(f"{'.'.join(path)} must be {wanted}")
    return value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _at(values: Any, path: Sequence[str]) -> Any:
    for key in path:
        values = values.get(key, _ABSENT) if isinstance(values, dict) else _ABSENT
    return values


def _put(values: dict[str, Any], path: Field, value: Any, recorded: Mapping[str, Any]) -> None:
    """Sets a free field. Raises InputError for a grid's key that the recorded grid lacks: it would change the cells."""
    if path[0] == "grid" and _at(recorded, path) is _ABSENT:
        raise InputError(f"{'.'.join(path)} is not in the grid that this home has recorded")
    for key in path[:-1]:
        values = values.setdefault(key, {})
    values[path[-1]] = value


def _names(free: Sequence[Field]) -> str:
    return ", ".join(".".join(path) for path in free)
