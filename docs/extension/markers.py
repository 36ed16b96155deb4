"""Replacement of markers `<!-- generated: NAME -->`, on their own lines, by generated Markdown."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

MARKER = re.compile(r"^<!-- generated: ([\w-]+) -->$", re.MULTILINE)
SPECIAL = re.compile(r"([\\*_<>\[\]|$#~])")


def replace(text: str, generators: Mapping[str, Callable[[], str]], page: str) -> str:
    """The page with every marker replaced. Raises KeyError for a name without a generator."""

    def generated(found: re.Match[str]) -> str:
        name = found.group(1)
        if name not in generators:
            raise KeyError(f"page {page} asks for {name!r}; there are {sorted(generators)}")
        return generators[name]()

    return MARKER.sub(generated, text)


def plain(text: str) -> str:
    """A text of the code as one line of Markdown, with special characters escaped outside of code spans."""
    parts = re.sub(r"[ \t\r\n]+", " ", text).strip().split("`")
    return "`".join(part if number % 2 else SPECIAL.sub(r"\\\1", part) for number, part in enumerate(parts))
