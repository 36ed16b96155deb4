"""Texts on the page of a run's flow run: tags, a log line per phase, the artifact of the result."""

from __future__ import annotations

from fedcore.directed_rounding import shown_down, shown_up
from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.identity import run_id
from fedcore.experiment.result import RunResult, shortfall
from fedcore.planning.plan import Plan
from fedcore.printable import in_markdown
from flows.driver.session import Session
from flows.pages.links import artifact_key, run_page


def flow_tags(config: ExperimentConfig, sweep: str | None, run: str | None = None) -> list[str]:
    """Tags for searching a flow run: run, method, seed, budget, sweep. `run`: its id, if a former one."""
    tags = [f"run:{run or run_id(config)}", config.algorithm.name, f"seed:{config.seed}"]
    level = config.privacy.level
    tags += ["no-privacy"] if level == "no privacy" else [part.replace(" ", ":") for part in level.split(", ")]
    return tags if sweep is None else [*tags, f"sweep:{sweep}"]


def outcome(session: Session, result: RunResult) -> tuple[str, str]:
    """Key and text of the artifact with the result and a link to the run in MLflow."""
    in_mlflow = session.mlflow_address(result.run, timeout=30.0)
    error = "" if result.error is None else f"{result.measure} {result.error:.4g}, "
    spent, delta = result.epsilon_accounted, shown_up(result.delta, 3)
    privacy = "NO PRIVACY" if spent is None else f"accounted epsilon {shown_up(spent)} at delta {delta}"
    if result.epsilon_whole_silo is not None:
        whole, at = shown_up(result.epsilon_whole_silo), shown_up(result.delta_whole_silo, 3)
        privacy += f", for a whole silo {whole} at delta {at}"
    if result.epsilon_shuffled is not None:
        privacy += f" (of shuffled batches {shown_up(result.epsilon_shuffled)})"
    text = f"{result.run}: {error}{privacy}, {result.rounds} rounds."
    if (short := shortfall(result)) is not None:
        text += f" The model is {short}."
    text = in_markdown(text)
    if in_mlflow is not None:
        text += f" [Run in MLflow]({run_page(session.pages, in_mlflow)})"
    return artifact_key("result", result.run), text


def phase_line(plan: Plan, index: int, round: int) -> str:
    """Log line for the start of a phase, or for its resumption from a later round."""
    phase = plan.phases[index - 1]
    rounds = f"{phase.rounds} rounds" + (f", from round {round}" if round > 1 else "")
    noise = f"sigma {shown_down(phase.sigma)}, epsilon {shown_up(phase.epsilon_accounted)}"
    noise = noise if plan.problem.budget.private else "no noise"
    return f"phase {index} of {len(plan.phases)}: {rounds}, n {phase.n} at the smallest silo, {noise}"
