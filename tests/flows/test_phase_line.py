"""Line of a flow run's log for each phase."""

from __future__ import annotations

import math

from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.experiment import make_plan
from flows.pages.flow_run import phase_line


def plan_of(**keys):
    config = {"data": {"source": "synthetic", "silos": 2, "records": 64}, "privacy": {"epsilon": 2}, **keys}
    return make_plan(ExperimentConfig.model_validate(config))


def test_the_line_has_rounds_noise_and_epsilon_of_the_phase():
    plan = plan_of(algorithm={"name": "localized-mbsgd", "rounds": [3, 2], "max_phases": 2, "lam": 0.1, "step": 1})
    down = (
        math.floor(plan.phases[1].sigma * 1e4) / 1e4
    )  # applied noise, rounded down: an epsilon computed from it is not too small
    assert phase_line(plan, 2, 1) == f"phase 2 of 2: 2 rounds, n 16 at the smallest silo, sigma {down}, epsilon 2"
    assert phase_line(plan, 1, 3).startswith("phase 1 of 2: 3 rounds, from round 3, n 32 at the smallest silo")


def test_the_line_shows_that_there_is_no_noise():
    plan = plan_of(algorithm={"name": "mbsgd", "rounds": 5}, privacy={"trust": "none"})
    assert phase_line(plan, 1, 1) == "phase 1 of 1: 5 rounds, n 64 at the smallest silo, no noise"
