"""`fedcore privacy sigma | epsilon | rounds`: noise, epsilon and rounds, each from the other two. Touches no data."""

from __future__ import annotations

import enum
import json
import math
from typing import Annotated, Any

import typer
from rich.console import Console

app = typer.Typer(
    name="privacy",
    no_args_is_help=True,
    help="How much noise a guarantee needs, what a noise spends, how many rounds it lasts: for one silo of n records "
    "that answers with noised means of clipped gradients. Adjacency: one record replaced.",
)


class Calibration(enum.StrEnum):
    """How sigma follows from epsilon."""

    exact = "exact"
    paper = "paper"


class Scheme(enum.StrEnum):
    """Which records an answer is about."""

    full = "full"
    once = "once"
    poisson = "poisson"
    without_replacement = "without-replacement"
    with_replacement = "with-replacement"


Records = Annotated[int, typer.Option("--n", help="records of the silo (of the phase, for a localized method)")]
Rounds = Annotated[int, typer.Option(help="answers that the silo gives at most")]
Epsilon = Annotated[float, typer.Option(help="target for the whole run")]
Sigma = Annotated[float, typer.Option(help="standard deviation per coordinate of the noise on the mean gradient")]
Delta = Annotated[float | None, typer.Option(help="default: 1/n^2")]
Clip = Annotated[float, typer.Option(help="clipping bound on each record's gradient")]
Batch = Annotated[int | None, typer.Option(help="records of an answer (expected, for poisson); default: all n")]
Sampling = Annotated[Scheme, typer.Option(help="full; once: disjoint batches; the others: a secret sample each round")]
Calibrated = Annotated[Calibration, typer.Option(help="exact accountant, or the formula that the paper prints")]
AsJson = Annotated[bool, typer.Option("--json", help="print JSON on standard output and nothing else")]


@app.command()
def sigma(
    n: Records, epsilon: Epsilon, rounds: Rounds = 1, delta: Delta = None, clip: Clip = 1.0, batch: Batch = None,
    sampling: Sampling = Scheme.full, calibration: Calibrated = Calibration.exact, as_json: AsJson = False,
) -> None:  # fmt: skip
    """The noise that keeps `rounds` answers to an epsilon."""
    setting = _setting(n, rounds, delta, clip, batch, sampling)
    found = setting.sigma(epsilon) if calibration is Calibration.exact else setting.paper.sigma(epsilon)
    _show(setting, calibration, found, epsilon, as_json)


@app.command()
def epsilon(
    n: Records, sigma: Sigma, rounds: Rounds = 1, delta: Delta = None, clip: Clip = 1.0, batch: Batch = None,
    sampling: Sampling = Scheme.full, as_json: AsJson = False,
) -> None:  # fmt: skip
    """What this noise really spends, and what the paper's formula would claim."""
    _show(_setting(n, rounds, delta, clip, batch, sampling), None, _positive("sigma", sigma), None, as_json)


@app.command()
def rounds(
    n: Records, epsilon: Epsilon, sigma: Sigma, delta: Delta = None, clip: Clip = 1.0, batch: Batch = None,
    sampling: Sampling = Scheme.full, as_json: AsJson = False,
) -> None:  # fmt: skip
    """How many answers keep to an epsilon with this noise."""
    from dataclasses import replace

    setting = _setting(n, 1, delta, clip, batch, sampling)
    found = setting.rounds_for(_positive("epsilon", epsilon), _positive("sigma", sigma))
    if found == 0:
        from fedcore.errors import InputError

        spent = setting.epsilon(sigma)
        raise InputError(f"not one round keeps to epsilon = {epsilon:g} with sigma = {sigma:g}: it spends {spent:.4g}")
    _show(replace(setting, rounds=found), None, sigma, epsilon, as_json)


def _positive(name: str, value: float) -> float:
    from fedcore.errors import InputError

    if not 0 < value < math.inf:
        raise InputError(f"{name} = {value:g} must be a positive number")
    return value


def _setting(n: int, rounds: int, delta: float | None, clip: float, batch: int | None, sampling: Scheme) -> Any:
    from fedcore.privacy.setting import Setting

    return Setting(n, rounds, delta if delta is not None else 1 / max(n, 1) ** 2, batch, clip, sampling.value)


def _show(setting: Any, calibration: Calibration | None, sigma: float, target: float | None, as_json: bool) -> None:
    accounted, claimed = setting.epsilon(sigma), setting.paper.epsilon(sigma)
    values = {
        "n": setting.n, "rounds": setting.rounds, "batch": setting.size, "sampling": setting.sampling,
        "adjacency": "replace-one", "clip": setting.clip, "delta": setting.delta,
        **({} if calibration is None else {"calibration": calibration.value}),
        "sigma": sigma, "epsilon_target": target,
        "epsilon_accounted": accounted if math.isfinite(accounted) else None, "epsilon_paper": claimed,
    }  # fmt: skip
    if as_json:
        print(json.dumps(values, indent=2))
        return
    out = Console(highlight=False)
    out.print(f"sigma {sigma:.6g} per coordinate of the mean, {setting.rounds} rounds, delta {setting.delta:.3g}")
    out.print(f"epsilon: target {_number(target)}, accounted {_number(accounted)}, paper {_number(claimed)}")


def _number(value: float | None) -> str:
    return "none" if value is None or not math.isfinite(value) else f"{value:.6g}"
