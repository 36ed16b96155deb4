"""`make bench`: the cost of a round and of its parts. See `--help`.

Every variant runs with one BLAS thread per process, on synthetic logistic data: N silos of 400 records, d = 64.
"""

# ruff: noqa: E402
from __future__ import annotations

import os

ONE_THREAD = {name: "1" for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")}
os.environ.update(ONE_THREAD)  # before NumPy is imported, here and in every process started from here

import argparse
import contextlib
import json
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import differences, local_steps, newton, workload
from benchmarks.aims import AIMS, DIFFERENCE_AIMS, LOCAL_AIMS, NEWTON_AIMS, QUIET, STACK_MS, aims_of, frozen
from benchmarks.interleaving import compare
from benchmarks.ledger_cost import ledger_cost
from benchmarks.local_steps import DRAWN, LOCAL_VARIANTS, SILOS, STEPS
from benchmarks.prefect_cost import ingestion_apart
from benchmarks.processes import machine
from benchmarks.services import services, show_services
from benchmarks.split import PARTS, split_round
from benchmarks.sweep_cost import ENGINES, start_cost, sweep_cost
from benchmarks.variants import VARIANTS
from fedcore.home import Home

REMAINDER = 0.02
SMALL = {"per_cell": 5e-4, "at_start": 0.1, "parts": 0.05}
"""CPU-seconds below which a part has no row of its own."""
SCALE = {"per_cell": 1e3}


def main() -> None:
    options = _options()
    console = Console() if sys.stdout.isatty() else Console(width=110)
    result: dict[str, Any] = {"machine": machine()}
    with _folder() as folder:
        if "start" in options.parts:
            result["start"] = start_cost(folder / "start")
            for start in result["start"]:
                _show_cost(console, f"{start['start']} run in a home", start)
        if "sweep" in options.parts:
            result["sweep"] = [sweep_cost(engines, *options.seeds, folder) for engines in ENGINES]
            for sweep in result["sweep"]:
                _show_cost(console, f"sweep of {sweep['cells']} cells, {sweep['engines']}", sweep)
        if "services" in options.parts:
            result["services"] = services(options.cycles, options.block, folder / "services")
            show_services(console, result["services"])
        if set(options.parts) - {"start", "sweep", "services"}:
            with _server(folder) as url:
                _rounds(options, console, result, folder, url)
    _show_aims(console, result)
    if options.json is not None:
        options.json.write_text(json.dumps(result, indent=2) + "\n")


def _rounds(options: argparse.Namespace, console: Console, result: dict[str, Any], folder: Path, url: str) -> None:
    """Measures the parts whose unit is a round, not a command, into `result`."""
    if "rounds" in options.parts:
        result["rounds"] = []
        for silos in options.silos:
            block = max(10, options.block if silos < 100 else options.block // 2)
            variants = {name: VARIANTS[name] for name in options.variants}
            result["rounds"].append(compare(silos, options.cycles, block, folder / "rounds", url, variants))
            title = f"ms per round, N = {silos} silos (memory ledger; {frozen(workload)})"
            _show_rounds(console, result["rounds"][-1], title, AIMS)
    if "local" in options.parts:
        block = max(2, options.block // 10)
        result["local"] = compare(SILOS, options.cycles, block, folder / "local", url, LOCAL_VARIANTS)
        title = f"ms per round, {DRAWN} of {SILOS} silos, K = {STEPS} local steps on samples ({frozen(local_steps)})"
        _show_rounds(console, result["local"], title, LOCAL_AIMS)
    if "differences" in options.parts:
        block, silos = max(40, options.block), differences.SILOS
        variants = differences.DIFFERENCE_VARIANTS
        result["differences"] = compare(silos, options.cycles, block, folder / "differences", url, variants)
        title = f"ms per round of DIFF2, {silos} silos, {differences.HIDDEN} softplus units ({frozen(differences)})"
        _show_rounds(console, result["differences"], title, DIFFERENCE_AIMS)
    if "newton" in options.parts:
        block, silos = max(4, options.block // 10), newton.SILOS
        result["newton"] = compare(silos, options.cycles, block, folder / "newton", url, newton.NEWTON_VARIANTS)
        mask = f"{newton.KEPT} of {newton.FEATURES:,} coordinates"
        title = f"ms per round of DP-FCRN, {silos} silos, {mask} ({frozen(newton)})"
        _show_rounds(console, result["newton"], title, NEWTON_AIMS)
    if "split" in options.parts:
        result["split"] = []
        for silos in options.silos:
            for checkpoint in ("behind", "each-round"):
                home = folder / f"split-{silos}-{checkpoint}"
                result["split"].append(split_round(silos, options.rounds, 30, home, url, checkpoint))
        _show_split(console, result["split"])
    if "ledger" in options.parts:
        result["ledger"] = ledger_cost(25, 40, folder / "ledgers")
        _show_ledger(console, result["ledger"])
    if "prefect" in options.parts:
        result["prefect"] = ingestion_apart(300, Home(folder / "ingestion"))
        _show_prefect(console, result["prefect"])


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rounds", description=__doc__)
    parser.add_argument("--json", type=Path, help="write all numbers to this file")
    parser.add_argument("--silos", type=int, nargs="+", default=[25, 250])
    parser.add_argument("--cycles", type=int, default=8, help="turns of each variant (default 8)")
    parser.add_argument("--block", type=int, default=50, help="rounds of a turn (default 50; half with many silos)")
    parser.add_argument("--rounds", type=int, default=300, help="rounds of the split (default 300)")
    parser.add_argument("--seeds", type=int, nargs=2, default=[4, 12], help="of the two sweeps (default 4 12)")
    usual, further = (
        ("rounds", "local", "differences", "newton", "split", "ledger", "prefect"),
        ("sweep", "start", "services"),
    )
    parser.add_argument("--parts", nargs="+", choices=usual + further, default=usual)
    parser.add_argument("--variants", nargs="+", choices=list(VARIANTS), default=list(VARIANTS))
    return parser.parse_args()


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    """A folder beside the project's own runs, so that ledgers and checkpoints are on the disk that runs use."""
    root = Home.current().make().root
    folder = Path(tempfile.mkdtemp(prefix="bench-", dir=root))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _server(folder: Path) -> Iterator[str]:
    """The API address of a new Prefect server for all variants."""
    from flows.services.environment import prefect_environment
    from flows.services.prefect_server import prefect_server

    home = Home(folder / "prefect-home")
    os.environ.update(prefect_environment(home))
    os.environ["PREFECT_LOGGING_LOGGERS_PREFECT_FLOW_RUNS_LEVEL"] = "WARNING"  # tables and nothing else
    with prefect_server(home) as url:
        yield url


def _show_rounds(console: Console, result: dict[str, Any], title: str, aims: dict[tuple[str, int], float]) -> None:
    table = Table(title=title)
    for column in ("variant", "median", "p90", "ratio", "quartiles", "to", "aim", "MB"):
        table.add_column(column, justify="left" if column in ("variant", "to") else "right")
    for name, row in result["variants"].items():
        aim = aims.get((name, result["silos"]))
        shown = "" if aim is None else f"{aim:g}"
        if name in STACK_MS and result["silos"] == 25:
            shown = f"{STACK_MS[name]:g} ms"
        cells = ["", "", ""]
        if "ratio" in row:
            low, high = row["ratio_quartiles"]
            cells = [f"{row['ratio']:.2f}", f"{low:.2f} .. {high:.2f}", row["ratio_to"]]
        table.add_row(name, f"{row['median_ms']:.2f}", f"{row['p90_ms']:.2f}", *cells, shown, f"{row['memory_mb']:.0f}")
    console.print(table)
    if result["floor_spread"] is not None and result["floor_spread"] > QUIET:
        console.print(
            f"The machine was not quiet: the floor's blocks spread by {result['floor_spread']:.0%}, on a quiet one by "
            f"at most {QUIET:.0%}."
        )


def _show_aims(console: Console, result: dict[str, Any]) -> None:
    found = aims_of(result)
    if not found:
        return
    table = Table(title="aims")
    for column in ("what", "measured", "aim", ""):
        table.add_column(column, justify="left" if column in ("what", "") else "right")
    for what, value, aim in found:
        table.add_row(what, f"{value:.2f}", f"{aim:g}", "met" if value <= aim else "missed")
    console.print(table)


def _show_split(console: Console, results: list[dict[str, Any]]) -> None:
    table = Table(title="one full-stack round, mean ms by each part's own clock (rounds without a pause)")
    table.add_column("part")
    for result in results:
        table.add_column(f"N = {result['silos']}\n{result['ledger']} ledger\n{result['checkpoint']}", justify="right")
    for part in (*PARTS, "remainder"):
        table.add_row(part, *(f"{result['mean_ms'][part]:.3f}" for result in results))
    table.add_section()
    table.add_row("wall clock", *(f"{result['wall_mean_ms']:.3f}" for result in results))
    table.add_row("median, p90", *(f"{r['wall_median_ms']:.2f}, {r['wall_p90_ms']:.2f}" for r in results))
    table.add_row(f"remainder (aim {REMAINDER:.0%})", *(f"{result['remainder_share']:.2%}" for result in results))
    console.print(table)


def _show_cost(console: Console, name: str, cost: dict[str, Any]) -> None:
    """Prints CPU-seconds by part: of a start, or of a sweep's cell and of its start."""
    columns = ("per_cell", "at_start") if "per_cell" in cost else ("parts",)
    table = Table(title=f"{name}: {cost['wall']:.1f} s wall, {cost['cpu']:.1f} CPU-seconds")
    table.add_column("process / part")
    for column in columns:
        table.add_column({"per_cell": "ms per cell", "at_start": "start, s", "parts": "s"}[column], justify="right")
    rest = dict.fromkeys(columns, 0.0)
    for part in sorted(cost[columns[0]], key=lambda part: -cost[columns[0]][part]):
        if all(abs(cost[column][part]) < SMALL[column] for column in columns):
            for column in columns:
                rest[column] += cost[column][part]
            continue
        table.add_row(part, *(f"{cost[column][part] * SCALE.get(column, 1):.2f}" for column in columns))
    table.add_row("smaller parts", *(f"{rest[column] * SCALE.get(column, 1):.2f}" for column in columns))
    table.add_section()
    if "per_cell" in cost:
        table.add_row("a cell, all processes", f"{cost['cpu_per_cell'] * 1e3:.2f}", "")
    table.add_row(
        f"parts of all CPU-seconds (aim {1 - REMAINDER:.0%})", f"{cost['seen_share']:.2%}", *columns[1:] and [""]
    )
    console.print(table)


def _show_ledger(console: Console, result: dict[str, Any]) -> None:
    table = Table(title=f"ledger, one site of {result['silos']} silos, ms")
    for column in ("ledger", "commit median", "commit p99", "round median", "round p99"):
        table.add_column(column, justify="left" if column == "ledger" else "right")
    for kind in ("memory", "sqlite"):
        table.add_row(kind, *(f"{value:.4f}" for value in result[kind].values()))
    console.print(table)


def _show_prefect(console: Console, result: dict[str, Any]) -> None:
    table = Table(title=f"Prefect, {result['tasks']} trivial round tasks, ms per task run")
    table.add_column("where")
    table.add_column("ms", justify="right")
    table.add_row("in the driver", f"{result['client_ms_per_task']:.2f}")
    table.add_row("server's processor time", f"{result['server_cpu_ms_per_task']:.2f}")
    table.add_row("until the server shows all", f"{result['recorded_ms_per_task']:.2f}")
    console.print(table)


if __name__ == "__main__":
    sys.exit(main())
