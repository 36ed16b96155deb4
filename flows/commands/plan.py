"""`plan`: every phase with its noise and its epsilon, before a run."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from fedcore.directed_rounding import in_full, shown_down, shown_up
from flows.commands.arguments import AsJson, Config, Overrides, console, number

if TYPE_CHECKING:
    from fedcore.experiment.config import ExperimentConfig
    from fedcore.planning.phase import Phase
    from fedcore.planning.plan import Plan


def plan(config: Config, overrides: Overrides = None, as_json: AsJson = False) -> None:
    """Show every phase, its noise and its epsilon (target, accounted, paper). Reads public sizes and test data only."""
    from fedcore.experiment.experiment import make_plan
    from fedcore.experiment.identity import run_id
    from fedcore.experiment.loading import load_experiment
    from fedcore.experiment.outlook import evaluation_facts, persons_facts, schema_facts, urgent, warnings
    from fedcore.experiment.statistics import make_statistics_plan, plan_as_json
    from fedcore.home import Home
    from fedcore.planning.problem import unit_of
    from flows.commands.noise.phases import claimed, phase_rows, phase_table
    from flows.confirm import large, size_of
    from flows.schedules.adds import admission_lines

    experiment = load_experiment(config, overrides or [])
    made = make_plan(experiment)
    loud = urgent(experiment, made)
    before = make_statistics_plan(experiment)
    values = {"run": run_id(experiment), "method": experiment.algorithm.name, **plan_as_json(made, before)}
    if (described := schema_facts(experiment)) is not None:
        values["schema"] = described
    if (evaluated := evaluation_facts(made)) is not None:
        values["evaluation"] = evaluated
    if (persons := persons_facts(experiment)) is not None:
        values["persons"] = persons
    if admitted := admission_lines(experiment, made):
        values["runs_admitted"] = admitted
    if warned := [*loud, *warnings(experiment, made)]:
        values["warnings"] = warned
    size = size_of(experiment)
    values["size"] = asdict(size) | {"asks": size.large}
    if as_json:
        print(json.dumps(values, indent=2))
        return
    title = f"{values['run']}: {experiment.algorithm.title}"
    curvature = experiment.released_curvature is not None
    released = "eigenvalues" if curvature else "moments"
    first = [] if before is None else [(released, phase) for phase in values["statistics"]["phases"]]
    table = phase_table(title, first + [row for phase in made.phases for row in phase_rows(phase)])
    console.print(table)
    totals = values["totals"]
    console.print(
        f"{totals['silos']} silo{'s' * (totals['silos'] != 1)}, {made.problem.participation.words} of them in a round, "
        f"{totals['rounds']} rounds; "
        f"whole run: epsilon target {in_full(totals['epsilon_target'])}, "
        f"accounted {shown_up(totals['epsilon_accounted'])}, "
        f"paper {claimed(totals['epsilon_paper'], totals['epsilon_target'])}, "
        f"delta at most {shown_up(totals['delta'], 3)} "
        "(n and sigma: smallest silo).",
        highlight=False,
    )
    for phase in made.phases:
        if "period" in phase.settings:
            console.print(_restarts(phase), highlight=False)
        elif (length := _lengths(made, phase)) is not None:
            console.print(length, highlight=False)
    if isinstance(law := totals["participants"], dict):
        console.print(
            f"participation: the number of silos in a round is drawn, {law['expected']:.5g} are expected; theorems "
            f"take its harmonic mean M = {law['M']:.5g} (M' = {law['M_prime']:.5g}), noise is for a silo that is asked "
            "in every round.",
            highlight=False,
        )
    if "epsilon_whole_silo" in totals:
        console.print(_whole_silo(made, totals), highlight=False)
    if persons is not None:
        console.print(
            f"unit: {unit_of(experiment.person)}, each with all of its rows; n, batches and delta count persons. Of a "
            f"person the first {persons['rows']} rows count, one over their number each (data.person_rows).",
            highlight=False,
            markup=False,
        )
    if described is not None:
        console.print(
            f"schema: {described['columns']} columns make {described['features']} features; a record's norm is at most "
            f"{described['longest']:.4g} with its bias, and all are scaled by {described['scale']:.4g}.",
            highlight=False,
        )
    if evaluated is not None:
        many = "" if evaluated["evaluations"] == 1 else f", {evaluated['evaluations']} times"
        console.print(
            f"evaluation: silos hold out {evaluated['records']:,} {totals['unit']}, which no training is about, and "
            f"release how the model does on them{many}; an error of 0.2 will be known to plus or minus "
            f"{shown_up(evaluated['half_width'], 2)} (95 percent).",
            highlight=False,
        )
    for line in admitted:
        console.print(line, highlight=False, markup=False)
    training = totals.get("epsilon_training", totals["epsilon_accounted"])
    if "epsilon_shuffled" in totals:
        console.print(_of_shuffler(totals), highlight=False)
    elif made.problem.budget.calibration != "exact" and training > (target := totals["epsilon_target"] or math.inf):
        console.print(
            "accounted is above the target: the paper's formula asks for too little noise for epsilon "
            f"{in_full(target)}.",
            highlight=False,
        )
    if (drawn := totals.get("epsilon_honest_sampling")) is not None:
        console.print(
            f"epsilon under honest silo sampling {shown_up(drawn)}: on average over who takes part, before it is "
            "drawn; a silo that is drawn more often spends more, and nothing relies on it.",
            highlight=False,
        )
    for name, epsilon in totals.get("epsilon_papers", {}).items():
        console.print(
            f"{name} claims {shown_up(epsilon)} for this noise: to compare, nothing relies on it.", highlight=False
        )
    if (theorem := totals["theorem"]) is not None:
        console.print(
            f"{totals['rounds']:,} rounds and {totals['gradient_evaluations']:,.0f} gradients of records are planned; "
            f"{theorem['source']}, names {theorem['rounds']:,.0f} and {theorem['gradient_evaluations']:,.0f}, but for "
            "constants and logarithms.",
            highlight=False,
        )
    if before is not None:
        console.print(
            f"{released}: before training each silo releases {before.problem.objective.dim:,} "
            f"number{'s' * (not curvature)}, once for all runs that share them, at epsilon "
            f"{shown_up(totals['epsilon_statistics'])}; training spends "
            f"{shown_up(totals['epsilon_training'])}, and the whole run's accounted epsilon is both composed. "
            + (_noise_in_curvature(made, before) if curvature else _noise_in_constants(experiment, before)),
            highlight=False,
        )
    if (sentence := large(Home.current(), [experiment])) is not None:
        console.print(f"this would take {sentence}. `fedcore run` asks for --yes before it begins.", highlight=False)
    for sentence in warned:
        console.print(f"warning: {sentence}.", style="yellow", highlight=False, markup=False)


def _restarts(phase: Phase) -> str:
    """Division of DIFF2's rounds and budget into restarts and differences, beside the paper's."""
    settings = phase.settings
    rounds = "one restart" if settings["period"] >= phase.rounds else f"a restart every {settings['period']} rounds"
    text = f"{rounds} of all silos" + (f", with {settings['split']:.3g} of their budget" if "split" in settings else "")
    if "paper_period" in settings:
        text += f" (the paper: every {settings['paper_period']}, without its constant, with 0.8)"
    unit = "; sigma and clip of differences are per unit of a step's length" if phase.parts else ""
    longest, step = settings["longest_step"], settings["step"]
    return f"{text}{unit}. Steps are within the theorem up to {longest:.3g}; algorithm.step is {step:g}."


def _lengths(made: Plan, phase: Phase) -> str | None:
    """Sentence on the length of silos' messages; None if they are as long as the model."""
    from fedcore.arrays import FLOAT_BYTES

    found = {kind.question.sent(made.problem.objective.dim) for kind in phase.kinds}
    if found == {made.problem.objective.dim}:
        return None
    sent = " or ".join(f"{numbers:,}" for numbers in sorted(found))
    size = " or ".join(f"{FLOAT_BYTES * numbers:,}" for numbers in sorted(found))
    inner = f", made of {phase.schedule.answers} noised answers" if phase.schedule.answers > 1 else ""
    back = f"and receives the model's {made.problem.objective.dim:,}"
    return f"a silo sends {sent} numbers ({size} bytes) in a round{inner}, {back}."


def _whole_silo(made: Plan, totals: dict[str, Any]) -> str:
    """Sentences on the whole-silo guarantee, and on the record-level one of group privacy."""
    from fedcore.accounting.whole_silo import group_privacy

    largest = max(silo.n for silo in made.problem.silos)
    target, delta = totals["epsilon_whole_silo_target"], totals["delta_whole_silo"]
    epsilon_0, delta_0 = group_privacy(target, delta, largest)
    accounted = shown_up(totals["epsilon_whole_silo"])
    return (
        f"whole silo, all of its {totals['unit']} replaced: epsilon target {in_full(target)}, accounted "
        f"{accounted}, delta {shown_up(delta, 3)}. Group privacy would ask for epsilon "
        f"{shown_down(epsilon_0, 3)} and delta {shown_down(delta_0, 3)} for each of {largest:,}: to compare, nothing "
        "relies on it."
    )


def _noise_in_curvature(plan: Plan, statistics: Plan) -> str:
    """Sentence on the curvature before its release; sigma and epsilon do not depend on it."""
    from scipy.special import ndtri

    from fedcore.experiment.released.noise import outlook
    from fedcore.planning.curvature import COVERED
    from fedcore.planning.questions.statistics import record_bound_of

    noise, bound = outlook(statistics)["eigenvalue_noise"], record_bound_of(statistics.phases[0].question)
    worst = plan.problem.objective.smoothness
    return (
        f"Until then this plan takes the worst case, smoothness {number(worst)}; noise will add "
        f"about {number(worst * ndtri(COVERED) * noise / bound**2)} to the released value."
    )


def _of_shuffler(totals: dict[str, Any]) -> str:
    """Sentences on the epsilon of shuffled batches, and on the noise that a shuffler saves."""
    text = (
        f"epsilon of shuffled batches {shown_up(totals['epsilon_shuffled'])}: towards who sees no message of a round "
        f"but in batches of at least {totals['shuffler_minimum']} that a shuffler permuted. Ledgers charge the "
        "accounted one."
    )
    if totals["noise_from"] == "shuffler":
        times = shown_up(totals["noise_without_shuffler"], 3)
        return f"{text} Without a shuffler the target takes {times} times the noise."
    if totals["noise_from"] == "local":
        return f"{text} The noise is that of the target without a shuffler: with one the accountant finds no smaller."
    return text


def _noise_in_constants(config: ExperimentConfig, statistics: Plan) -> str:
    """Sentences on the errors that noise will cause in the constants of released statistics."""
    from fedcore.data.constants.scaling import ReleasedScaling
    from fedcore.experiment.released.noise import correlation_noise, outlook
    from fedcore.planning.questions.statistics import record_bound_of

    found, bound = outlook(statistics), record_bound_of(statistics.phases[0].question)
    if not isinstance(config.released, ReleasedScaling):
        return (
            f"Directions of variance below about {number(found['eigenvalue_noise'])} will be noise (images are cut to "
            f"squared norm {number(bound**2)})."
        )
    noise, whiten = found["moment_noise"], config.released.whiten
    off = noise / bound if whiten else noise
    text = (
        f"In halves of a column's range, centres will be off by about {number(off)}, and deviations below about "
        f"{number(math.sqrt(noise))} will depend on all columns in common, not on the column."
    )
    if not whiten:
        return text
    return (
        f"{text} Correlations of columns that fill a third of their ranges will be off by about "
        f"{number(correlation_noise(statistics))}: columns that correlate less than that are hardly whitened."
    )
