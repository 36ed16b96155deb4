"""References of methods, losses and answers, from their registries."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator

from pydantic import TypeAdapter

from extension.keys import allowed
from extension.markers import plain

TRAITS = {
    "takes_nonconvex": "networks",
    "linear_only": "linear predictors only",
    "needs_all_silos": "all silos in every round",
}


def methods() -> str:
    """Markdown of the table of methods, and of every method's keys."""
    from fedcore.algorithms import ALGORITHMS

    rows = ["| method | description | source | takes |", "|---|---|---|---|"]
    for name, method in sorted(ALGORITHMS.items()):
        traits = [words for trait, words in TRAITS.items() if getattr(method, trait)]
        taken = ", ".join(["nonsmooth losses" if method.takes_nonsmooth else "smooth losses", *traits])
        link = f"[`{name}`](#{name})"
        rows.append(f"| {link} | {plain(method.title)} | {plain(method.source)} | {taken} |")
    parts = ["## Table", "", *rows, ""]
    for name, method in sorted(ALGORITHMS.items()):
        parts += [f"## {name}", "", plain(_first_paragraph(method)), "", *_keys(method)]
    return "\n".join(parts)


def losses() -> str:
    """Markdown of the losses, with their classes' docstrings."""
    from fedcore.losses import LOSSES, Softmax

    return "\n".join(_listed({**LOSSES, Softmax.name: Softmax}))


def answers() -> str:
    """Markdown of the kinds of answers that a silo gives."""
    from fedcore.silo.answers import ANSWERS

    return "\n".join(_listed(ANSWERS))


def _listed(kinds: dict[str, type]) -> Iterator[str]:
    for name, kind in kinds.items():
        yield from (f"`{name}`", f": {plain(_first_paragraph(kind))}", "")


def _first_paragraph(kind: type) -> str:
    return (inspect.getdoc(kind) or "").partition("\n\n")[0]


def _keys(method: type) -> Iterator[str]:
    schema = TypeAdapter(method).json_schema()
    for key, each in schema["properties"].items():
        if key == "name":
            continue
        default = f", default `{json.dumps(each['default'])}`" if "default" in each else ", required"
        meaning = plain(each.get("description", ""))
        yield from (f"`algorithm.{key}`", f": *{plain(allowed(each, schema))}{default}.* {meaning}", "")
