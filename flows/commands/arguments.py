"""What commands have in common: their arguments, and where they write."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fedcore.planning.size import MOST_LEDGER_BYTES, MOST_ROUNDS

console = Console()
errors = Console(stderr=True)

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


def number(value: float | None) -> str:
    """Four digits; a dash for what is not there."""
    return "-" if value is None else f"{value:.4g}"
