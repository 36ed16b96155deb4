"""The least training loss of all silos' records together: what papers subtract from a method's loss. NOT PRIVATE."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.optimize import minimize

from fedcore.arrays import Vector
from fedcore.data.silo_file import open_records
from fedcore.errors import InputError
from fedcore.experiment import Experiment


def least_training_loss(experiment: Experiment, tolerance: float = 1e-6) -> float:
    """min over w of the mean over silos of their mean losses, without ridge and without the domain's ball (nats).

    By full-batch L-BFGS from the model's start to a gradient norm of `tolerance`; of a network a local minimum. Reads
    every silo's records without noise, so it belongs to `simulation/`. Source: spec dp-scaffold 7.4.
    Raises InputError for guarded silos.
    """
    if experiment.config.privacy.noise == "guarded":
        raise InputError("privacy.noise = guarded: silos show nothing but releases, so nobody knows their least loss")
    model, silos = experiment.model, []
    for source in experiment.dataset.sources:
        records = open_records(source)
        free = model.bounds(records.X, records.y, 1e12)  # clips nothing
        silos.append((records.X, records.y, free))

    def objective(w: Vector) -> tuple[float, Vector]:
        value, slope = 0.0, np.zeros_like(w)
        for X, y, free in silos:
            value += float(np.mean(model.evaluate(w, X, y)[0])) / len(silos)
            slope += model.clipped_gradient_sum(w, X, y, free) / (len(y) * len(silos))
        return value, slope

    options: Any = {"gtol": tolerance, "ftol": 0.0, "maxiter": 5000, "maxfun": 10000}
    return float(minimize(objective, experiment.start(), jac=True, method="L-BFGS-B", options=options).fun)

