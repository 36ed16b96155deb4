"""The least training loss F* of all silos' pooled records, which papers subtract from a method's loss. NOT PRIVATE."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.optimize import minimize

from fedcore.arrays import Vector
from fedcore.data.silo_file import open_records
from fedcore.errors import InputError
from fedcore.experiment.experiment import Experiment


def least_training_loss(experiment: Experiment, tolerance: float = 1e-6) -> float:
    """min over w of the mean loss of all records (nats), as in `simulation/train_loss`, without ridge and domain.

    Each person counts once, by the mean over its rows. Full-batch L-BFGS from the model's start, to partial derivatives
    of `tolerance`; for a network a local minimum. Reads every silo's records without noise, so it belongs to
    `simulation/`. Source: spec dp-scaffold 7.4, for silos of equal sizes.

    Raises InputError for guarded silos, and if no minimum is found: perfectly separable classes have none.
    """
    if experiment.config.privacy.noise == "guarded":
        raise InputError("privacy.noise = guarded: silos show nothing but releases, so nobody knows their least loss")
    model, silos = experiment.model, []
    for source in experiment.dataset.sources:
        records = open_records(source)
        free = model.bounds(records.X, records.y, 1e12)  # clips nothing
        silos.append((records, free))
    total = sum(records.n for records, _ in silos)

    def objective(w: Vector) -> tuple[float, Vector]:
        value, slope = 0.0, np.zeros_like(w)
        for records, free in silos:
            losses, weights = model.evaluate(w, records.X, records.y)[0], records.weights
            value += float(np.sum(losses) if weights is None else weights @ losses) / total
            slope += model.clipped_gradient_sum(w, records.X, records.y, free, weights) / total
        return value, slope

    options: Any = {"gtol": tolerance, "ftol": 0.0, "maxiter": 5000, "maxfun": 10000}
    found = minimize(objective, experiment.start(), jac=True, method="L-BFGS-B", options=options)
    steepest = float(np.abs(found.jac).max())
    if not steepest <= 100.0 * tolerance:
        # Rounding may stop the line search before the tolerance itself.
        raise InputError(
            f"{experiment.config.name}: no least training loss was found; the steepest derivative is {steepest:.2g} "
            f"after {found.nit} iterations"
        )
    return float(found.fun)
