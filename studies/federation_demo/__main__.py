"""The program of the demo: `python -m studies.federation_demo`, which `make demo` runs."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

from flows.commands.app import main  # isort: skip  # before NumPy is loaded: it sets the threads of BLAS

import typer

from fedcore.data.sources.hospitals import HOSPITALS
from fedcore.directed_rounding import in_full
from flows.commands.arguments import console
from studies.federation_demo.code_view import ROOT
from studies.federation_demo.demo import Outcome, show
from studies.federation_demo.hospital_files import EPSILONS
from studies.federation_demo.isolation import DEGREES, Degree

app = typer.Typer(pretty_exceptions_enable=False)


@app.command()
def demo(
    isolation: Annotated[str, typer.Option(help=f"strongest degree to try: {', '.join(DEGREES)}")] = DEGREES[0],
    epsilon: Annotated[list[float] | None, typer.Option(help="a target of the sweep; may be repeated")] = None,
    folder: Annotated[Path, typer.Option(help="folder of the parties; the driver's home stays there")] = ROOT / ".demo",
) -> None:
    """Relay, driver and four hospitals as users of their own on networks of their own; exit code 1 for other bits."""
    if isolation not in DEGREES:
        raise typer.BadParameter(f"{isolation}: it is one of {', '.join(DEGREES)}", param_hint="--isolation")
    degree: Degree = isolation
    began = time.monotonic()

    def say(line: str) -> None:
        console.print_plain(f"[{time.monotonic() - began:4.0f} s] {line}")

    outcome = show(folder.resolve(), degree, epsilon or EPSILONS, say)
    _print(outcome, (time.monotonic() - began) / 60.0)
    if not outcome.equal:
        raise typer.Exit(1)


def _print(outcome: Outcome, minutes: float) -> None:
    for line in outcome.table:
        console.print_plain(line)
    console.print_plain("")
    for each in outcome.compared:
        verdict = "equal" if each.equal else "NOT EQUAL"
        apart, together = each.digests
        console.print_plain(
            f"epsilon {in_full(each.epsilon)}: model of silos apart {apart}, of {len(HOSPITALS)} silos in one process "
            f"{together}: {verdict} to the last bit"
        )
    steps = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in outcome.seconds.items())
    console.print_plain(f"{minutes:.1f} minutes: {steps}")
    home = outcome.home.relative_to(Path.cwd()) if outcome.home.is_relative_to(Path.cwd()) else outcome.home
    for page in outcome.pages:
        console.print_plain(f"browse: `FEDCORE_HOME={home} make up`, then {page}")
    console.print_plain(
        f"all else is removed: users' folders, namespaces, processes; {home} holds releases and no record"
    )


if __name__ == "__main__":
    main(app, "python -m studies.federation_demo")
