"""Process that executes the cells of a notebook: sources as JSON on stdin, outputs as JSON on stdout."""

from __future__ import annotations

import ast
import contextlib
import io
import json
import sys
from pathlib import Path
from typing import Any


def value_of(source: str, names: dict[str, Any]) -> Any:
    """Executes a cell; returns the value of its last line if that is an expression, else None."""
    tree = ast.parse(source)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "<cell>", "exec"), names)
    return None if last is None else eval(compile(ast.Expression(last.value), "<cell>", "eval"), names)


def main(figures: Path) -> None:
    """Runs all cells in one namespace; writes each one's printed output with its value, and its figures."""
    names: dict[str, Any] = {"__name__": "__main__"}
    outputs = []
    for number, source in enumerate(json.load(sys.stdin), 1):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            value = value_of(source, names)
        drawn = []
        if hasattr(value, "savefig"):
            drawn.append(f"cell-{number}.png")
            value.savefig(figures / drawn[0], dpi=110, bbox_inches="tight")
        elif value is not None:
            print(value if isinstance(value, str) else repr(value), file=printed)
        outputs.append((printed.getvalue(), drawn))
    json.dump(outputs, sys.stdout)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
