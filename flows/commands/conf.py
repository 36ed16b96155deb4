"""`conf`: the examples that come with fedcore, listed and copied to where a person can change them."""

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
    """The names of all examples, each with its first comment."""
    found = {path.relative_to(CONF).as_posix(): _says(path) for path in sorted(CONF.rglob("*.yaml"))}
    if as_json:
        print(json.dumps(found, indent=2))
        return
    for name, says in found.items():
        console.print(name, style="bold", highlight=False)
        if says:
            console.print(f"  {says}", highlight=False, markup=False)


@app.command()
def copy(
    name: Annotated[str, typer.Argument(help="as `conf list` names it, for instance experiment/digits.yaml")],
    to: Annotated[Path, typer.Argument(help="a new file, or a folder")] = Path(),
) -> None:
    """Copy an example to a file of your own. A file that is there is not replaced."""
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
    """The text of an example; the experiment that a sweep is about is in it, and no longer in a file beside it."""
    text = path.read_text(encoding="utf-8")
    if (base := re.search(r"^base: (\S+\.yaml)$", text, re.MULTILINE)) is None:
        return text
    inner = textwrap.indent((path.parent / base[1]).read_text(encoding="utf-8").strip(), "  ")
    return text.replace(base[0], f"base:\n{inner}")


def _says(path: Path) -> str:
    """The comment at the begin of a file, or its first sentence."""
    said = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        said.append(line.lstrip("# ").strip())
    return " ".join(said).partition(". ")[0].rstrip(".")
