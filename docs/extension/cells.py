"""Execution of notebook cells in text form: `{code-cell}` blocks, with their output below at build time.

A page with cells is a notebook that Jupyter opens by jupytext. All cells of a page run in one fresh process, in an
empty folder. A cell that fails ends the build with its traceback.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

CELL = re.compile(r"^```\{code-cell\}[^\n]*\n(.*?)^```$", re.DOTALL | re.MULTILINE)
SECONDS = 120
KERNEL = Path(__file__).with_name("kernel.py")


def cells(text: str) -> list[str]:
    """Sources of the cells of a page, in order."""
    return CELL.findall(text)


def execute(text: str, docs: Path, page: str) -> str:
    """The page with each cell as a code block, followed by its printed output, value or figure."""
    sources = cells(text)
    if not sources:
        return text
    figures = docs / "generated" / page.replace("/", "-")
    outputs = iter(run(sources, figures, page))

    def shown(found: re.Match[str]) -> str:
        printed, drawn = next(outputs)
        parts = [f"```python\n{found.group(1)}```"]
        if printed:
            parts.append(f"```text\n{printed.rstrip()}\n```")
        parts += [f"![Figure of the cell above](/generated/{figures.name}/{name})" for name in drawn]
        return "\n\n".join(parts)

    return CELL.sub(shown, text)


def run(sources: list[str], figures: Path, page: str) -> list[tuple[str, list[str]]]:
    """Text and names of figure files of each cell. Raises RuntimeError with the traceback of a cell that fails."""
    figures.mkdir(parents=True, exist_ok=True)
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1", "MPLBACKEND": "Agg"}
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, str(KERNEL), str(figures)],
            input=json.dumps(sources),
            cwd=folder,
            env=environment | {"FEDCORE_HOME": f"{folder}/home", "PYTHONPATH": str(KERNEL.parents[2])},
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
    if done.returncode:
        raise RuntimeError(f"a cell of page {page} failed:\n{done.stderr}")
    return [(printed, drawn) for printed, drawn in json.loads(done.stdout)]
