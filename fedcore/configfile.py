"""Reading YAML and command-line overrides into sections, with errors that name the file and the key."""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_args

import yaml
from pydantic import BaseModel, Tag, ValidationError

from fedcore.errors import InputError

M = TypeVar("M", bound=BaseModel)

MOST_FAULTS = 20
"""Keys whose faults are told at a time: of a list of a million wrong numbers the first ones say enough."""
LONGEST_VALUE = 200
"""Characters of a wrong value that are shown."""

_TAGS = {"name": "logistic", "source": "digits", "constants": "public"}
"""Keys that tell members of unions apart, with what a section without them is."""


def validated(model: type[M], values: Mapping[str, Any], source: str) -> M:
    """The model made from plain values. Raises InputError with one line per fault: source, key, what would be right."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        members = {*_tags_below(model), *(kind.__name__ for kind in (float, int, str, tuple))}
        faults: dict[str, str] = {}
        for fault in error.errors(include_url=False):
            # A key that may be of several types has a fault for each: the first says enough.
            key = _key(fault, members, values)
            if key not in faults:
                if len(faults) == MOST_FAULTS:
                    break
                faults[key] = _sentence(fault, values, model, members)
        precise = [key for key in faults if not any(other.startswith(f"{key}.") for other in faults)]
        raise InputError("\n".join(f"{source}: {faults[key]}" for key in precise)) from None


def _key(fault: Any, members: set[str], values: Mapping[str, Any]) -> str:
    """The key as it is written in YAML: without the names of union members that pydantic puts in between."""
    parts = (str(part) for part in fault["loc"])
    kept = [part for part in parts if not (part in members or "[" in part or "constrained-" in part)]
    return ".".join(_named(kept, values))


def _named(path: list[str], values: Mapping[str, Any]) -> list[str]:
    """The path with names in place of numbers, where what is counted has a `name` (as a column, in whatever form)."""
    here: Any = values
    named: list[str] = []
    for part in path:
        if part.isdigit() and isinstance(here, Mapping) and int(part) < len(here):
            part = list(here)[int(part)]
        if isinstance(here, Sequence) and not isinstance(here, str) and part.isdigit() and int(part) < len(here):
            here = here[int(part)]
            name = here.get("name") if isinstance(here, Mapping) else None
            part = name if isinstance(name, str) else part
        else:
            here = here.get(part) if isinstance(here, Mapping) else None
        named.append(part)
    return named


def _sentence(fault: Any, values: Mapping[str, Any], model: type[BaseModel], members: set[str]) -> str:
    path = _key(fault, members, values).split(".")
    key, kind, context = _key(fault, members, values) or "the file", fault["type"], fault.get("ctx", {})
    if kind in ("extra_forbidden", "unexpected_keyword_argument"):
        known = _siblings(path[:-1], values, model)
        close = difflib.get_close_matches(path[-1], known, 1)
        hint = f"did you mean {close[0]}?" if close else f"known keys: {', '.join(sorted(known))}"
        return f"{key} is not a known key; {hint}"
    if kind in ("missing", "missing_argument"):
        return f"{key} is missing"
    if kind == "union_tag_invalid":
        tag = context["discriminator"].strip("'")
        return f"{key}.{tag} = {context['tag']!r} is not known; {_meant(context['tag'], context['expected_tags'])}"
    if kind == "union_tag_not_found":
        return f"{key}.{context['discriminator'].strip(chr(39))} is missing"
    message = fault["msg"].removeprefix("Value error, ")
    if kind == "value_error":
        # Checks over several keys name the full key themselves.
        if "." in message.split(" ")[0] or key == "the file":
            return message
        value = "" if isinstance(fault["input"], dict) else f" = {_shown(fault['input'])}"
        return f"{key}{value}: {message}"
    if kind == "literal_error" and isinstance(fault["input"], str):
        return f"{key} = {_shown(fault['input'])} is not known; {_meant(fault['input'], context['expected'])}"
    message = message[0].lower() + message[1:]
    return f"{key} = {_shown(fault['input'])}: {message.replace('input ', 'it ', 1)}"


def _meant(said: str, known: str) -> str:
    """Which of the values, quoted as pydantic lists them, may have been meant."""
    close = difflib.get_close_matches(str(said), re.findall(r"'([^']*)'", known), 1)
    return f"did you mean {close[0]}? There are {known}" if close else f"there are {known}"


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}.."


def _siblings(path: list[str], values: Mapping[str, Any], model: type[BaseModel]) -> set[str]:
    """Keys that are known in the section at `path`, for its method, loss or source."""
    known: Any = model
    here: Any = values
    for part in path:
        field = getattr(known, "__pydantic_fields__", {}).get(part)
        if field is None:  # an item of a list: its keys are those of the section that it is
            continue
        here = here.get(part) if isinstance(here, dict) else None
        options = _sections(field.annotation)
        tags = {str(here.get(tag, other)) for tag, other in _TAGS.items()} if isinstance(here, dict) else set()
        sections = [option for option in options if _keys(option)]
        known = next((option for option in options if tags & _tags(option)), sections[0] if sections else None)
    return _keys(known)


def _sections(annotation: Any) -> list[type]:
    """The types that an annotation is made of, in its order."""
    if get_args(annotation):
        return [option for part in get_args(annotation) for option in _sections(part)]
    return [annotation] if isinstance(annotation, type) else []


def _keys(section: Any) -> set[str]:
    """The keys of a section, method or loss; what its class says of itself is none."""
    if dataclasses.is_dataclass(section):
        return {field.name for field in dataclasses.fields(section)}
    return set(getattr(section, "model_fields", {}))


def _tags_below(kind: Any) -> set[str]:
    """The names, sources, tags and classes that tell members of unions apart, in all sections below this one."""
    if isinstance(kind, Tag):
        return {kind.tag}
    if not isinstance(kind, type):
        return set().union(*map(_tags_below, get_args(kind)))
    fields = getattr(kind, "__pydantic_fields__", {}).values()
    named = {kind.__name__} if fields else set()
    return (_tags(kind) | named).union(*(_tags_below(field.annotation) for field in fields))


def _tags(option: type) -> set[str]:
    """The method, loss, source or origin of constants that a member of a union stands for."""
    fields = getattr(option, "model_fields", getattr(option, "__dataclass_fields__", {}))
    return {str(fields[tag].default) for tag in _TAGS if tag in fields}


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
