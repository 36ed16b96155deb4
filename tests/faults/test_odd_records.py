"""No outcome depends on records: not on odd ones, not on errors that would quote them."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from fedcore.algorithms import Mbsgd
from fedcore.losses import Squared
from fedcore.mechanisms.grid import GridGaussian
from fedcore.models import linear
from fedcore.silo import private_silo as module
from tests.faults.one_silo import KINDS, error_text, records, refusal, whole
from tests.faults.quoting import CANARY, CANARY_TEXT, quoting

# Records that are not numbers


SPOILT = {
    "nan in a feature": ([np.nan, 1, 1, 1], 1.0),
    "infinite feature": ([1, np.inf, 1, 1], 1.0),
    "both infinities": ([np.inf, -np.inf, 0, 0], 1.0),
    "nan label": ([1, 1, 1, 1], np.nan),
    "all of it": ([np.nan] * 4, -np.inf),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", SPOILT)
def test_a_record_that_is_not_a_number_leaves_the_very_bytes_of_a_record_of_zeros(one, kind, name):
    """The sum before noise has the same bits, so the two cannot be distinguished; a zero with other noise could."""
    X, y = records()
    spoilt, labels = X.copy(), y.copy()
    spoilt[7], labels[7] = SPOILT[name]
    X[7], y[7] = 0.0, 0.0
    w = np.array([0.3, -2.0, 0.5, 1.0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made = one(kind, spoilt, labels)
        answers = [made.ask(w, round) for round in (1, 2)]
    control = one(kind, X, y)
    assert [answer.tobytes() for answer in answers] == [control.ask(w, round).tobytes() for round in (1, 2)]


EXTREME = {
    "largest features": ([1e308, -1e308, 1e308, 1e308], 1.0),
    "smallest feature": ([0, 5e-324, 0, 0], 1.0),
    "below the normal range": ([1e-310, 0, 0, 0], 1e308),
    "largest label": ([1, 1, 1, 1], 1e308),
    "infinite label": ([1, 1, 1, 1], np.inf),
    "infinite label of nothing": ([0, 0, 0, 0], -np.inf),
    "infinite label of next to nothing": ([0, 1e-310, 0, 0], np.inf),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", EXTREME)
def test_a_record_at_the_ends_of_the_range_pulls_no_more_than_any_other(one, kind, name):
    X, y = records()
    x, label = EXTREME[name]
    zeroed, zero = X.copy(), y.copy()
    X[7], y[7] = x, label
    zeroed[7], zero[7] = 0.0, 0.0
    w = np.array([0.3, -2.0, 0.5, 1.0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made = one(kind, X, y)
        answer = made.ask(w)
    assert np.isfinite(answer).all()
    if kind == "guarded":
        # The mean was divided once: multiples of the step, up to that rounding.
        steps = answer * 20 / made.grid().step
        assert np.abs(steps - np.rint(steps)).max() <= 2e-16 * np.abs(steps).max()
    # Its part in the sum is at most the clipping bound.
    with np.errstate(all="ignore"):
        total = linear.clipped_gradient_sum(Squared(), w, *whole(made))
    other = linear.clipped_gradient_sum(Squared(), w, *whole(one(kind, zeroed, zero)))
    assert np.linalg.norm(total - other) <= 1.0 + 1e-12


# Errors that quote records


PLACES = {
    "the gradient": (linear, "clipped_gradient_sum"),
    "the noise": (GridGaussian, "noised"),
    "the step of the method": (Mbsgd, "silo_step"),
    "the digest of the message": (module, "payload_digest"),
}


@pytest.mark.parametrize("place", PLACES)
def test_an_error_that_quotes_a_record_becomes_one_constant_sentence(one, monkeypatch, place):
    X, y = records()
    X[7, 2] = CANARY
    made = one("guarded", X, y)
    monkeypatch.setattr(*PLACES[place], quoting)
    error = refusal(made.ask, np.zeros(4))
    assert (error.silo, error.code) == ("ash", "failed")
    assert str(error) == "silo ash: it could not answer; see the log at the silo"
    assert error.__cause__ is None and error.__context__ is None
    assert CANARY_TEXT not in error_text(error, __file__)
    assert made.ledger.rows("run") == []
    # The control: the planted error itself contains the text.
    with pytest.raises(RuntimeError) as caught:
        quoting()
    assert CANARY_TEXT in error_text(caught.value, __file__)


def test_an_error_while_a_run_is_approved_quotes_no_record_either(one, monkeypatch):
    """Approving sorts and bounds the records: it is the first thing that touches them."""
    made = one("guarded", *records(), approve=False)
    monkeypatch.setattr(linear, "residual_bounds", quoting)
    error = refusal(made.site.approve, made.agreement.to_bytes())
    assert (error.code, error.__context__) == ("failed", None)
    assert CANARY_TEXT not in error_text(error, __file__)
