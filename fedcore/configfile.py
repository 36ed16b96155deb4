"""Reading YAML and command-line overrides into sections, with errors that name the file and the key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from fedcore.errors import InputError
from fedcore.wrong_values import sentences

M = TypeVar("M", bound=BaseModel)


def validated(model: type[M], values: Mapping[str, Any], source: str) -> M:
    """The model made from plain values. Raises InputError with one line per fault: source, key, what would be right."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise InputError("\n".join(f"{source}: {each}" for each in sentences(error, model, values))) from None


class _UniqueKeys(yaml.SafeLoader):
    """YAML would let a second `privacy:` section silently replace the first."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, str) and key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} is there twice", key_node.start_mark
                )
            seen.add(key if isinstance(key, str) else repr(key))
        return super().construct_mapping(node, deep)


def read_yaml(path: Path, overrides: Sequence[str]) -> dict[str, Any]:
    try:
        values = yaml.load(path.read_text(), _UniqueKeys)
    except FileNotFoundError:
        raise InputError(f"config file {path} does not exist; examples are in conf/experiment and conf/sweep") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"config file {path} cannot be read: {error}") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        raise InputError(f"{path}{where}: not valid YAML ({getattr(error, 'problem', 'cannot be parsed')})") from None
    if values is None:
        values = {}
    if not isinstance(values, dict):
        raise InputError(f"{path}: a config is a mapping of keys to values")
    for key, value in by_depth(overrides):
        put(values, key, value, "command line")
    return values


def by_depth(overrides: Sequence[str]) -> list[tuple[list[str], Any]]:
    """Sections before their names or sources before their other keys: what replaces a section drops no override."""
    return sorted(map(_override, overrides), key=lambda override: _depth(override[0]))


def _depth(path: Sequence[str]) -> float:
    return len(path) - (0.5 if path[-1] in ("name", "source") else 0.0)


def _override(text: str) -> tuple[list[str], Any]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise InputError(f"{text!r} is not an override; write key=value, for instance privacy.epsilon=2")
    try:
        path = key.split(".")
        if path[0] == "grid" and len(path) > 1:
            path = ["grid", ".".join(path[1:])]  # the keys of a grid are dotted themselves
        return path, yaml.safe_load(value)
    except yaml.YAMLError:
        raise InputError(f"{text!r}: the value is not valid YAML") from None


def lists(overrides: Sequence[str]) -> tuple[dict[str, list[Any]], list[str]]:
    """The values by key of overrides as seed=0,1,2, and the other overrides. What is quoted or bracketed is one value.
    """
    found: dict[str, list[Any]] = {}
    others = []
    for text in overrides:
        key, _, value = text.partition("=")
        if "," in value and value[0] not in "[{'\"":
            found[key] = [_override(f"{key}={part}")[1] for part in value.split(",")]
        else:
            others.append(text)
    return found, others


def put(values: dict[str, Any], path: list[str], value: Any, source: str) -> None:
    at = values
    for depth, part in enumerate(path[:-1]):
        step = at.setdefault(part, {})
        if not isinstance(step, dict):
            raise InputError(f"{source}: {'.'.join(path)} cannot be set, {'.'.join(path[: depth + 1])} is {step!r}")
        at[part] = at = dict(step)
    # Another method or source does not understand the old one's keys.
    if path[-1] in ("name", "source") and len(path) > 1 and at.get(path[-1], value) != value:
        at.clear()
    at[path[-1]] = value


def unfolded(values: Mapping[str, Any], source: str) -> dict[str, Any]:
    """A mapping whose dotted keys are unfolded."""
    result: dict[str, Any] = {}
    for key, value in sorted(values.items(), key=lambda item: _depth(item[0].split("."))):
        put(result, key.split("."), value, source)
    return result


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`over` on `base`, section by section; a section of another name or source replaces the base's whole."""
    result = dict(base)
    for key, value in over.items():
        old = result.get(key)
        result[key] = value
        if isinstance(old, dict) and isinstance(value, dict):
            tags = [tag for tag in ("name", "source") if tag in value and tag in old]
            if all(value[tag] == old[tag] for tag in tags):
                result[key] = merged(old, value)
    return result
