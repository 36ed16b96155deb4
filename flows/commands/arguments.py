"""Arguments and output files that several commands share."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from fedcore.errors import InputError
from fedcore.planning.size import MOST_LEDGER_BYTES, MOST_ROUNDS
from fedcore.printable import on_terminal
from fedcore.process.private_files import give_back
from flows.terminal.console import Terminal

console = Terminal()
errors = Terminal(stderr=True)

Config = Annotated[Path, typer.Argument(help="YAML file, for instance conf/experiment/digits.yaml")]
Overrides = Annotated[
    list[str] | None, typer.Argument(help="values that replace the file's, for instance privacy.epsilon=2 seed=1")
]
AsJson = Annotated[bool, typer.Option("--json", help="print only JSON on standard output")]

Yes = Annotated[
    bool,
    typer.Option(
        "--yes",
        help=f"start however large it is: without it, more than {MOST_ROUNDS:,} rounds or "
        f"{MOST_LEDGER_BYTES // 10**9} GB of ledgers are refused, with an estimate of time and size",
    ),
]


def check_output(path: Path, config: Path) -> None:
    """Raises InputError if `path` cannot be written or is the config. Called before the work; leaves no file."""
    if path.exists() and path.samefile(config):
        raise InputError(f"{path} is the config itself; name another file with --output")
    made = False
    try:
        with contextlib.suppress(FileExistsError), open(path, "xb"):
            made = True
        with open(path, "ab") as file:
            empty = not os.fstat(file.fileno()).st_size
    except OSError as error:
        raise InputError(f"--output {path} cannot be written ({error.strerror})") from None
    if made and empty:  # another process may have written it meanwhile
        path.unlink(missing_ok=True)


def write_new_output(path: Path, text: str, option: str = "--output ") -> None:
    """As `write_output`, for a new file only: raises InputError for an existing one."""
    try:
        with open(path, "x"):
            pass
    except FileExistsError:
        raise InputError(f"{path} is there already; name another file{' with --output' if option else ''}") from None
    except OSError as error:
        raise InputError(f"{option}{path} cannot be written ({error.strerror})") from None
    write_output(path, text, option, there=False)


def write_output(path: Path, text: str, option: str = "--output ", there: bool | None = None) -> None:
    """Writes the file. Raises InputError if that fails, and removes a file that did not exist before.

    `option`: the option that gave the path, for the message. `there`: the file existed before; None: looked up here.
    """
    there = path.exists() if there is None else there
    try:
        path.write_text(text, encoding="utf-8")
        if not there:
            give_back(path)
    except OSError as error:
        if not there:
            with contextlib.suppress(OSError):
                path.unlink()
        raise InputError(f"{option}{path} cannot be written ({error.strerror})") from None


def config_text(values: Mapping[str, Any], comment: Sequence[str]) -> str:
    """A config as YAML below lines of comment."""
    from fedcore.configfile.yaml_writer import yaml_text

    # U+0085 and U+2028 in a file's name would end a comment.
    return "".join(f"# {' '.join(on_terminal(line).splitlines())}\n" for line in comment) + yaml_text(values)


def number(value: float | None) -> str:
    """The value with four digits; a dash for None."""
    return "-" if value is None else f"{value:.4g}"
