"""YAML as people type it: numbers of YAML 1.2's core schema, and a refusal where YAML 1.1 would read another one."""

from __future__ import annotations

import math
import re
from decimal import Decimal
from typing import Any

import yaml

from fedcore.limits import MOST_VALUES

_NULL = re.compile(r"~|null|Null|NULL|")
_TRUE, _FALSE = ("true", "True", "TRUE"), ("false", "False", "FALSE")
_INT = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_ZERO_AHEAD = re.compile(r"[-+]?0[0-9]")
_OLDER = yaml.SafeLoader("")


def core_number(text: str) -> int | float | None:
    """What a plain scalar is as a number of YAML 1.2's core schema (10.3.2); None: it is none."""
    if _INT.fullmatch(text):
        return int(text[2:], {"0o": 8, "0x": 16}[text[:2]]) if text[:2] in ("0o", "0x") else int(text)
    if _FLOAT.fullmatch(text):
        return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
    return None


def older_number(text: str) -> int | float | None:
    """What it is in YAML 1.1, as PyYAML reads it: with octal numbers, underscores and sexagesimal ones."""
    node = yaml.ScalarNode(_OLDER.resolve(yaml.ScalarNode, text, (True, False)), text)
    if node.tag not in ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float"):
        return None
    found: int | float = _OLDER.construct_object(node)
    return found


def complaint(text: str) -> str | None:
    """Why a plain scalar is not read: two readings, or a number that no float holds; None: it has one."""
    core = core_number(text)
    if isinstance(core, float) and math.isinf(core) and "inf" not in text.lower():
        return f"{text} is more than a float holds; write '{text}' for the text"
    older = older_number(text)
    same = core == older or (core is not None and older is not None and math.isnan(core) and math.isnan(older))
    if _ZERO_AHEAD.match(text) and core is not None:
        also = "" if same else f" and {'a text' if older is None else older} in YAML 1.1"
        return f"{text} is {core} in YAML 1.2{also}; write {core}, or '{text}' for the text"
    if isinstance(core, float) and core.is_integer() and Decimal(text) != Decimal(core):
        return f"{text} is {core:.0f} as a number; write '{text}' for the text"
    if same or (older is None and isinstance(core, float)):  # 1e3 and -.5, which everybody means as numbers
        return None
    said = ["a text" if each is None else str(each) for each in (core, older)]
    return f"{text} is {said[0]} in YAML 1.2 and {said[1]} in YAML 1.1; write the number that you mean, or '{text}'"


class Ambiguous(yaml.MarkedYAMLError):
    """A scalar that is YAML and yet not read: it may not say what was meant."""


class Loader(yaml.SafeLoader):
    """Mappings without a second key of one name, values up to a bound, and scalars of YAML 1.2's core schema.

    yes, no, on, off, dates and times are texts. Raises yaml.YAMLError, which tells the place, for a number that
    YAML 1.1 would read as another one or as a text, and the reverse.
    """

    yaml_implicit_resolvers = {}  # noqa: RUF012 (as its base has it)

    def get_single_node(self) -> Any:
        node = super().get_single_node()
        if node is not None and _values_below(node, {}) > MOST_VALUES:
            raise yaml.composer.ComposerError(None, None, f"more than {MOST_VALUES} values", node.start_mark)
        return node

    def compose_scalar_node(self, anchor: Any) -> Any:
        node = super().compose_scalar_node(anchor)
        if node.style is None and (why := complaint(node.value)) is not None:
            raise Ambiguous(None, None, why, node.start_mark)
        return node

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

    def construct_core_number(self, node: Any) -> int | float:
        """An int or a float. Raises yaml.YAMLError for what an explicit tag calls one and is none."""
        found = core_number(self.construct_scalar(node))
        if found is None:
            raise yaml.constructor.ConstructorError(None, None, f"{node.value!r} is no number", node.start_mark)
        return float(found) if node.tag.endswith(":float") else found


_TAG = "tag:yaml.org,2002:"
for _name, _form, _first in (
    ("bool", re.compile("|".join((*_TRUE, *_FALSE))), list("tTfF")),
    ("null", _NULL, ["~", "n", "N", ""]),
    ("int", _INT, list("-+0123456789")),
    ("float", _FLOAT, list("-+.0123456789")),
):
    Loader.add_implicit_resolver(_TAG + _name, re.compile(f"(?:{_form.pattern})$"), _first)
for _name in ("int", "float"):
    Loader.add_constructor(_TAG + _name, Loader.construct_core_number)


def _values_below(node: Any, known: dict[int, float]) -> float:
    """Values of a node; one that aliases name again counts each time. Infinite for one that is within itself."""
    found = known.get(id(node))
    if found is None:
        known[id(node)] = math.inf
        pairs = node.value if isinstance(node, yaml.CollectionNode) else ()
        parts = (part for pair in pairs for part in (pair if isinstance(pair, tuple) else (pair,)))
        found = known[id(node)] = 1 + sum(_values_below(part, known) for part in parts)
    return found


class Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]
    """Writes texts so that `Loader` reads them as texts: 12e4 in quotes, which YAML 1.1 has no number for.

    In a twentieth of the time where PyYAML was built with its C library.
    """

    def represent_text(self, text: str) -> Any:
        quoted = core_number(text) is not None or complaint(text) is not None
        return self.represent_scalar(_TAG + "str", text, style="'" if quoted else None)


Dumper.add_representer(str, Dumper.represent_text)
