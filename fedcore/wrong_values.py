"""Sentences about a section's wrong values, one for each key: the given value, and a right one."""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, get_args

from pydantic import BaseModel, Tag, ValidationError

MOST_FAULTS = 20
"""Keys in one error, since a list may have a million wrong numbers."""
LONGEST_VALUE = 200
"""Shown characters of a wrong value."""

_TAGS = {"name": "logistic", "source": "digits", "constants": "public"}
"""Keys that decide the member of a union, with the member of a section that lacks the key."""
_UNKNOWN = ("extra_forbidden", "unexpected_keyword_argument", "invalid_key")
_NO_SECTION = ("model_type", "model_attributes_type", "dataclass_type", "dict_type")
_NO_LIST = ("tuple_type", "list_type")
_PLAIN = {
    f"{kind}_{fault}": wanted
    for kind, wanted in (("bool", "true or false"), ("float", "a number"), ("int", "a whole number"))
    for fault in ("type", "parsing")
}
_NAME = "^[A-Za-z0-9][A-Za-z0-9_.-]"
"""Start of the patterns of names."""


def sentences(error: ValidationError, model: type[BaseModel], values: Mapping[str, Any]) -> list[str]:
    """One sentence for each faulty key of `values` that are no `model`, without the source."""
    members = {*_tags_below(model), *(kind.__name__ for kind in (float, int, str, tuple))}
    faults: dict[str, list[Any]] = {}
    items: set[tuple[Any, ...]] = set()
    for fault in error.errors(include_url=False):
        key = _key(fault, members, values)
        if fault["loc"] and isinstance(fault["loc"][-1], int):
            kind = (*fault["loc"][:-1], fault["type"])
            if kind in items and key not in faults:  # items of a list that are wrong in the same way are one mistake
                continue
            items.add(kind)
        if key in faults:
            faults[key].append(fault)
        elif len(faults) < MOST_FAULTS:
            faults[key] = [fault]
    precise = [key for key in faults if not any(other.startswith(f"{key}.") for other in faults)]
    return [_sentence(key, faults[key], values, model) for key in precise]


def _key(fault: Any, members: set[str], values: Mapping[str, Any]) -> str:
    """The dotted key as YAML has it, without the names of union members that pydantic inserts."""
    if fault["type"] == "invalid_key":  # pydantic locates it by the key itself, not by the key's number
        return ".".join(str(part) for part in fault["loc"] if part != "[key]")
    parts = (str(part) for part in fault["loc"])
    path = [part for part in parts if not (part in members or "[" in part or "constrained-" in part)]
    return ".".join(_named(path, values))


def _named(path: list[str], values: Mapping[str, Any]) -> list[str]:
    """The path with names of mappings' keys, and of list items that have a `name`, for numbers."""
    here: Any = values
    named: list[str] = []
    for part in path:
        step: Any = part
        if part.isdigit() and isinstance(here, Mapping) and int(part) < len(here):
            step = list(here)[int(part)]
        if isinstance(here, Sequence) and not isinstance(here, str) and part.isdigit() and int(part) < len(here):
            here = here[int(part)]
            name = here.get("name") if isinstance(here, Mapping) else None
            step = name if isinstance(name, str) else part
        else:
            here = here.get(step) if isinstance(here, Mapping) else None
        named.append(str(step))  # YAML reads the name 2019 of a column as a number
    return named


def _sentence(key: str, faults: list[Any], values: Mapping[str, Any], model: type[BaseModel]) -> str:
    """The sentence for one key, from its first type's fault and the other types' values."""
    fault, path = faults[0], key.split(".")
    key, kind, context = key or "the file", fault["type"], fault.get("ctx", {})
    if kind in _UNKNOWN:
        return f"{key} is not a known key; {_known(path, values, model)}"
    if kind in ("missing", "missing_argument"):
        return f"{key} is missing"
    if kind == "union_tag_invalid":
        tag = context["discriminator"].strip("'")
        return f"{key}.{tag} = {context['tag']!r} is not known; {_meant(context['tag'], context['expected_tags'])}"
    if kind == "union_tag_not_found":
        return f"{key}.{context['discriminator'].strip(chr(39))} is missing"
    message = fault["msg"].removeprefix("Value error, ")
    if kind == "value_error":
        # The messages of checks over several keys name the full key.
        if "." in message.split(" ")[0] or key == "the file":
            return message
        value = "" if isinstance(fault["input"], dict) else f" = {_shown(fault['input'])}"
        return f"{key}{value}: {message}"
    if kind == "literal_error" and isinstance(fault["input"], str):
        return f"{key} = {_shown(fault['input'])} is not known; {_meant(fault['input'], context['expected'])}"
    return f"{key} = {_shown(fault['input'])}: {_right(path, fault, model)}{_or_else(faults)}"


def _right(path: list[str], fault: Any, model: type[BaseModel]) -> str:
    """Describes the right type or length for a value of a wrong one."""
    kind, given, context = fault["type"], fault["input"], fault.get("ctx", {})
    if kind in _NO_SECTION:
        tags = [tag for tag in _TAGS if tag in _siblings(path, {}, model)]
        hint = f"; write {'.'.join(path)}.{tags[0]}={given}" if tags and isinstance(given, str) else ""
        return f"it should be a section, of keys with their values{hint}"
    if kind in _NO_LIST:
        return "it should be a list"
    if kind in _PLAIN:
        return f"it should be {_PLAIN[kind]}"
    if kind == "too_short":
        return f"it should have at least {context['min_length']} item{'s' * (context['min_length'] != 1)}"
    if kind == "string_type":
        return "it should be text" + ("" if given is None or isinstance(given, list | dict) else ", in quotes")
    if kind == "string_pattern_mismatch" and context["pattern"].startswith(_NAME):
        most = ", at most 61 in all" if context["pattern"].endswith("{0,60}$") else ""
        return f"it should be of letters, digits, dots, dashes and underscores, a letter or digit first{most}"
    message = fault["msg"]
    return str(message[0].lower() + message[1:]).replace("input ", "it ", 1)


def _or_else(faults: list[Any]) -> str:
    """Lists the values of a key's further types, as ", or ...", after the first type's fault."""
    if not faults[0]["type"].endswith(("_type", "_parsing")):
        return ""
    words = [fault["ctx"]["expected"] for fault in faults[1:] if fault["type"] == "literal_error"]
    whole = faults[0]["type"] == "string_type" and any(fault["type"].startswith("int_") for fault in faults[1:])
    return "".join(f", or {other}" for other in [*(["a whole number"] if whole else []), *dict.fromkeys(words)])


def _known(path: list[str], values: Mapping[str, Any], model: type[BaseModel]) -> str:
    """Suggests a key: the same key in another section, else a similar one in this section."""
    known, name = _siblings(path[:-1], values, model), path[-1]
    found = sections_with(name, values, model, but=None if len(path) > 1 else name)
    if found:
        return f"did you mean {' or '.join(f'{field}.{name}' for field in found)}?"
    close = _close(name, known)
    return f"known keys: {', '.join(sorted(known))}" if close is None else f"did you mean {close}?"


def sections_with(name: str, values: Mapping[str, Any], model: type[BaseModel], but: str | None = None) -> list[str]:
    """Sections with a key of this name, except `but`; those in `values` if there are any."""
    found = [field for field in _keys(model) if field != but and name in _siblings([field], values, model)]
    return sorted([field for field in found if field in values] or found)


def _meant(given: object, known: str) -> str:
    """Suggests the most similar of the values that `known` lists in pydantic's quotes."""
    close = _close(str(given), re.findall(r"'([^']*)'", known))
    return f"there are {known}" if close is None else f"did you mean {close}? There are {known}"


def _close(given: str, known: Iterable[str]) -> str | None:
    """The known word most similar to the given one, regardless of case; None if none is similar."""
    folded = {each.casefold(): each for each in known}
    close = difflib.get_close_matches(given.casefold(), folded, 1)
    return folded[close[0]] if close else None


def _shown(value: Any) -> str:
    """The value roughly as in YAML (null, true, false), cut to `LONGEST_VALUE` characters."""
    text = "null" if value is None else str(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}.."


def _siblings(path: list[str], values: Mapping[str, Any], model: type[BaseModel]) -> set[str]:
    """Known keys of the section at `path`, of the method, loss or source that it names."""
    known: Any = model
    here: Any = values
    for part in path:
        field = getattr(known, "__pydantic_fields__", {}).get(part)
        if field is None:  # the number of a list item: `known` is the item's section already
            continue
        here = here.get(part) if isinstance(here, dict) else None
        options = _sections(field.annotation)
        tags = {str(here.get(tag, other)) for tag, other in _TAGS.items()} if isinstance(here, dict) else set()
        sections = [option for option in options if _keys(option)]
        known = next((option for option in options if tags & _tags(option)), sections[0] if sections else None)
    return _keys(known)


def _sections(annotation: Any) -> list[type]:
    """The types in an annotation, in its order."""
    if get_args(annotation):
        return [option for part in get_args(annotation) for option in _sections(part)]
    return [annotation] if isinstance(annotation, type) else []


def _keys(section: Any) -> set[str]:
    """The keys of a section, method or loss; class variables are no keys."""
    if dataclasses.is_dataclass(section):
        return {field.name for field in dataclasses.fields(section)}
    return set(getattr(section, "model_fields", {}))


def _tags_below(kind: Any) -> set[str]:
    """Names in pydantic's locations of faults for members of unions, of this section and below."""
    if isinstance(kind, Tag):
        return {kind.tag}
    if not isinstance(kind, type):
        return set().union(*map(_tags_below, get_args(kind)))
    fields = getattr(kind, "__pydantic_fields__", {}).values()
    named = {kind.__name__} if fields else set()
    return (_tags(kind) | named).union(*(_tags_below(field.annotation) for field in fields))


def _tags(option: type) -> set[str]:
    """Method, loss, source or origin of a union's member: the defaults of its `_TAGS` keys."""
    fields = getattr(option, "model_fields", getattr(option, "__dataclass_fields__", {}))
    return {str(fields[tag].default) for tag in _TAGS if tag in fields}
