"""Output of `fedcore privacy` for a setting: noise, epsilons and selected comparisons."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from typing import Any

from fedcore.directed_rounding import in_full, shown_up
from flows.commands.arguments import errors
from flows.terminal.console import Terminal


@dataclass(frozen=True)
class Compared:
    """Comparisons with the accounted epsilon: drawn silos (in `inputs`), a published formula's name."""

    inputs: Any
    paper: str | None

    def epsilons(self, setting: Any, sigma: float) -> dict[str, Any]:
        from fedcore.accounting.published.epsilons import claims

        found: dict[str, Any] = {}
        if self.inputs.silos_per_round is not None:
            honest = setting.honest_sampling(sigma, self.inputs.picked / self.inputs.silos)
            found["epsilon_honest_sampling"] = honest if math.isfinite(honest) else None
        if self.paper is not None:
            found["epsilon_papers"] = claims(self.paper, self.inputs, sigma)
        return found

    def rounds(self, epsilon: float, sigma: float) -> dict[str, Any]:
        from fedcore.accounting.published.epsilons import largest_rounds

        if self.paper is None:
            return {}
        return {"rounds_papers": largest_rounds(self.paper, self.inputs, epsilon, sigma)}


def show_published(setting: Any, name: str, inputs: Any, target: float, as_json: bool, paper: str | None) -> None:
    from fedcore.accounting.composition import spent
    from fedcore.accounting.published.papers import published

    formula = published(name, inputs)
    sigmas = formula.sigmas(target)
    first = formula.sigma(target)
    epsilons = spent(formula.releases(target), setting.delta), formula.epsilon(first)
    more = {"calibration": name, "source": formula.source, "sigmas": sigmas}
    beside = None
    if paper is not None:  # only DP-SCAFFOLD's formulas take drawn silos, and they count K answers per round
        setting = replace(setting, local_steps=inputs.local_steps)
        beside = Compared(inputs, paper)
    show(setting, first, target, as_json, more, epsilons, beside)


def show(
    setting: Any,
    sigma: float,
    target: float | None,
    as_json: bool,
    more: dict[str, Any] | None = None,
    epsilons: tuple[float, float] | None = None,
    beside: Compared | None = None,
    given: bool = False,
) -> None:
    """Prints a setting with its noise and epsilons. `given`: sigma was typed, and is shown as typed, not rounded up."""
    shown = beside.epsilons(setting, sigma) if beside is not None else {}
    if epsilons is None:
        published = shown["epsilon_papers"][beside.paper] if beside and beside.paper else setting.paper.epsilon(sigma)
        epsilons = setting.epsilon(sigma), published
    accounted, claimed = epsilons
    values = {
        "n": setting.n,
        "rounds": setting.rounds,
        "batch": setting.size,
        "sampling": setting.sampling,
        "adjacency": "replace-one",
        "clip": setting.clip,
        "delta": setting.delta,
        **(more or {}),
        "sigma": sigma,
        "epsilon_target": target,
        "epsilon_accounted": accounted if math.isfinite(accounted) else None,
        "epsilon_paper": claimed,
    }
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
    wanted = "none" if target is None else in_full(target)
    out.print(f"epsilon: target {wanted}, accounted {_number(accounted)}, paper {_number(claimed)}")
    if "epsilon_honest_sampling" in values:
        drawn = _number(values["epsilon_honest_sampling"])
        out.print(f"epsilon under honest silo sampling, on average before it is drawn: {drawn}")
    for key, title, text in (("epsilon_papers", "epsilon", _number), ("rounds_papers", "rounds", str)):
        if key in values:
            out.print(f"{title} by " + ", ".join(f"{name} {text(value)}" for name, value in values[key].items()))


def _number(value: float | None) -> str:
    return "none" if value is None or not math.isfinite(value) else shown_up(value, 6)


def _warn(setting: Any) -> list[str]:
    """Prints `plan`'s warning of a large delta on standard error, and returns it in a list."""
    from fedcore.accounting.tiny_silos import warning

    given = None if setting.delta == 1 / setting.n**2 else setting.delta
    sentence = warning({"this silo": setting.n}, given, "records", "--delta")
    if sentence is None:
        return []
    errors.print(f"warning: {sentence}.", style="yellow", highlight=False, markup=False, soft_wrap=True)
    return [sentence]
