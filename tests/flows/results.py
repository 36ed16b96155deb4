"""Results made by hand; a test sets the fields that it is about."""

from __future__ import annotations

from typing import Any

from fedcore.experiment.result import RunResult

PLAIN = {
    "run": "run-0123456789ab",
    "method": "mbsgd",
    "seed": 0,
    "trust": "inter-silo",
    "epsilon_target": 1.0,
    "epsilon_accounted": 1.0,
    "epsilon_spent": 1.0,
    "epsilon_paper": 30.0,
    "delta": 1e-5,
    "rounds": 2,
    "gradient_evaluations": 1,
    "theorem": None,
    "seconds": 1.0,
    "weights_sha256": "0" * 64,
    "weights_shape": (4,),
    "noise": "seeded",
    "code": "0",
    "test_error": 0.25,
    "silos": (),
}


def made_result(**values: Any) -> RunResult:
    return RunResult.model_validate(PLAIN | values)
