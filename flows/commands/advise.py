"""`advise`: a method and a config to start from, by public facts and what methods came to on other silos."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flows.commands.arguments import AsJson, Config, Overrides, check_output, config_text, console, write_output

if TYPE_CHECKING:
    from fedcore.advice.advice import Advice
    from fedcore.advice.table import Facts
    from fedcore.experiment.config import ExperimentConfig

_BEYOND = 1.5  # times the noise of the rows, from which on an advice is called extrapolated
_SHOWN = 3  # rows of the table behind an advice
_LOSS = {True: "logistic", False: "squared"}  # of the convex rows of the table, and of those of networks


def advise(
    config: Config,
    overrides: Overrides = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="communication rounds that one can afford")] = None,
    floats: Annotated[float | None, typer.Option(min=1, help="numbers that all silos can send in a run")] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="where the config with the method goes")] = None,
    as_json: AsJson = False,
) -> None:
    """Say which method to start with, by sizes, width, epsilon and what one can afford. Asks no silo, reads no record.
    """
    from fedcore.advice.advice import applied
    from fedcore.advice.table import Facts
    from fedcore.configfile import read_yaml
    from fedcore.experiment.loading import load_experiment
    from flows.reproductions.table_file import read_table

    experiment = load_experiment(config, overrides or [])
    if output is not None:
        check_output(output)
    advice, made = applied(experiment, read_table(), rounds, floats)
    said = sentences(experiment, advice)
    if output is not None:  # before anything is printed, which a reader may cut short
        write_output(output, written(read_yaml(config, overrides or []), advice, said))
    if as_json:
        print(json.dumps(_as_json(Facts.of(experiment), advice, made), indent=2))
        return
    for sentence in said:
        console.print(sentence, highlight=False, markup=False)
    if output is not None:
        kept = "" if rounds is None and floats is None else _same_rounds(made)
        console.print(
            f"written to {output}; next: `fedcore tune {output}{kept} -o tuned.yaml`", highlight=False, soft_wrap=True
        )


def _same_rounds(made: ExperimentConfig) -> str:
    """What holds `tune` to the rounds that one can afford."""
    rounds = made.model_dump(mode="json")["algorithm"].get("rounds")
    return f" --grid 'algorithm.rounds=[{json.dumps(rounds)}]'"


def sentences(config: ExperimentConfig, advice: Advice) -> list[str]:
    """The advice, its reason, and the rows of the table behind it."""
    from fedcore.advice.advice import TIED
    from fedcore.advice.table import Facts

    facts = Facts.of(config)
    kind = "convex" if facts.convex else "not convex"
    every = "all in every round" if facts.all_silos else f"{facts.per_round:g} in a round"
    others = ", ".join(f"{name} {above:.3f}" for name, above in list(advice.others.items())[:3])
    reason = "the least mean error where noise was like this, of the methods that apply and can be afforded"
    if advice.tied >= TIED:
        reason = (
            "the simplest method that was lowest, or not significantly above the lowest, nearly everywhere where noise "
            f"was like this ({advice.tied:.0%} of the rows by weight)"
        )
    said = [
        f"{facts.silos} silos, {every}, {facts.records} records at the smallest, {facts.weights} weights, {kind}, "
        f"epsilon {facts.epsilon:g}: noise {facts.noise:.3g}",
        f"start with {advice.method}: {reason}; its error was {advice.above:.3f} above the lowest in the mean"
        f"{f'; others: {others}' if others else ''}",
    ]
    for row, weight in advice.rows[:_SHOWN]:
        least = sorted(row.errors.items(), key=lambda each: each[1])
        errors = ", ".join(f"{name} {error:.3g}" for name, error in least[:4])
        tied = f"; {len(row.tied)} methods are not told apart" if len(row.tied) > 1 else ""
        said.append(
            f"  {row.figure} at epsilon {row.facts.epsilon:g} (noise {row.facts.noise:.3g}, weight {weight:.2f}): "
            f"{row.measure} {errors}{tied}"
        )
    noises = [row.facts.noise for row, _ in advice.rows]
    if not min(noises) / _BEYOND <= facts.noise <= max(noises) * _BEYOND:
        said.append(
            f"extrapolated: noise is {facts.noise:.3g} here, and {min(noises):.3g} to {max(noises):.3g} in these rows"
        )
    loss = config.model.loss.name
    if loss != _LOSS[facts.convex]:
        said.append(
            f"rows are of the {_LOSS[facts.convex]} loss{'' if facts.convex else ', for real labels'}: of {loss} steps "
            "and smoothness are others, choose them by `fedcore tune`"
        )
    return said


def written(values: dict[str, Any], advice: Advice, said: list[str]) -> str:
    """The values of a config with the advised method, and the advice as a comment above them."""
    import textwrap

    for section, settings in advice.settings.items():
        values[section] = settings if section == "algorithm" else {**(values.get(section) or {}), **settings}
    return config_text(values, [line for sentence in said for line in textwrap.wrap(sentence, 110)])


def _as_json(facts: Facts, advice: Advice, made: ExperimentConfig) -> dict[str, Any]:
    return {
        "facts": facts.model_dump() | {"noise": facts.noise}, "method": advice.method,
        "above": advice.above, "tied": advice.tied, "others": dict(advice.others),
        "rows": [
            {"figure": row.figure, "epsilon": row.facts.epsilon, "weight": weight, "errors": dict(row.errors),
             "tied": list(row.tied)}
            for row, weight in advice.rows
        ],
        "config": made.model_dump(mode="json"),
    }  # fmt: skip
