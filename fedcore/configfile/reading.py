"""Reads YAML and command-line overrides into sections; errors name the file and the key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from fedcore.bounded_file import read_within
from fedcore.configfile.yaml_loader import Ambiguous, Loader
from fedcore.errors import InputError
from fedcore.printable import on_terminal
from fedcore.wrong_values import sentences

M = TypeVar("M", bound=BaseModel)


def validated(model: type[M], values: Mapping[str, Any], source: str) -> M:
    """The model from plain values. Raises InputError with a line per fault: source, key, value."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        lines = (on_terminal(f"{source}: {each}") for each in sentences(error, model, values))
        raise InputError("\n".join(line.replace("\n", "\\n").replace("\t", "\\t") for line in lines)) from None


def read_yaml(path: Path, overrides: Sequence[str]) -> dict[str, Any]:
    """Plain values of a config file with overrides. Raises InputError naming file and line."""
    try:
        text = read_within(path).decode("utf-8-sig")
    except FileNotFoundError:
        raise InputError(f"config file {path} does not exist; examples are in conf/experiment and conf/sweep") from None
    except IsADirectoryError:
        raise InputError(f"config file {path} cannot be read: it is a folder; name a YAML file") from None
    except OSError as error:
        raise InputError(f"config file {path} cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise InputError(f"config file {path} cannot be read: it is no UTF-8 text") from None
    try:
        values = yaml.load(text, Loader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        line, problem = _fault(error, text)
        raise InputError(f"{path}{line}: {problem}") from None
    if values is None and not overrides:
        raise InputError(f"{path}: the file is empty; `fedcore conf list` names examples to begin with")
    if values is None:
        values = {}
    if not isinstance(values, dict):
        raise InputError(f"{path}: a config is a mapping of keys to values")
    for key, value in by_depth(overrides):
        put(values, key, value, "command line")
    return values


def _fault(error: Exception, text: str) -> tuple[str, str]:
    """Line (", line 3", or empty) and reason of an error in a YAML text."""
    if isinstance(error, yaml.reader.ReaderError):
        line = text.count(chr(10), 0, error.position) + 1
        return f", line {line}", "not valid YAML (a character that no text has)"
    if not isinstance(error, yaml.YAMLError):  # deeply nested brackets
        return "", f"not valid YAML ({'nested too deeply' if isinstance(error, RecursionError) else error})"
    mark, problem = getattr(error, "problem_mark", None), str(getattr(error, "problem", "cannot be parsed"))
    if "'\\t'" in problem:
        problem = "a tab, where only spaces indent"
    reason = problem if isinstance(error, Ambiguous) else f"not valid YAML ({problem})"
    return "" if mark is None else f", line {mark.line + 1}", reason


def by_depth(overrides: Sequence[str]) -> list[tuple[list[str], Any]]:
    """Overrides ordered so that none is lost: sections, then names or sources, then other keys."""
    return sorted(map(_override, overrides), key=lambda override: _depth(override[0]))


def _depth(path: Sequence[str]) -> float:
    return len(path) - (0.5 if path[-1] in ("name", "source") else 0.0)


def _override(text: str) -> tuple[list[str], Any]:
    key, equals, value = text.partition("=")
    path = key.split(".")
    if not equals or not all(path):
        raise InputError(f"{text!r} is not an override; write key=value, for instance privacy.epsilon=2")
    if path[0] == "grid" and len(path) > 1:
        path = ["grid", ".".join(path[1:])]  # keys of a grid have dots
    return path, value_of(value, repr(text))


def value_of(text: str, source: str) -> Any:
    """The value of a command-line text, as YAML. Raises InputError, which names `source`."""
    try:
        return yaml.load(text, Loader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        reason = _fault(error, text)[1]
        raise InputError(f"{source}: {reason if isinstance(error, Ambiguous) else f'the value is {reason}'}") from None


def lists(overrides: Sequence[str]) -> tuple[dict[str, list[Any]], list[str]]:
    """Splits overrides into lists of values by key (seed=0,1,2) and the others.

    A quoted or bracketed value is one value. Raises InputError for a text that is no override.
    """
    found: dict[str, list[Any]] = {}
    others = []
    for text in overrides:
        key, _, value = text.partition("=")
        if "," in value and value[0] not in "[{'\"":
            if not all(part.strip() for part in value.split(",")):
                raise InputError(f"{text!r}: one of the values is empty; write for instance {key}=0,1,2")
            found[key] = [_override(f"{key}={part}")[1] for part in value.split(",")]
        else:
            _override(text)
            others.append(text)
    return found, others


def put(values: dict[str, Any], path: list[str], value: Any, source: str) -> None:
    """Sets the key at `path` in place. Raises InputError if a part of the path is no section."""
    at = values
    for depth, part in enumerate(path[:-1]):
        step = at.setdefault(part, {})
        if not isinstance(step, dict):
            raise InputError(f"{source}: {'.'.join(path)} cannot be set, {'.'.join(path[: depth + 1])} is {step!r}")
        at[part] = at = dict(step)
    # The old method's or source's keys do not fit the new one.
    if path[-1] in ("name", "source") and len(path) > 1 and at.get(path[-1], value) != value:
        at.clear()
    at[path[-1]] = value


def unfolded(values: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Nested sections from a mapping with dotted keys."""
    result: dict[str, Any] = {}
    for key, value in sorted(values.items(), key=lambda item: _depth(item[0].split("."))):
        put(result, key.split("."), value, source)
    return result


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`over` on `base`, section by section; a section of another name or source replaces it."""
    result = dict(base)
    for key, value in over.items():
        old = result.get(key)
        result[key] = value
        if isinstance(old, dict) and isinstance(value, dict):
            tags = [tag for tag in ("name", "source") if tag in value and tag in old]
            if all(value[tag] == old[tag] for tag in tags):
                result[key] = merged(old, value)
    return result
