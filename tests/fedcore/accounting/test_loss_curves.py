"""One answer's curve against its definition with hundreds of digits: never below, and hardly above."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest
from mpmath import exp, mpf

from fedcore.accounting.composition import spent
from fedcore.accounting.events import GaussianRelease
from fedcore.accounting.loss_distributions.loss_curves import gaussian, poisson, without_replacement

EPSILONS = (-50.0, -1.0, -1e-7, 0.0, 1e-9, 1e-7, 1e-4, 0.1, 1.0, 5.0, 20.0, 123.05, 700.0, 5000.0)


def above(x):
    return mpmath.erfc(x / mpmath.sqrt(2)) / 2


def at_threshold(q, z, epsilon):
    """The x with ln(P/Q) = epsilon: the stable root of the quadratic in u = exp(x / s^2) of both mixtures."""
    s, e = 2 * mpf(z), exp(mpf(epsilon))
    a, b = q * exp(-1 / (2 * s * s)), (1 - q) * (1 - e)
    root = mpmath.sqrt(b * b + 4 * a * a * e)
    u = (root - b) / (2 * a) if b <= 0 else 2 * a * e / (b + root)
    return s * s * mpmath.log(u)


def of_poisson(q, z, epsilon):
    """P(x > t) - exp(epsilon) Q(x > t) at the threshold t of the loss."""
    q, s, e = mpf(q), 2 * mpf(z), exp(mpf(epsilon))
    t = at_threshold(q, z, epsilon)
    return (1 - q) * (1 - e) * above(t / s) + q * (above((t - 1) / s) - e * above((t + 1) / s))


def of_gaussian(z, epsilon):
    mu, e = 1 / mpf(z), mpf(epsilon)
    return above(e / mu - mu / 2) - exp(e) * above(e / mu + mu / 2)


def of_fixed_size(q, z, epsilon):
    if epsilon < 0:
        return 1 - exp(mpf(epsilon)) * (1 - of_fixed_size(q, z, -epsilon))
    return mpf(q) * of_gaussian(z, mpmath.log1p((exp(mpf(epsilon)) - 1) / mpf(q)))


@pytest.mark.parametrize("z", [1e-3, 0.05, 0.5, 0.7, 3.0, 100.0, 1e7])
@pytest.mark.parametrize("q", [1e-9, 1e-4, 0.3, 0.5, 0.999, 1 - 2.0**-53, 1.0])
def test_no_curve_is_below_the_truth(q, z):
    with np.errstate(all="raise", under="ignore"):
        poissons, fixed = poisson(q, z)(np.array(EPSILONS)), without_replacement(q, z)(np.array(EPSILONS))
        whole = gaussian(1 / z)(np.array(EPSILONS))
    with mpmath.workdps(400):
        for index, epsilon in enumerate(EPSILONS):
            for found, true in (
                (poissons[index], of_poisson(q, z, epsilon)),
                (fixed[index], of_fixed_size(q, z, epsilon)),
                (whole[index], of_gaussian(z, epsilon)),
            ):
                assert mpf(float(found)) >= true, (epsilon, found)
                assert true < 1e-306 or mpf(float(found)) <= true * (1 + mpf("1e-4")), (epsilon, found)


@pytest.mark.parametrize("z, q, epsilon, library", [(1e7, 1e-9, 0.0, 0.0), (3.0, 1e-9, 1e-7, 1.3920308446190665e-178)])
def test_where_the_librarys_own_curve_is_too_low(z, q, epsilon, library):
    from dp_accounting.pld.privacy_loss_mechanism import AdjacencyType, GaussianPrivacyLoss

    loss = GaussianPrivacyLoss(
        2 * z, sensitivity=1.0, sampling_prob=q, adjacency_type=AdjacencyType.REPLACE, log_mass_truncation_bound=-600
    )
    theirs, ours = loss.get_delta_for_epsilon(epsilon), poisson(q, z)(np.array([epsilon]))[0]
    with mpmath.workdps(400):
        true = of_poisson(q, z, epsilon)
    assert theirs == pytest.approx(library, rel=1e-6) and theirs < true * (1 - mpf("5e-5"))
    assert true <= ours <= 1.001 * float(true)


@pytest.mark.parametrize("sampling, truth", [("poisson", of_poisson), ("without-replacement", of_fixed_size)])
@pytest.mark.parametrize(
    "q, z, delta",
    [
        (0.5, 0.05, 4e-14),
        (0.5, 0.02, 1e-6),
        (1e-4, 0.2, 1e-30),
        (0.01, 5.0, 1e-250),
        (0.99, 0.05, 1e-100),
        (1 - 1e-9, 1.0, 4e-14),
        (1e-9, 0.05, 1e-12),
    ],
)
def test_one_answer_never_spends_less_than_its_curve_says(sampling, truth, q, z, delta):
    """At the accounted epsilon the true delta is at most the given one: checked, and not solved again."""
    found = spent([GaussianRelease(0, 1, 1.0, z, sampling=sampling, rate=q)], delta)
    with mpmath.workdps(400):
        assert truth(q, z, found) <= mpf(delta)
        assert truth(q, z, 0.99 * found) > mpf(delta)


def test_a_large_loss_is_likelier_than_delta_says():
    """Rate 0.5, multiplier 0.05, delta 4e-14: the loss is above 123.79 with probability delta. (epsilon, delta) asks
    for less, E[(1 - exp(epsilon - loss))_+] <= delta, which holds from 123.04 on."""
    q, z, delta = 0.5, 0.05, 4e-14
    with mpmath.workdps(60):
        s, threshold = 2 * mpf(z), at_threshold(mpf(q), z, 123.79)
        likely = (1 - q) * above(threshold / s) + q * above((threshold - 1) / s)
        assert float(likely) == pytest.approx(delta, rel=0.005)
        assert float(of_poisson(q, z, 123.79)) == pytest.approx(2.27e-14, rel=0.001)
        assert of_poisson(q, z, 123.037) > delta > of_poisson(q, z, 123.038)
    assert 123.037 < spent([GaussianRelease(0, 1, 1.0, z, sampling="poisson", rate=q)], delta) < 123.06
