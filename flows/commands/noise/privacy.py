"""`fedcore privacy sigma | epsilon | rounds`: noise, epsilon and rounds, each from the other two. Touches no data.

`fedcore privacy papers`: the published formulas that `sigma --calibration NAME` can use.
"""

from __future__ import annotations

import enum
import json
import math
from dataclasses import replace
from typing import Annotated, Any

import typer

from fedcore.directed_rounding import in_full, shown_up
from flows.commands.noise.shown_noise import Compared, show, show_published
from flows.commands.typed_numbers import real, whole
from flows.terminal.console import Terminal

app = typer.Typer(
    name="privacy",
    no_args_is_help=True,
    help="Noise for a guarantee, epsilon of a noise, and rounds that fit both, for one silo of n records "
    "that answers with noised means of clipped gradients. Adjacency: one record replaced.",
)


class Scheme(enum.StrEnum):
    """Sampling scheme: the records that an answer is about."""

    full = "full"
    once = "once"
    poisson = "poisson"
    without_replacement = "without-replacement"
    with_replacement = "with-replacement"


Records = Annotated[
    int, typer.Option("--n", help="records of the silo (of the phase, for a localized method)", **whole())
]
Rounds = Annotated[int, typer.Option(help="maximal number of answers of the silo", **whole())]
Epsilon = Annotated[float, typer.Option(help="target for the whole run", **real())]
Sigma = Annotated[
    float, typer.Option(help="standard deviation per coordinate of the noise on the mean gradient", **real())
]
Delta = Annotated[float | None, typer.Option(help="default: 1/n^2", **real())]
Clip = Annotated[float, typer.Option(help="clipping bound on each record's gradient", **real())]
Batch = Annotated[
    int | None, typer.Option(help="records per answer (expected, for poisson); default: all n", **whole())
]
Sampling = Annotated[Scheme, typer.Option(help="full; once: disjoint batches; the others: a secret sample each round")]
Calibrated = Annotated[str, typer.Option(help="exact, paper (of the main method), or a name that `papers` lists")]
LocalSteps = Annotated[
    int, typer.Option(help="noised gradients per round (K; tau of dp-fcrn), each an answer", **whole())
]
Period = Annotated[
    int, typer.Option(help="named formulas: rounds from one restart of DIFF2 to the next (T)", **whole())
]
Silos = Annotated[int, typer.Option(help="silos in all (M of noble-2022, P of diff2-bvr)", **whole())]
Picked = Annotated[
    int | None, typer.Option(help="silos drawn in a round; adds epsilon under honest silo sampling", **whole())
]
Beside = Annotated[str | None, typer.Option("--paper", help="a formula that `papers` lists, shown for comparison")]
Kept = Annotated[float, typer.Option(help="named formulas: share k/d of the coordinates that DP-FCRN sends", **real())]
StepDelta = Annotated[float | None, typer.Option(help="named formulas: delta_0 of DP-FCRN; default: delta", **real())]
AsJson = Annotated[bool, typer.Option("--json", help="print only JSON on standard output")]


@app.command()
def sigma(
    n: Records,
    epsilon: Epsilon,
    rounds: Rounds = 1,
    delta: Delta = None,
    clip: Clip = 1.0,
    batch: Batch = None,
    sampling: Sampling = Scheme.full,
    calibration: Calibrated = "exact",
    local_steps: LocalSteps = 1,
    period: Period = 1,
    silos: Silos = 1,
    silos_per_round: Picked = None,
    kept: Kept = 1.0,
    step_delta: StepDelta = None,
    paper: Beside = None,
    as_json: AsJson = False,
) -> None:
    """Compute the noise with which `rounds` answers spend at most epsilon, or a paper's noise.

    Accounted is the true spending of this noise, at one silo that answers in every round, towards the server.
    """
    from fedcore.accounting.noise_search import noise_cached_in
    from fedcore.errors import InputError
    from fedcore.noise_cache import NoiseFolder

    setting = _setting(n, rounds, delta, clip, batch, sampling)
    inputs = setting.inputs(
        local_steps=local_steps,
        period=period,
        silos=silos,
        silos_per_round=silos_per_round,
        kept=kept,
        step_delta=step_delta,
    )
    if calibration not in ("exact", "paper"):
        show_published(setting, calibration, inputs, epsilon, as_json, paper)
        return
    used = {"local_steps"} if calibration == "exact" else set()
    if silos_per_round is not None or paper is not None:
        used |= {"silos", "silos_per_round"}
    for option in inputs.options():
        if option not in used:
            raise InputError(f"{option} is an input of named formulas only, not of {calibration}")
    setting = _setting(n, rounds, delta, clip, batch, sampling, local_steps)
    with noise_cached_in(NoiseFolder.current()):
        found = setting.sigma(epsilon) if calibration == "exact" else setting.paper.sigma(epsilon)
    show(setting, found, epsilon, as_json, {"calibration": calibration}, beside=Compared(inputs, paper))


@app.command()
def epsilon(
    n: Records,
    sigma: Sigma,
    rounds: Rounds = 1,
    delta: Delta = None,
    clip: Clip = 1.0,
    batch: Batch = None,
    sampling: Sampling = Scheme.full,
    local_steps: LocalSteps = 1,
    silos: Silos = 1,
    silos_per_round: Picked = None,
    paper: Beside = None,
    as_json: AsJson = False,
) -> None:
    """Compute the epsilon that this noise spends, and the epsilon that the paper's formula claims.

    Accounted is for a silo that answers in every round. Honest silo sampling is for a silo that an honest server draws.
    """
    setting = _setting(n, rounds, delta, clip, batch, sampling, local_steps)
    inputs = setting.inputs(local_steps=local_steps, silos=silos, silos_per_round=silos_per_round)
    show(setting, _positive("sigma", sigma), None, as_json, beside=Compared(inputs, paper), given=True)


@app.command()
def rounds(
    n: Records,
    epsilon: Epsilon,
    sigma: Sigma,
    delta: Delta = None,
    clip: Clip = 1.0,
    batch: Batch = None,
    sampling: Sampling = Scheme.full,
    local_steps: LocalSteps = 1,
    silos: Silos = 1,
    silos_per_round: Picked = None,
    paper: Beside = None,
    as_json: AsJson = False,
) -> None:
    """Compute the rounds that spend at most epsilon with this noise, at a silo that answers always."""
    setting = _setting(n, 1, delta, clip, batch, sampling, local_steps)
    inputs = setting.inputs(local_steps=local_steps, silos=silos, silos_per_round=silos_per_round)
    found = setting.rounds_for(_positive("epsilon", epsilon), _positive("sigma", sigma))
    if found == 0:
        from fedcore.errors import InputError

        spent = setting.epsilon(sigma)
        too_little = f"not one round keeps to epsilon = {in_full(epsilon)} with sigma = {in_full(sigma)}"
        raise InputError(f"{too_little}: it spends {shown_up(spent)}")
    beside = Compared(replace(inputs, rounds=found), paper)
    more = beside.rounds(epsilon, sigma)
    show(replace(setting, rounds=found), sigma, epsilon, as_json, more, beside=beside, given=True)


@app.command()
def papers(as_json: AsJson = False) -> None:
    """List the published formulas: name, method, source, formula and the limits stated for it."""
    from dataclasses import asdict

    from fedcore.accounting.published.papers import PAPERS

    rows = [asdict(paper) for paper in PAPERS.values()]
    for row in rows:
        del row["build"]
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    from rich.table import Table

    # Two columns, not five: a terminal's width would cut off the ends of formulas.
    table = Table("name, method", "source, formula, limits", show_lines=True)
    for column in table.columns:
        column.overflow = "fold"
    for row in rows:
        table.add_row(f"{row['name']}\n{row['method']}", f"{row['source']}\n{row['formula']}\n{row['limits']}")
    Terminal(highlight=False).print(table)


def _positive(name: str, value: float) -> float:
    from fedcore.errors import InputError

    if not 0 < value < math.inf:
        raise InputError(f"{name} = {in_full(value)} must be a positive number")
    return value


def _setting(
    n: int, rounds: int, delta: float | None, clip: float, batch: int | None, sampling: Scheme, local_steps: int = 1
) -> Any:
    from fedcore.accounting.setting import Setting
    from fedcore.accounting.tiny_silos import refusal
    from fedcore.errors import InputError

    if n >= 1 and (reason := refusal(delta, n, "--delta")) is not None:
        raise InputError(reason)
    small = delta if delta is not None else 1 / max(n, 1) ** 2
    return Setting(n, rounds, small, batch, clip, sampling.value, local_steps)
