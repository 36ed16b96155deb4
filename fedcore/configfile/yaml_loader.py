"""Loader of YAML 1.2 core scalars; refuses numbers that YAML 1.1 reads as another value."""

from __future__ import annotations

import math
import re
from collections.abc import Hashable
from decimal import Decimal
from typing import Any

import yaml

from fedcore.limits import MOST_VALUES

_NULL = re.compile(r"~|null|Null|NULL|")
_TRUE, _FALSE = ("true", "True", "TRUE"), ("false", "False", "FALSE")
_INT = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_ZERO_AHEAD = re.compile(r"[-+]?0[0-9]")
_DIGITS = re.compile(r"[-+]?[0-9][0-9_]*$")
_LONGEST = 400
"""Most characters of a number: the largest float has 309 digits, and Python refuses integers of some thousand."""
_SHOWN = 20
"""Shown characters of such a text in an error."""
_OLDER = yaml.SafeLoader("")
_TAG = "tag:yaml.org,2002:"


def core_number(text: str) -> int | float | None:
    """A plain scalar's number in YAML 1.2's core schema (10.3.2); None if it is no number."""
    if _INT.fullmatch(text):
        return int(text[2:], {"0o": 8, "0x": 16}[text[:2]]) if text[:2] in ("0o", "0x") else int(text)
    if _FLOAT.fullmatch(text):
        return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
    return None


def older_number(text: str) -> int | float | None:
    """A plain scalar's number in YAML 1.1 (octal, sexagesimal, underscores); else None."""
    node = yaml.ScalarNode(_OLDER.resolve(yaml.ScalarNode, text, (True, False)), text)
    if node.tag not in (f"{_TAG}int", f"{_TAG}float"):
        return None
    try:
        found: int | float = _OLDER.construct_object(node)
    except (ValueError, OverflowError):  # 0x_ has the form of a number and is none
        return None
    return found


def complaint(text: str) -> str | None:
    """Reason to refuse a plain scalar: two readings, or beyond a float; else None."""
    if len(text) > _LONGEST and _DIGITS.match(text):
        return f"{text[:_SHOWN]}.. has {len(text)} characters, more than a number has; write it in quotes for the text"
    core = core_number(text)
    if isinstance(core, float) and math.isinf(core) and "inf" not in text.lower():
        return f"{text} is more than a float holds; write '{text}' for the text"
    older = older_number(text)
    same = core == older or (core is not None and older is not None and math.isnan(core) and math.isnan(older))
    if _ZERO_AHEAD.match(text) and core is not None:
        also = "" if same else f" and {'a text' if older is None else older} in YAML 1.1"
        return f"{text} is {core} in YAML 1.2{also}; write {core}, or '{text}' for the text"
    if isinstance(core, float) and core.is_integer() and Decimal(text) != Decimal(repr(core)):
        return f"{text} is {core:.0f} as a number; write '{text}' for the text"
    if same or (older is None and isinstance(core, float)):  # 1e3 and -.5 are meant as numbers
        return None
    new, old = ("a text" if each is None else str(each) for each in (core, older))
    return f"{text} is {new} in YAML 1.2 and {old} in YAML 1.1; write the number that you mean, or '{text}'"


class Ambiguous(yaml.MarkedYAMLError):
    """Error of a valid scalar that is refused, since its writer may mean another value."""


class Loader(yaml.SafeLoader):
    """Loader of mappings without repeated keys, at most `MOST_VALUES` values, YAML 1.2 scalars.

    yes, no, on, off, dates and times are texts. Raises yaml.YAMLError with the position for a number of YAML 1.1 or 1.2
    that is another number, or a text, in the other version.
    """

    yaml_implicit_resolvers = {}  # noqa: RUF012 (as its base has it)

    def get_single_node(self) -> Any:
        node = super().get_single_node()
        if node is not None and _values_below(node, {}) > MOST_VALUES:
            raise yaml.composer.ComposerError(None, None, f"more than {MOST_VALUES} values", node.start_mark)
        return node

    def compose_scalar_node(self, anchor: Any) -> Any:
        tagged_text = self.peek_event().tag == f"{_TAG}str"
        node = super().compose_scalar_node(anchor)
        if node.style is None and not tagged_text and (why := complaint(node.value)) is not None:
            raise Ambiguous(None, None, why, node.start_mark)
        return node

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value if isinstance(node, yaml.MappingNode) else ():
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable):  # the base class refuses it below
                continue
            if key in seen or str(key) in seen:
                raise _refusal(f"the key {key!r} is there twice", key_node)
            seen |= {key, str(key)}
        return super().construct_mapping(node, deep)

    def construct_core_number(self, node: Any) -> int | float:
        """An int or a float. Raises yaml.YAMLError for a tagged scalar that is none."""
        text = self.construct_scalar(node)
        found = core_number(text) if len(text) <= _LONGEST else None
        if found is None or (node.tag.endswith(":int") and not isinstance(found, int)):
            what = "number" if found is None else "whole number"
            raise _refusal(f"{text[:_SHOWN]!r} is no {what}", node)
        try:
            return float(found) if node.tag.endswith(":float") else found
        except OverflowError:
            raise _refusal(f"{text[:_SHOWN]!r} is more than a float holds", node) from None

    def construct_core_bool(self, node: Any) -> bool:
        """A bool. Raises yaml.YAMLError for a tagged scalar that is none."""
        text = self.construct_scalar(node)
        if text not in (*_TRUE, *_FALSE):
            raise _refusal(f"{text[:_SHOWN]!r} is not true or false", node)
        return text in _TRUE

    def construct_core_null(self, node: Any) -> None:
        """None. Raises yaml.YAMLError for a tagged scalar that is not null."""
        if not _NULL.fullmatch(text := self.construct_scalar(node)):
            raise _refusal(f"{text[:_SHOWN]!r} is not null", node)

    def no_such_tag(self, node: Any) -> Any:
        """Raises yaml.YAMLError: a config has no values of other types."""
        named = node.tag.replace(_TAG, "!!")
        raise _refusal(f"the tag {named}, which no config has", node)


for _name, _form, _first in (
    ("bool", re.compile("|".join((*_TRUE, *_FALSE))), list("tTfF")),
    ("null", _NULL, ["~", "n", "N", ""]),
    ("int", _INT, list("-+0123456789")),
    ("float", _FLOAT, list("-+.0123456789")),
):
    Loader.add_implicit_resolver(_TAG + _name, re.compile(f"(?:{_form.pattern})$"), _first)
Loader.yaml_constructors = {
    **{_TAG + name: yaml.SafeLoader.yaml_constructors[_TAG + name] for name in ("str", "seq", "map")},
    **{_TAG + name: Loader.construct_core_number for name in ("int", "float")},
    _TAG + "bool": Loader.construct_core_bool,
    _TAG + "null": Loader.construct_core_null,
    None: Loader.no_such_tag,
}


def _refusal(why: str, node: Any) -> yaml.YAMLError:
    return yaml.constructor.ConstructorError(None, None, why, node.start_mark)


def _values_below(node: Any, known: dict[int, float]) -> float:
    """Number of values of a node, aliases counted again; infinite if it contains itself."""
    found = known.get(id(node))
    if found is None:
        known[id(node)] = math.inf
        pairs = node.value if isinstance(node, yaml.CollectionNode) else ()
        parts = (part for pair in pairs for part in (pair if isinstance(pair, tuple) else (pair,)))
        found = known[id(node)] = 1 + sum(_values_below(part, known) for part in parts)
    return found
