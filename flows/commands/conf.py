"""`conf`: lists and copies the example configs that come with fedcore."""

from __future__ import annotations

import difflib
import json
import os
import re
import textwrap
from pathlib import Path
from typing import Annotated

import typer

from fedcore.errors import InputError
from flows.commands.arguments import AsJson, console, write_new_output

CONF = Path(__file__).parents[1].joinpath("conf").resolve()

app = typer.Typer(
    name="conf",
    no_args_is_help=True,
    help="Example configs that come with fedcore. `reference.yaml` explains every key; experiment/ is for `run` and "
    "`plan`, sweep/ for `sweep`, policy/ for silos' operators.",
)


@app.command("list")
def list_(as_json: AsJson = False) -> None:
    """List all examples, each with its first comment."""
    found = {path.relative_to(CONF).as_posix(): _summary(path) for path in sorted(CONF.rglob("*.yaml"))}
    if as_json:
        print(json.dumps(found, indent=2))
        return
    for name, summary in found.items():
        console.print(name, style="bold", highlight=False)
        if summary:
            console.print(f"  {summary}", highlight=False, markup=False)


@app.command()
def copy(
    name: Annotated[str, typer.Argument(help="a name that `conf list` prints, for instance experiment/digits.yaml")],
    to: Annotated[Path, typer.Argument(help="a new file, or a folder")] = Path(),
) -> None:
    """Copy an example to a file of your own. An existing file is not replaced."""
    known = {path.relative_to(CONF).as_posix(): path for path in CONF.rglob("*.yaml")}
    if name not in known:
        same = [each for each in known if each.rpartition("/")[2].startswith(name.rpartition("/")[2])]
        same = same or difflib.get_close_matches(name, known, 1, 0.85)
        meant = f"did you mean {', '.join(sorted(same)[:5])}?" if same else "`fedcore conf list` names them"
        raise InputError(f"{name} is no example; {meant}")
    target = to / known[name].name if to.is_dir() else to
    if os.path.lexists(target):
        raise InputError(f"{target} is there already; name another file")
    write_new_output(target, _whole(known[name]), option="")
    console.print(f"{target}", highlight=False, markup=False, soft_wrap=True)


def _whole(path: Path) -> str:
    """Text of an example. A sweep's base experiment is copied in, so that no second file is needed."""
    text = path.read_text(encoding="utf-8")
    if (base := re.search(r"^base: (\S+\.yaml)$", text, re.MULTILINE)) is None:
        return text
    inner = textwrap.indent((path.parent / base[1]).read_text(encoding="utf-8").strip(), "  ")
    return text.replace(base[0], f"base:\n{inner}")


def _summary(path: Path) -> str:
    """First sentence of the comment at the beginning of a file."""
    lines = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.lstrip("# ").strip())
    return " ".join(lines).partition(". ")[0].rstrip(".")
