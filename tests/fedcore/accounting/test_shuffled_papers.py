"""The papers' formulas for the shuffle model: against the spec's numbers, by hand, and below their limits."""

import math

import pytest

from fedcore.accounting.calibration import sampled_multiplier
from fedcore.accounting.published.claims import FormulaInputs
from fedcore.accounting.published.papers import published
from fedcore.accounting.published.shuffled import amplified, farthest
from fedcore.errors import InputError


def ask(name, **inputs):
    drawn = "full" if name.endswith("full") else "without-replacement"
    given = {"n": 10, "rounds": 100, "delta": 1e-6, "batch": 1, "sampling": drawn, "silos": 1000}
    return published(name, FormulaInputs(**(given | inputs)))


def amplified_as_printed(local, whole, messages, delta):
    clones = 8 * math.sqrt(math.exp(whole) * math.log(4 / delta)) / math.sqrt(messages)
    return math.log(1 + math.tanh(local / 2) * (clones + 8 * math.exp(whole) / messages))


def test_the_spec_s_worked_number():
    """`n = 10, N = M = 1000, R = 100, epsilon 1, delta 1e-6, K = 1`: 33 778 L^2, against 85 L^2 by an accountant."""
    assert ask("lowy-2023-shuffled").sigma(1) ** 2 == pytest.approx(33_778, abs=0.5)
    assert ask("lowy-2023-shuffled", clip=3.0).sigma(1) ** 2 == pytest.approx(9 * 33_778, rel=2e-5)
    local = 2 * sampled_multiplier("without-replacement", 0.1, 100, 1.0, 1e-6)  # sensitivity 2L for one record
    assert local**2 == pytest.approx(85, abs=0.5)


def test_with_25_silos_there_is_no_formula():
    with pytest.raises(InputError, match="25 messages in a batch: it is stated for no epsilon at all"):
        ask("lowy-2023-shuffled", silos=25).sigma(1)
    with pytest.raises(InputError, match="no epsilon at all"):
        ask("lowy-2023-shuffled-full", batch=10, silos=200).sigma(1)
    with pytest.raises(InputError, match="needs batch = 1"):
        ask("lowy-2023-shuffled", batch=2)


@pytest.mark.parametrize("local, whole, messages, delta", [(0.5, 0.5, 1000, 1e-6), (0.01, 1.0, 10**5, 1e-9)])
def test_amplified_is_the_printed_expression(local, whole, messages, delta):
    wanted = amplified_as_printed(local, whole, messages, delta)
    assert amplified(local, whole, messages, delta) == pytest.approx(wanted, rel=1e-12)
    assert math.exp(farthest(messages, delta)) * 16 * math.log(2 / delta) == pytest.approx(messages)


def test_one_record_step_by_step():
    """Section 6.7 with M < N, the local epsilon found by going up in small steps."""
    n, N, M, R, delta, epsilon = 50, 4000, 2000, 30, 1e-7, 0.2
    e_r = epsilon / (2 * math.sqrt(2 * R * math.log(2 / delta)))
    d0, target = n * N * delta / (18 * R * M**2), e_r * n * N / (2 * M)
    e0 = 0.0
    while e0 < 0.9999 and amplified_as_printed(e0 + 1e-4, e0 + 1e-4, M, M * d0) <= target:
        e0 += 1e-4
    assert 16 * math.log(2 / d0) <= M and e0 > 0.01 and e0 < math.log(M / (16 * math.log(2 / (M * d0))))
    formula = ask("lowy-2023-shuffled", n=n, silos=N, silos_per_round=M, rounds=R, delta=delta)
    assert formula.sigma(epsilon) == pytest.approx(math.sqrt(8 * math.log(2 / d0)) / e0, rel=1e-2)
    assert formula.sigma(epsilon) <= math.sqrt(8 * math.log(2 / d0)) / e0


def test_all_records_keep_the_corrected_delta():
    """Theorem F.2 at the calibrated noise stays within a round's epsilon and delta, by a small margin."""
    n, N, R, delta, epsilon = 10, 100_000, 100, 1e-6, 1.0
    sigma = ask("lowy-2023-shuffled-full", batch=n, silos=N).sigma(epsilon)
    e_r, d_r = epsilon / (2 * math.sqrt(2 * R * math.log(2 / delta))), delta / (2 * R)

    def delta_of_a_round(e0):
        d0 = 2 * math.exp(-((sigma * n * e0 / 2) ** 2) / 2)  # sigma = (2/n) sqrt(2 ln(2/d0)) / e0
        return d_r / 2 + (math.exp(e_r) + 1) * 2 * N * n * math.exp((n - 1) * e0) * d0

    kept = [e0 for e0 in (i * 1e-5 for i in range(1, 20000)) if amplified_as_printed(e0, n * e0, N, d_r / 2) <= e_r]
    assert 0.5 * d_r < delta_of_a_round(kept[-1]) < 1.02 * d_r
    assert delta_of_a_round(0.99 * kept[-1]) > d_r
