"""`advise`: a method and a config to start from, by public facts and errors on other silos."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedcore.directed_rounding import in_full, shown_up
from flows.commands.arguments import AsJson, Config, Overrides, check_output, config_text, console, write_output
from flows.commands.typed_numbers import real, whole

if TYPE_CHECKING:
    from fedcore.advice.advice import Advice
    from fedcore.advice.table import Row
    from fedcore.experiment.config import ExperimentConfig

_SHOWN = 3  # rows of the table behind an advice


def advise(
    config: Config,
    overrides: Overrides = None,
    rounds: Annotated[int | None, typer.Option(help="affordable communication rounds", **whole(1))] = None,
    floats: Annotated[
        float | None, typer.Option(help="affordable numbers sent by all silos, in total", **real(1))
    ] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="where the config with the method goes")] = None,
    as_json: AsJson = False,
) -> None:
    """Recommend a first method by sizes, width, epsilon and affordable communication. Asks no silo, reads no record."""
    from fedcore.advice.advice import applied
    from fedcore.advice.shipped import advice_rows
    from fedcore.configfile.reading import read_yaml
    from fedcore.experiment.loading import load_experiment

    experiment = load_experiment(config, overrides or [])
    if output is not None:
        check_output(output, config)
    advice, made = applied(experiment, advice_rows(), rounds, floats)
    advised = sentences(experiment, advice)
    if output is not None:  # first, because a reader may close standard output
        write_output(output, written(read_yaml(config, overrides or []), advice, advised))
    if as_json:
        print(json.dumps(_as_json(advice, made), indent=2))
        return
    for sentence in advised:
        console.print(sentence, highlight=False, markup=False)
    if output is not None:
        limit = _same_rounds(made) if advice.limited else ""
        console.print(
            f"written to {output}; next: `fedcore tune {output}{limit} -o tuned.yaml`", highlight=False, soft_wrap=True
        )


def _same_rounds(made: ExperimentConfig) -> str:
    """Option that limits `tune` to the affordable rounds."""
    rounds = made.model_dump(mode="json")["algorithm"].get("rounds")
    return f" --grid 'algorithm.rounds=[{json.dumps(rounds)}]'"


def sentences(config: ExperimentConfig, advice: Advice) -> list[str]:
    """The advice, its reason, and the rows of the table behind it."""
    from fedcore.advice.advice import HOPELESS, REACH, TIED
    from fedcore.advice.table import LOSS

    facts = advice.facts
    kind = "convex" if facts.convex else "not convex"
    every = "all in every round" if facts.all_silos else f"{facts.per_round:g} in a round"
    rows = "the rows that keep to the limits" if advice.limited else "the rows"
    reason = (
        f"no method was lowest, or tied with the lowest (no significant difference), in {TIED:.0%} (by weight) of "
        f"{rows}; this one has the lowest mean"
    )
    if advice.tied >= TIED:
        reason = (
            "the simplest method that was lowest, or tied with the lowest (no significant difference), nearly "
            f"everywhere where noise was like this ({advice.tied:.0%}, by weight, of {rows})"
        )
    lines = [
        f"{facts.silos} silos, {every}, effectively {facts.records:,.0f} records in each, {facts.weights} weights, "
        f"{kind}, epsilon {in_full(facts.epsilon)}: noise {shown_up(facts.noise, 3)}",
        f"start with {advice.method}: {reason}",
        _above_the_lowest(advice),
        *[f"  {_row(row, weight, advice)}" for row, weight in advice.rows[:_SHOWN]],
    ]
    if advice.away > REACH:
        lines.append(
            f"no row behind it has noise near {shown_up(facts.noise, 3)}; the nearest has "
            f"{shown_up(advice.nearest_noise, 3)}"
        )
    if facts.noise > HOPELESS:
        lines.append(f"above {HOPELESS} no method does much better than answering the most frequent class")
    loss = config.model.loss.name
    if loss != LOSS[facts.convex]:
        lines.append(
            f"rows are of the {LOSS[facts.convex]} loss: for {loss} choose steps, clipping bounds and smoothness by "
            "`fedcore tune`"
        )
    if not facts.convex:
        lines.append("rows are of a generated regression: compare with a linear model (model.hidden: null)")
    return lines


def _above_the_lowest(advice: Advice) -> str:
    """Mean error above each row's lowest, of the advised method and of three others."""
    from fedcore.advice.advice import TIED

    measures = list(dict.fromkeys(row.measure for row, _ in advice.rows))
    mixed = f" (of {' and '.join(measures)} together, each in its own units)" if len(measures) > 1 else ""
    others = list(advice.others.items())[:3]
    sentence = f"mean error above the lowest of each row{mixed}: {advice.method} {advice.above:.2g}"
    if others:
        sentence += f"; others: {', '.join(f'{name} {above:.2g}' for name, above in others)}"
    lower = [name for name, above in others if above < advice.above]
    if lower and advice.tied >= TIED:
        sentence += f"; {', '.join(lower)} lower in the mean, but seldom significantly"
    return sentence


def _row(row: Row, weight: float, advice: Advice) -> str:
    """The advised method's error in a row, compared with the row's lowest error."""
    from fedcore.advice.advice import BEYOND

    method = advice.method
    lowest = min(row.errors, key=lambda each: row.errors[each])
    text = (
        f"{row.figure} at epsilon {in_full(row.facts.epsilon)} (noise {shown_up(row.facts.noise, 3)}, weight "
        f"{weight:.2f}): {row.measure} {row.errors[method]:.3g} in {row.rounds[method]} rounds, "
    )
    if lowest == method:
        ties = len(row.tied) - 1
        return f"{text}the lowest{f', tied with {ties} more' if ties else ''}"
    how = "tied with" if method in row.tied else "significantly above"
    within = row.affordable(lowest, advice.facts, advice.rounds, advice.floats)
    why = advice.left_out.get(lowest, "" if within else BEYOND)
    return f"{text}{how} the lowest, {row.errors[lowest]:.3g} in {row.rounds[lowest]} ({lowest}{why and f', {why}'})"


def written(values: dict[str, Any], advice: Advice, comment: list[str]) -> str:
    """Text of a config with the advised method, below the advice as a comment."""
    import textwrap

    for section, settings in advice.settings.items():
        values[section] = settings if section == "algorithm" else {**(values.get(section) or {}), **settings}
    return config_text(values, [line for sentence in comment for line in textwrap.wrap(sentence, 110)])


def _as_json(advice: Advice, made: ExperimentConfig) -> dict[str, Any]:
    return {
        "facts": advice.facts.model_dump() | {"noise": advice.facts.noise},
        "method": advice.method,
        "above": advice.above,
        "tied": advice.tied,
        "others": dict(advice.others),
        "rows": [
            {
                "figure": row.figure,
                "epsilon": row.facts.epsilon,
                "weight": weight,
                "errors": dict(row.errors),
                "tied": list(row.tied),
            }
            for row, weight in advice.rows
        ],
        "config": made.model_dump(mode="json"),
    }
