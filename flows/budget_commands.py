"""`fedcore budget show`: what each silo has charged and released, by its durable ledger."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

app = typer.Typer(
    name="budget",
    no_args_is_help=True,
    help="What silos have spent, by their durable ledgers (`privacy.ledger: sqlite`). Simulated silos with ledgers in "
    "memory are not listed: `fedcore report` shows their runs.",
)


@app.callback()
def budget() -> None:
    """Keeps `show` a command of its own, with more to come beside it."""


@app.command()
def show(
    silo: Annotated[str | None, typer.Argument(help="only the silo of this name")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON on standard output and nothing else")] = False,
) -> None:
    """Per silo: runs, releases, what all runs together are charged, and what their releases have spent."""
    from fedcore.errors import InputError
    from fedcore.home import Home
    from flows.report import plain_table

    home = Home.current()
    # By silo and then by data version: versions are random ids, and one silo's versions belong side by side.
    paths = sorted(home.ledgers.glob(f"*/{silo or '*'}.sqlite"), key=lambda path: (path.stem, path.parent.name))
    if not paths:
        whose = "durable ledger" if silo is None else f"durable ledger of a silo {silo!r}"
        raise InputError(f"{home.ledgers} holds no {whose}; runs with privacy.ledger = sqlite make one")
    accounts = [_account(path) for path in paths]
    if as_json:
        print(json.dumps(accounts, indent=2))
        return
    table = plain_table()
    for head in ("silo", "data version", "runs", "releases", "charged", "spent", "delta"):
        table.add_column(head, justify="left" if head in ("silo", "data version") else "right")
    for account in accounts:
        table.add_row(
            account["silo"], account["data_version"][:12], str(len(account["runs"])),
            str(sum(run["releases"] for run in account["runs"])),
            *(_number(account[key]) for key in ("epsilon_charged", "epsilon_spent")), f"{account['delta']:.3g}",
        )  # fmt: skip
    out = Console(highlight=False)
    out.print(table)
    out.print("charged: full plans of all runs, which is what a cap counts; spent: their releases so far.")


def _account(path: Path) -> dict[str, Any]:
    """One ledger as plain values; an infinite epsilon as null. Raises SiloError if another process holds it."""
    from fedcore.privacy.composition import spent, worst_mu_squared
    from fedcore.privacy.gaussian import epsilon_of
    from fedcore.privacy.ledger import SqliteLedger

    ledger = SqliteLedger(path.stem, path)
    try:
        charges = ledger.charges()
        rows = {run: ledger.rows(run) for run in charges}
    finally:
        ledger.close()
    delta = min((charge.delta for charge in charges.values()), default=math.nan)
    charged = math.fsum(charge.mu_squared for charge in charges.values())
    # Each run splits the records anew: the worst pieces may share a record, so runs add.
    released = math.fsum(worst_mu_squared(row.event for row in kept) for kept in rows.values())
    runs = [
        {
            "run": run, "epsilon_charged": _finite(charge.epsilon), "delta": charge.delta, "releases": len(rows[run]),
            "epsilon_spent": _finite(spent((row.event for row in rows[run]), charge.delta)),
            "rounds_by_phase": _rounds(rows[run]),
        }
        for run, charge in charges.items()
    ]  # fmt: skip
    return {
        "silo": path.stem, "data_version": path.parent.name, "delta": delta,
        "epsilon_charged": _finite(epsilon_of(math.sqrt(charged), delta)) if charges else 0.0,
        "epsilon_spent": _finite(epsilon_of(math.sqrt(released), delta)) if charges else 0.0,
        "runs": runs,
    }  # fmt: skip


def _rounds(rows: list[Any]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for row in rows:
        counts[str(row.phase)] = counts.get(str(row.phase), 0) + 1
    return counts


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.4f}"
