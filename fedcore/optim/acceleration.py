"""Accelerated minibatch steps (AC-SA) for a mu-strongly convex objective over a convex set.

Source: Gao et al. 2024, Algorithm 2 (spec localized-isrl-dp, 6.1 and 5.4). alpha_r is 2/(r+1). The prox weight is
`eta_r = 4 upsilon/(r(r+1))`, a weight and not a step length.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedcore.arrays import Vector


@dataclass(frozen=True)
class AccelerationCoefficients:
    """alpha_r and eta_r of round r = 1, 2, ... of a stage with constant upsilon."""

    alpha: float
    prox_weight: float
    mu: float

    @classmethod
    def at(cls, r: int, upsilon: float, mu: float) -> AccelerationCoefficients:
        return cls(alpha=2.0 / (r + 1), prox_weight=4.0 * upsilon / (r * (r + 1)), mu=mu)

    def middle(self, aggregate: Vector, w: Vector) -> Vector:
        """w_md (d,), the query point: a convex combination of the aggregate w_ag and the previous iterate w."""
        a, eta, mu = self.alpha, self.prox_weight, self.mu
        share = (1.0 - a) * (mu + eta) / (eta + (1.0 - a * a) * mu)
        return share * aggregate + (1.0 - share) * w

    def unprojected(self, middle: Vector, w: Vector, gradient: Vector) -> Vector:
        """Minimiser v (d,) over R^d of the step's model.

        The model is `alpha (<g, v> + mu/2 |w_md - v|^2) + ((1 - alpha) mu + eta)/2 |w - v|^2`. Its Hessian is (mu +
        eta) I, so the minimiser over a convex set is the projection of this point.
        """
        a, eta, mu = self.alpha, self.prox_weight, self.mu
        return (a * mu * middle + ((1.0 - a) * mu + eta) * w - a * gradient) / (mu + eta)

    def amplification(self, curvature: float) -> float:
        """Spectral radius of the step on a quadratic, from (w, w_ag) to the next pair.

        Both points lie along one eigenvector. `curvature`: its eigenvalue in the whole objective, mu included. Above 1
        the step takes both points away from the minimiser. For mu = 0 and large r that begins at a curvature of 4/3
        upsilon. Nesterov's method has the same limit with steps of 1 / upsilon and momentum near 1 (derived here). The
        papers take upsilon >= 2 beta and stay below it. For small r, and with mu, it begins later.
        """
        share = (1.0 - self.alpha) * (self.mu + self.prox_weight)
        share /= self.prox_weight + (1.0 - self.alpha**2) * self.mu
        middle = np.array([1.0 - share, share])
        own = np.array([(1.0 - self.alpha) * self.mu + self.prox_weight, 0.0])
        w = (self.alpha * (self.mu - curvature) * middle + own) / (self.mu + self.prox_weight)
        aggregate = self.alpha * w + np.array([0.0, 1.0 - self.alpha])
        return float(np.abs(np.linalg.eigvals(np.array([w, aggregate]))).max())
