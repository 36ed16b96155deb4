"""`fedcore privacy sigma | epsilon | rounds`: noise, epsilon and rounds, each from the other two. Touches no data.

`fedcore privacy papers`: the published formulas that `sigma --calibration NAME` can use.
"""

from __future__ import annotations

import enum
import json
import math
from dataclasses import dataclass, replace
from typing import Annotated, Any

import typer

from fedcore.directed_rounding import in_full, shown_up
from flows.commands.arguments import errors
from flows.commands.typed_numbers import real, whole
from flows.terminal.console import Terminal

app = typer.Typer(
    name="privacy",
    no_args_is_help=True,
    help="How much noise a guarantee needs, what a noise spends, how many rounds it lasts: for one silo of n records "
    "that answers with noised means of clipped gradients. Adjacency: one record replaced.",
)


class Scheme(enum.StrEnum):
    """Which records an answer is about."""

    full = "full"
    once = "once"
    poisson = "poisson"
    without_replacement = "without-replacement"
    with_replacement = "with-replacement"


Records = Annotated[
    int, typer.Option("--n", help="records of the silo (of the phase, for a localized method)", **whole())
]
Rounds = Annotated[int, typer.Option(help="answers that the silo gives at most", **whole())]
Epsilon = Annotated[float, typer.Option(help="target for the whole run", **real())]
Sigma = Annotated[
    float, typer.Option(help="standard deviation per coordinate of the noise on the mean gradient", **real())
]
Delta = Annotated[float | None, typer.Option(help="default: 1/n^2", **real())]
Clip = Annotated[float, typer.Option(help="clipping bound on each record's gradient", **real())]
Batch = Annotated[
    int | None, typer.Option(help="records of an answer (expected, for poisson); default: all n", **whole())
]
Sampling = Annotated[Scheme, typer.Option(help="full; once: disjoint batches; the others: a secret sample each round")]
Calibrated = Annotated[str, typer.Option(help="exact, paper (of the main method), or a name that `papers` lists")]
LocalSteps = Annotated[
    int, typer.Option(help="noised gradients of a round (K; tau of dp-fcrn), each an answer", **whole())
]
Period = Annotated[
    int, typer.Option(help="named formulas: rounds from one restart of DIFF2 to the next (T)", **whole())
]
Silos = Annotated[int, typer.Option(help="silos in all (M of noble-2022, P of diff2-bvr)", **whole())]
Picked = Annotated[
    int | None, typer.Option(help="silos drawn in a round; adds epsilon under honest silo sampling", **whole())
]
Beside = Annotated[str | None, typer.Option("--paper", help="a formula that `papers` lists, shown beside by its name")]
Kept = Annotated[float, typer.Option(help="named formulas: share k/d of the coordinates that DP-FCRN sends", **real())]
StepDelta = Annotated[float | None, typer.Option(help="named formulas: delta_0 of DP-FCRN; default: delta", **real())]
AsJson = Annotated[bool, typer.Option("--json", help="print JSON on standard output and nothing else")]


@app.command()
def sigma(
    n: Records, epsilon: Epsilon, rounds: Rounds = 1, delta: Delta = None, clip: Clip = 1.0, batch: Batch = None,
    sampling: Sampling = Scheme.full, calibration: Calibrated = "exact", local_steps: LocalSteps = 1,
    period: Period = 1, silos: Silos = 1, silos_per_round: Picked = None, kept: Kept = 1.0,
    step_delta: StepDelta = None, paper: Beside = None, as_json: AsJson = False,
) -> None:  # fmt: skip
    """The noise that keeps `rounds` answers to an epsilon, or that a paper's formula gives for it.

    Accounted is what this noise really spends, at one silo that is asked in every round and watched by the server.
    """
    from fedcore.accounting.noise_search import noise_kept_in
    from fedcore.errors import InputError
    from fedcore.noise_cache import NoiseFolder

    setting = _setting(n, rounds, delta, clip, batch, sampling)
    question = setting.question(
        local_steps=local_steps, period=period, silos=silos, silos_per_round=silos_per_round, kept=kept,
        step_delta=step_delta,
    )  # fmt: skip
    if calibration not in ("exact", "paper"):
        _show_published(setting, calibration, question, epsilon, as_json, paper)
        return
    used = {"local_steps"} if calibration == "exact" else set()
    if silos_per_round is not None or paper is not None:
        used |= {"silos", "silos_per_round"}
    for option in question.options():
        if option not in used:
            raise InputError(f"{option} is an input of named formulas only, not of {calibration}")
    setting = _setting(n, rounds, delta, clip, batch, sampling, local_steps)
    with noise_kept_in(NoiseFolder.current()):
        found = setting.sigma(epsilon) if calibration == "exact" else setting.paper.sigma(epsilon)
    _show(setting, found, epsilon, as_json, {"calibration": calibration}, beside=_Beside(question, paper))


@app.command()
def epsilon(
    n: Records, sigma: Sigma, rounds: Rounds = 1, delta: Delta = None, clip: Clip = 1.0, batch: Batch = None,
    sampling: Sampling = Scheme.full, local_steps: LocalSteps = 1, silos: Silos = 1, silos_per_round: Picked = None,
    paper: Beside = None, as_json: AsJson = False,
) -> None:  # fmt: skip
    """What this noise really spends, and what the paper's formula would claim.

    Accounted is for a silo that answers in every round; under honest silo sampling, for one that is drawn as the server
    says.
    """
    setting = _setting(n, rounds, delta, clip, batch, sampling, local_steps)
    question = setting.question(local_steps=local_steps, silos=silos, silos_per_round=silos_per_round)
    _show(setting, _positive("sigma", sigma), None, as_json, beside=_Beside(question, paper), given=True)


@app.command()
def rounds(
    n: Records, epsilon: Epsilon, sigma: Sigma, delta: Delta = None, clip: Clip = 1.0, batch: Batch = None,
    sampling: Sampling = Scheme.full, local_steps: LocalSteps = 1, silos: Silos = 1, silos_per_round: Picked = None,
    paper: Beside = None, as_json: AsJson = False,
) -> None:  # fmt: skip
    """How many rounds keep to an epsilon with this noise, at a silo that answers in every one of them."""
    setting = _setting(n, 1, delta, clip, batch, sampling, local_steps)
    question = setting.question(local_steps=local_steps, silos=silos, silos_per_round=silos_per_round)
    found = setting.rounds_for(_positive("epsilon", epsilon), _positive("sigma", sigma))
    if found == 0:
        from fedcore.errors import InputError

        spent = setting.epsilon(sigma)
        too_little = f"not one round keeps to epsilon = {in_full(epsilon)} with sigma = {in_full(sigma)}"
        raise InputError(f"{too_little}: it spends {shown_up(spent)}")
    beside = _Beside(replace(question, rounds=found), paper)
    more = beside.rounds(epsilon, sigma)
    _show(replace(setting, rounds=found), sigma, epsilon, as_json, more, beside=beside, given=True)


@app.command()
def papers(as_json: AsJson = False) -> None:
    """The published formulas by name: method, source, formula and the limits stated for it."""
    from dataclasses import asdict

    from fedcore.accounting.published.papers import PAPERS

    rows = [asdict(paper) for paper in PAPERS.values()]
    for row in rows:
        del row["build"]
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    from rich.table import Table

    # Two columns, not five: a formula is of no use when its end is cut off at the width of a terminal.
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

    if n >= 1 and (said := refusal(delta, n, "--delta")) is not None:
        raise InputError(said)
    small = delta if delta is not None else 1 / max(n, 1) ** 2
    return Setting(n, rounds, small, batch, clip, sampling.value, local_steps)


def _warn(setting: Any) -> list[str]:
    """Says on standard error where delta is large, as `plan` does."""
    from fedcore.accounting.tiny_silos import warning

    fixed = None if setting.delta == 1 / setting.n**2 else setting.delta
    said = warning({"this silo": setting.n}, fixed, "records", "--delta")
    if said is None:
        return []
    errors.print(f"warning: {said}.", style="yellow", highlight=False, markup=False, soft_wrap=True)
    return [said]


@dataclass(frozen=True)
class _Beside:
    """What was asked for beside the accounted epsilon: a draw of silos (in `question`), a published formula by name."""

    question: Any
    paper: str | None

    def epsilons(self, setting: Any, sigma: float) -> dict[str, Any]:
        from fedcore.accounting.published.epsilons import claims

        found: dict[str, Any] = {}
        if self.question.silos_per_round is not None:
            honest = setting.honest_sampling(sigma, self.question.picked / self.question.silos)
            found["epsilon_honest_sampling"] = honest if math.isfinite(honest) else None
        if self.paper is not None:
            found["epsilon_papers"] = claims(self.paper, self.question, sigma)
        return found

    def rounds(self, epsilon: float, sigma: float) -> dict[str, Any]:
        from fedcore.accounting.published.epsilons import largest_rounds

        if self.paper is None:
            return {}
        return {"rounds_papers": largest_rounds(self.paper, self.question, epsilon, sigma)}


def _show_published(setting: Any, name: str, question: Any, target: float, as_json: bool, paper: str | None) -> None:
    from fedcore.accounting.composition import spent
    from fedcore.accounting.published.papers import published

    formula = published(name, question)
    sigmas = formula.sigmas(target)
    first = formula.sigma(target)
    epsilons = spent(formula.releases(target), setting.delta), formula.epsilon(first)
    more = {"calibration": name, "source": formula.source, "sigmas": sigmas}
    beside = None
    if paper is not None:  # silos that are drawn are an input of DP-SCAFFOLD's formulas only: K answers a round
        setting = replace(setting, local_steps=question.local_steps)
        beside = _Beside(question, paper)
    _show(setting, first, target, as_json, more, epsilons, beside)


def _show(
    setting: Any, sigma: float, target: float | None, as_json: bool, more: dict[str, Any] | None = None,
    epsilons: tuple[float, float] | None = None, beside: _Beside | None = None, given: bool = False,
) -> None:  # fmt: skip
    """`given`: sigma is what a person typed, and is shown so; else it is to be applied."""
    shown = beside.epsilons(setting, sigma) if beside is not None else {}
    if epsilons is None:
        published = shown["epsilon_papers"][beside.paper] if beside and beside.paper else setting.paper.epsilon(sigma)
        epsilons = setting.epsilon(sigma), published
    accounted, claimed = epsilons
    values = {
        "n": setting.n, "rounds": setting.rounds, "batch": setting.size, "sampling": setting.sampling,
        "adjacency": "replace-one", "clip": setting.clip, "delta": setting.delta, **(more or {}),
        "sigma": sigma, "epsilon_target": target,
        "epsilon_accounted": accounted if math.isfinite(accounted) else None, "epsilon_paper": claimed,
    }  # fmt: skip
    if setting.local_steps > 1:
        values["local_steps"] = setting.local_steps
    values |= shown
    if warned := _warn(setting):
        values["warnings"] = warned
    if as_json:
        print(json.dumps(values, indent=2))
        return
    out = Terminal(highlight=False)
    typed = setting.delta != 1 / setting.n**2
    steps = f" of {setting.local_steps} local steps" if setting.local_steps > 1 else ""
    out.print(
        f"sigma {in_full(sigma) if given else shown_up(sigma, 6)} per coordinate of the mean, {setting.rounds} "
        f"rounds{steps}, delta {in_full(setting.delta) if typed else shown_up(setting.delta, 3)}"
    )
    if len(values.get("sigmas", {})) > 1:
        kinds = ", ".join(f"{kind} {shown_up(value, 6)}" for kind, value in values["sigmas"].items())
        out.print(f"by kind of answer: {kinds}")
    asked = "none" if target is None else in_full(target)
    out.print(f"epsilon: target {asked}, accounted {_number(accounted)}, paper {_number(claimed)}")
    if "epsilon_honest_sampling" in values:
        drawn = _number(values["epsilon_honest_sampling"])
        out.print(f"epsilon under honest silo sampling, on average before it is drawn: {drawn}")
    for key, what, said in (("epsilon_papers", "epsilon", _number), ("rounds_papers", "rounds", str)):
        if key in values:
            out.print(f"{what} by " + ", ".join(f"{name} {said(value)}" for name, value in values[key].items()))


def _number(value: float | None) -> str:
    return "none" if value is None or not math.isfinite(value) else shown_up(value, 6)
