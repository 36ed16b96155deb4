"""Accelerated minibatch steps (AC-SA) for a mu-strongly convex objective over a convex set.

Source: Gao et al. 2024, Algorithm 2 (spec localized-isrl-dp, 6.1 and 5.4). With alpha_r = 2/(r+1) and
prox weights eta_r = 4 upsilon/(r(r+1)); eta_r is a weight, not a step length.
"""

from __future__ import annotations

from dataclasses import dataclass

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
        """Minimiser over R^d of alpha (<g, v> + mu/2 |w_md - v|^2) + ((1 - alpha) mu + eta)/2 |w - v|^2 (d,).

        The Hessian is (mu + eta) I, so the minimiser over a convex set is the projection of this point.
        """
        a, eta, mu = self.alpha, self.prox_weight, self.mu
        return (a * mu * middle + ((1.0 - a) * mu + eta) * w - a * gradient) / (mu + eta)
