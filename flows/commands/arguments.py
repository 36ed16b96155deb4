"""What commands have in common: their arguments, and where they write."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from fedcore.errors import InputError
from fedcore.planning.size import MOST_LEDGER_BYTES, MOST_ROUNDS
from fedcore.process.private_files import give_back
from flows.terminal import Terminal

console = Terminal()
errors = Terminal(stderr=True)

Config = Annotated[Path, typer.Argument(help="YAML file, for instance conf/experiment/digits.yaml")]
Overrides = Annotated[
    list[str] | None, typer.Argument(help="values over the file's, for instance privacy.epsilon=2 seed=1")
]
AsJson = Annotated[bool, typer.Option("--json", help="print JSON on standard output and nothing else")]

Yes = Annotated[
    bool,
    typer.Option(
        "--yes",
        help=f"begin it however large it is: more than {MOST_ROUNDS:,} rounds or {MOST_LEDGER_BYTES // 10**9} GB of "
        "ledgers are else refused, with what they would take",
    ),
]


def check_output(path: Path, config: Path) -> None:
    """Raises InputError where no file can be written, or the config itself would be, before the work that is to be
    written there; leaves nothing."""
    there = path.exists()
    if there and path.samefile(config):
        raise InputError(f"{path} is the config itself; name another file with --output")
    try:
        with open(path, "ab"):
            pass
    except OSError as error:
        raise InputError(f"--output {path} cannot be written ({error.strerror})") from None
    if not there:
        path.unlink()


def write_output(path: Path, text: str, option: str = "--output ") -> None:
    """Writes the file. Raises InputError if that fails; a file that was not there before is gone again.

    `option`: what the path was given as, before it in the sentence.
    """
    there = path.exists()
    try:
        path.write_text(text, encoding="utf-8")
        if not there:
            give_back(path)
    except OSError as error:
        if not there:
            with contextlib.suppress(OSError):
                path.unlink()
        raise InputError(f"{option}{path} cannot be written ({error.strerror})") from None


def config_text(values: Mapping[str, Any], said: Sequence[str]) -> str:
    """A config as YAML, with lines of comment above it."""
    import yaml

    from fedcore.yaml_loader import Dumper

    body = yaml.dump(
        dict(values), Dumper=Dumper, sort_keys=False, default_flow_style=None, width=110, allow_unicode=True
    )
    return "".join(f"# {line}\n" for line in said) + body


def number(value: float | None) -> str:
    """Four digits; a dash for what is not there."""
    return "-" if value is None else f"{value:.4g}"
