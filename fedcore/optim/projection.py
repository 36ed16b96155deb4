"""Exact Euclidean projections onto a ball and onto the intersection of two balls (a lens)."""

from __future__ import annotations

import math

import numpy as np

from fedcore.arrays import Vector


def onto_ball(z: Vector, centre: Vector, radius: float) -> Vector:
    """Nearest point to z (d,) of the closed ball; z itself inside the ball or for infinite radius.

    NaN stays NaN: training has diverged.
    """
    if math.isinf(radius):
        return z
    offset = z - centre
    norm = _norm(offset)
    if norm <= radius:
        return z
    if math.isinf(norm):
        offset = _near(offset)
        norm = _norm(offset)
    return np.asarray(centre + offset * (radius / norm))


def _norm(offset: Vector) -> float:
    with np.errstate(over="ignore"):
        return math.sqrt(offset.dot(offset))


def _near(offset: Vector) -> Vector:
    """The same direction, at length 1 or a little more; NaN for infinities."""
    with np.errstate(invalid="ignore"):
        return np.asarray(offset / np.abs(offset).max())


def onto_lens(z: Vector, c1: Vector, r1: float, c2: Vector, r2: float) -> Vector:
    """Nearest point to z (d,) of the intersection of B(c1, r1) and B(c2, r2), exact up to rounding.

    Raises ValueError if the balls do not meet. Source: spec localized-isrl-dp, section 5.5. If the projection onto one
    ball lies in the other, it is the answer. Otherwise both constraints are active. The answer then lies on the sphere
    that the two boundaries share, in the half-plane of z.
    """
    tolerance = 1e-12 * (1.0 + sum(r for r in (r1, r2) if math.isfinite(r)))
    first = onto_ball(z, c1, r1)
    if np.linalg.norm(first - c2) <= r2:
        return first
    second = onto_ball(z, c2, r2)
    if np.linalg.norm(second - c1) <= r1:
        return second
    if r1 < r2:
        c1, r1, c2, r2 = c2, r2, c1, r1
        second = first
    dist = float(np.linalg.norm(c2 - c1))
    if dist > r1 + r2 + tolerance:
        raise ValueError(f"the balls do not meet: centres {dist:g} apart, radii {r1:g} and {r2:g}")
    # In the frame of the smaller ball: its radius may be 1e-8 of the other's, and differences of squares would cancel.
    axis = (c2 - c1) / dist
    back = min(max(((dist - r1) * (dist + r1) + r2 * r2) / (2.0 * dist), -r2), r2)
    rim = math.sqrt((r2 - back) * (r2 + back))
    offset = z - c2
    if math.isinf(_norm(offset)):
        offset = _near(offset)  # so far away only the direction has digits
    across = offset - (offset @ axis) * axis
    length = float(np.linalg.norm(across))
    if length <= 1e-15 * (1.0 + float(np.linalg.norm(offset))):
        return second  # z lies on the axis up to rounding, and every point of the rim is equally near
    return np.asarray(c2 - back * axis + (rim / length) * across)


def onto_domain(z: Vector, diameter: float, centre: Vector, radius: float) -> Vector:
    """Nearest point to z of W and B(centre, radius), W the ball around 0 of this diameter.

    That set is W_i of the papers. A radius of at least the diameter cannot bind, as the centre lies in W.
    """
    origin = np.zeros_like(z)
    if radius >= diameter:
        return onto_ball(z, origin, diameter / 2)
    return onto_lens(z, origin, diameter / 2, centre, radius)
