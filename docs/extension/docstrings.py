"""Docstrings as reStructuredText: their plain text has names like `coef_` and arguments like `**sections`."""

from __future__ import annotations

import re
from typing import Any

SPECIAL = re.compile(r"\*+(?=\w)|(?<=\w)_(?=\W|$)")


def escape(app: Any, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """Escapes stars and trailing underscores outside of code spans; a handler of `autodoc-process-docstring`."""
    for number, line in enumerate(lines):
        parts = line.split("`")
        parts[::2] = [SPECIAL.sub(lambda found: re.sub(r"(.)", r"\\\1", found.group()), part) for part in parts[::2]]
        lines[number] = "`".join(parts)
