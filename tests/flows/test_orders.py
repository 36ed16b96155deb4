"""Prefect's server may set the values of an order's free fields, and no others."""

from __future__ import annotations

import copy
import dataclasses
import json
import stat
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from pydantic import BaseModel

from fedcore.configfile.reading import read_yaml
from fedcore.errors import InputError
from fedcore.experiment.config import ExperimentConfig
from fedcore.home import Home
from flows.schedules.orders import FREE, Order, carried_out, free_fields, order_path

EXAMPLE = read_yaml(Path(__file__).parents[2] / "conf" / "experiment" / "digits.yaml", ())
HOSTILE = {
    "cluster.address": "tcp://evil.example:8786",
    "shuffler.address": "http://evil.example",
    "shuffler.secret": "/etc/passwd",
    "name": "../../planted",
    "data.folder": "/etc",
    "sweep": "../../planted",
}


def keys_of(values: Any, at: str = "") -> list[str]:
    """Dotted names of all leaves of a config in JSON, defaults included."""
    if not isinstance(values, dict) or not values:
        return [at]
    return [name for key, below in values.items() for name in keys_of(below, f"{at}.{key}" if at else key)]


def declared(kind: Any, at: str = "") -> list[str]:
    """Dotted names of all fields of the sections of the config's class, whatever a config sets."""
    found = []
    for key, field in kind.model_fields.items():
        name = f"{at}.{key}" if at else key
        found.append(name)
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            found += declared(inner, name)
    return found


WHOLE = ExperimentConfig.model_validate(EXAMPLE).model_dump(mode="json")
EVERY = sorted({*keys_of(WHOLE), *declared(ExperimentConfig), *HOSTILE, "planted", "privacy.planted"})


def put(values: dict[str, Any], name: str, value: Any) -> dict[str, Any]:
    made = copy.deepcopy(values)
    *above, last = name.split(".")
    place = made
    for key in above:
        if not isinstance(place.get(key), dict):
            place[key] = {}
        place = place[key]
    place[last] = value
    return made


def other(name: str) -> list[Any]:
    """Values that a field of this type can have, other than its own."""
    known: Any = WHOLE
    for key in name.split("."):
        known = known.get(key) if isinstance(known, dict) else None
    if name in HOSTILE:
        return [HOSTILE[name]]
    if isinstance(known, bool):
        return [not known, int(known)]
    if isinstance(known, int | float):
        return [known + 1, str(known)]
    return ["planted", {"planted": 1}, ["planted"], 7]


def is_the_same(parameters: dict[str, Any]) -> bool:
    try:
        return ExperimentConfig.model_validate(parameters).model_dump(mode="json") == WHOLE
    except ValueError:
        return False


def flow_run(deployment: Any, parameters: dict[str, Any], **fields: Any) -> Any:
    given = {"auto_scheduled": False, "created_by": None, "id": uuid4()} | fields
    return SimpleNamespace(deployment_id=deployment, parameters=parameters, **given)


@pytest.fixture
def served(tmp_path) -> tuple[Home, Any]:
    home, deployment = Home(tmp_path / "home"), uuid4()
    Order("run", EXAMPLE, free_fields("run")).record(home, "deployment", deployment)
    return home, deployment


@pytest.mark.parametrize("name", EVERY)
def test_every_field_is_free_or_refused_by_name(served, name):
    home, deployment = served
    free = tuple(name.split(".")) in FREE
    for start in (EXAMPLE, WHOLE):
        for value in other(name):
            requested = flow_run(deployment, put(start, name, value))
            if not free and is_the_same(
                requested.parameters
            ):  # "1" is 1 to a config: the server's value is not passed on
                assert carried_out(home, requested) == ("run", EXAMPLE)
                continue
            if free and isinstance(value, int | float):
                kind, made = carried_out(home, requested)
                assert kind == "run" and made == put(EXAMPLE, name, value)
                continue
            with pytest.raises(InputError) as refused:
                carried_out(home, requested)
            assert name.split(".")[0] in str(refused.value)


@pytest.mark.parametrize("value", [True, None, "1", [1], {"a": 1}, float("nan"), float("inf"), -1])
@pytest.mark.parametrize("name", [".".join(path) for path in FREE])
def test_a_free_field_takes_numbers_that_a_config_takes(served, name, value):
    home, deployment = served
    with pytest.raises(InputError, match=name.split(".")[-1]):
        carried_out(home, flow_run(deployment, put(EXAMPLE, name, value)))


def test_what_is_carried_out_is_made_of_the_record(served):
    """Even if the server sends all parameters, none of its values is passed on, not even an equal one."""
    home, deployment = served
    assert carried_out(home, flow_run(deployment, WHOLE)) == ("run", EXAMPLE)
    assert carried_out(home, flow_run(deployment, put(WHOLE, "seed", 5))) == ("run", EXAMPLE | {"seed": 5})


def test_deployments_that_are_not_recorded_carry_out_nothing(served):
    home, deployment = served
    for unknown in (None, uuid4()):
        with pytest.raises(InputError, match="no such deployment"):
            carried_out(home, flow_run(unknown, EXAMPLE))
    path = order_path(home, "deployment", deployment)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    for torn in ("", "[]", json.dumps({"kind": "shell", "parameters": {}, "free": []})):
        path.write_text(torn)
        with pytest.raises(InputError, match="no such deployment"):
            carried_out(home, flow_run(deployment, EXAMPLE))


def test_a_record_that_is_edited_frees_nothing_that_is_not_free(served):
    home, deployment = served
    path = order_path(home, "deployment", deployment)
    record = json.loads(path.read_text())
    path.write_text(json.dumps(record | {"free": [*record["free"], ["cluster", "address"], ["name"]]}))
    with pytest.raises(InputError, match=r"cluster\.address"):
        carried_out(home, flow_run(deployment, put(EXAMPLE, "cluster.address", "tcp://evil.example:1")))


def test_a_firing_does_what_its_schedule_has_recorded(served):
    home, deployment = served
    schedule = uuid4()
    mine = {**WHOLE, "name": "mine"}
    Order("run", mine, free_fields("run")).record(home, "schedule", schedule)

    def fired(parameters: dict[str, Any], maker: Any = schedule) -> dict[str, Any]:
        made = flow_run(deployment, parameters, auto_scheduled=True, created_by=SimpleNamespace(id=maker))
        return carried_out(home, made)[1]

    assert fired(mine) == mine and fired({**mine, "repetition": 4}) == {**mine, "repetition": 4}
    assert fired(dict(EXAMPLE)) == mine, "Prefect drops a schedule's parameters when it is paused on the page"
    with pytest.raises(InputError, match=r"cluster\.address"):
        fired(put(mine, "cluster.address", "tcp://evil.example:1"))
    with pytest.raises(InputError, match="name"):
        fired(mine, maker=uuid4())  # a schedule from the page varies the example only
    assert fired({**EXAMPLE, "seed": 3}, maker=uuid4()) == {**EXAMPLE, "seed": 3}


def test_a_retry_does_what_the_driver_of_the_run_has_recorded(served):
    home, deployment = served
    mine, identity = {**WHOLE, "name": "mine", "sweep": None}, uuid4()
    Order("run", mine).record(home, "flow-run", identity)
    assert carried_out(home, flow_run(deployment, mine, id=identity)) == ("run", mine)
    for name in ("seed", "name", "sweep", "tracking.mlflow"):
        with pytest.raises(InputError, match=name):
            carried_out(home, flow_run(deployment, put(mine, name, 9), id=identity))
    Order("sweep", {"name": "s", "base": EXAMPLE, "grid": {"seed": [0]}}).record(home, "flow-run", identity)
    with pytest.raises(InputError, match="recorded a sweep"):
        carried_out(home, flow_run(deployment, mine, id=identity))


def test_of_a_sweep_numbers_of_the_grid_are_free(tmp_path):
    home, deployment = Home(tmp_path / "home"), uuid4()
    recorded = {"name": "digits", "base": EXAMPLE, "grid": {"privacy.epsilon": [1, 2], "seed": [0, 1]}}
    Order("sweep", recorded, free_fields("sweep")).record(home, "deployment", deployment)

    def requested(**changes: Any) -> dict[str, Any]:
        return carried_out(home, flow_run(deployment, {**recorded, **changes}))[1]

    assert requested() == recorded and requested(variants=[{"set": {}, "grid": None}], patience=None) == recorded
    other_grid = {"privacy.epsilon": [4], "seed": [0, 1]}
    assert requested(grid=other_grid) == {**recorded, "grid": other_grid}
    hostile: list[dict[str, Any]] = [
        {"name": "planted"},
        {"base": put(EXAMPLE, "cluster.address", "tcp://evil.example:1")},
        {"grid": {**other_grid, "cluster.address": ["tcp://evil.example:1"]}},
        {"grid": {**other_grid, "seed": ["x"]}},
        {"grid": {**other_grid, "repetition": [0, 1]}},
        {"grid": {**other_grid, "seed": list(range(1000))}},
        {"variants": [{"set": {"cluster.address": "tcp://evil.example:1"}}]},
        {"patience": {"key": "seed"}},
        {"grid": {"seed": [0, 1]}},
        {"grid": {**other_grid, "seed": []}},
    ]
    for changes in hostile:
        with pytest.raises(InputError):
            requested(**changes)


def test_an_order_cannot_be_changed_in_place():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Order("run", EXAMPLE).kind = "sweep"  # type: ignore[misc]
