"""Reference of the configuration, from the JSON schema of its pydantic models and the comments of the example."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from extension.markers import plain

REFERENCE = Path(__file__).parents[2] / "conf" / "reference.yaml"
BOUNDS = {"minimum": "at least", "exclusiveMinimum": "above", "maximum": "at most", "exclusiveMaximum": "below"}
OWN_PAGES = {"algorithm": "The keys of each method are on the [methods page](methods.md)."}


def keys() -> str:
    """Markdown of every key: dotted name, type, default and meaning, a heading for each section."""
    from fedcore.experiment.config import ExperimentConfig

    schema = ExperimentConfig.model_json_schema()
    names = schema["properties"]
    top = {name: each for name, each in names.items() if not list(_models(each, schema))}
    parts = ["## Top level", "", *_entries(top, schema, "")]
    for name, each in names.items():
        models = list(_models(each, schema))
        if not models:
            continue
        parts += [f"## {name}", ""]
        if name in OWN_PAGES:
            parts += [OWN_PAGES[name], ""]
            continue
        parts += [plain(each.get("description", "")), ""]
        for model in models:
            if len(models) > 1:
                parts += [f"### {name}: {_kind(model)}", "", plain(model.get("description", "")), ""]
            parts += list(_entries(model["properties"], schema, name, only_here=len(models) > 1))
    return "\n".join(parts)


def _entries(properties: Any, schema: Any, prefix: str, only_here: bool = False, of: str = "") -> Iterator[str]:
    for key, each in properties.items():
        if of and "const" in each:
            continue  # the key that selects this model
        dotted = f"{prefix}.{key}".lstrip(".")
        meaning = (None if only_here and not _is_default_source(properties) else comments().get(dotted)) or each.get(
            "description"
        )
        default = "" if "default" not in each else f", default `{json.dumps(each['default'])}`"
        required = ", required" if "default" not in each else default
        kind = f" of {of}" if of else ""
        yield from (f"`{dotted}`{kind}", f": *{plain(allowed(each, schema))}{required}.* {plain(meaning or '')}", "")
        models = list(_models(each, schema))
        for model in models:
            of_kind = _kind(model) if len(models) > 1 else ""
            yield from _entries(model["properties"], schema, dotted, only_here=True, of=of_kind)


def _is_default_source(properties: Any) -> bool:
    """True if these are the keys of the data source that the example shows."""
    return "source" in properties and properties["source"].get("const") == "digits"


def _kind(model: Any) -> str:
    for key in ("source", "name"):
        if "const" in model["properties"].get(key, {}):
            return str(model["properties"][key]["const"])
    return str(model["title"])


def _models(each: Any, schema: Any) -> Iterator[Any]:
    """The models with keys among the values that this schema allows."""
    if "$ref" in each:
        found = schema["$defs"][each["$ref"].rpartition("/")[2]]
        if found.get("properties"):
            yield found
    for choice in [*each.get("anyOf", []), *each.get("oneOf", [])]:
        yield from _models(choice, schema)


def allowed(each: Any, schema: Any) -> str:
    """The values that a schema admits, as text."""
    if "$ref" in each:
        return allowed(schema["$defs"][each["$ref"].rpartition("/")[2]], schema)
    if "const" in each:
        return str(each["const"])
    if "enum" in each:
        return " or ".join(map(str, each["enum"]))
    choices = [*each.get("anyOf", []), *each.get("oneOf", [])]
    if choices:
        return " or ".join(dict.fromkeys(allowed(choice, schema) for choice in choices))
    kind = {"object": "section", "array": "list", "boolean": "true or false"}.get(each.get("type"), each.get("type"))
    bounds = [f"{word} {each[name]:g}" for name, word in BOUNDS.items() if name in each]
    return " ".join([kind or "any value", ", ".join(bounds)]).strip()


@cache
def comments() -> dict[str, str]:
    """The comment above each key of the example configuration, by dotted key."""
    text = REFERENCE.read_text()
    lines, found = text.splitlines(), {}

    def above(line: int) -> str:
        start = line
        while start > 0 and lines[start - 1].lstrip().startswith("#"):
            start -= 1
        return " ".join(re.sub(r"^\s*# ?", "", part).strip() for part in lines[start:line])

    def walk(node: yaml.Node, prefix: str) -> None:
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                dotted = f"{prefix}.{key.value}".lstrip(".")
                found[dotted] = above(key.start_mark.line)
                walk(value, dotted)

    walk(yaml.compose(text), "")
    return found
