"""Queries that a silo refuses, or must still answer: retries, other forms, other sizes."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
from scipy import stats

from fedcore.accounting.filters import Charge
from fedcore.errors import SiloError
from fedcore.ledger.sqlite import SqliteLedger
from fedcore.losses import Logistic, Squared
from fedcore.models import linear
from fedcore.silo.private_silo import PrivateSilo
from tests.faults.one_silo import KINDS, One, records, refusal, whole

# A retry whose sum is another one


@pytest.mark.parametrize("kind", KINDS)
def test_a_retry_whose_sum_differs_in_the_last_bit_draws_other_noise(one, monkeypatch, kind):
    """The first answer was computed and not committed; then one coordinate of the sum moves by its last bit.

    Another processor may do that. With equal noise, the two answers together would reveal the sum without noise.
    """
    d = 400
    made = one(kind, *records(30, d))
    sigma = made.plan.phases[0].by_silo["ash"].sigma
    uncommitted, commit, real = [], made.ledger.commit, linear.clipped_gradient_sum

    def refuse(run, row, lease=0):
        uncommitted.append(np.frombuffer(row.payload))
        raise SiloError("ash", "ledger", "planted")

    def moved(*arguments):
        total = real(*arguments)
        total[0] = np.nextafter(total[0], np.inf)
        return total

    monkeypatch.setattr(made.ledger, "commit", refuse)
    for _ in range(2):  # the control: the same sum is masked by the same noise, however often it is computed
        assert refusal(made.ask, np.zeros(d)).sentence == "planted"
    assert uncommitted[0].tobytes() == uncommitted[1].tobytes()

    monkeypatch.setattr(made.ledger, "commit", commit)
    monkeypatch.setattr(linear, "clipped_gradient_sum", moved)
    sent = made.ask(np.zeros(d))
    assert (sent != uncommitted[0]).all()
    # The sums differ by one last bit: independent noises differ by N(0, 2 sigma^2) in each coordinate.
    squares = float((((sent - uncommitted[0]) / sigma) ** 2).sum() / 2)
    low, high = stats.chi2.ppf([1e-6, 1 - 1e-6], d)
    assert low < squares < high
    total = real(made.agreement.loss, np.zeros(d), *whole(made))
    noises = [answer - total / 30 for answer in (sent, uncommitted[0])]
    assert abs(np.corrcoef(noises)[0, 1]) < 5 / math.sqrt(d)

    # One of the two is committed, and it is repeated whatever the sum would be now.
    monkeypatch.setattr(linear, "clipped_gradient_sum", real)
    assert made.ask(np.zeros(d)).tobytes() == sent.tobytes()
    (row,) = made.ledger.rows("run")
    assert made.ledger.find("run", row.phase, row.round).payload == sent.tobytes() and made.silo.computed == 1 + 2


# A backup that does not know the run


def test_a_run_that_a_restored_backup_does_not_know_is_charged_beside_what_was_lost(tmp_path):
    """The backup lacks the run's approval and answers; a new approval has another secret key.

    The charges include every answer that an address may have had before.
    """
    X, y = records()
    first = One(tmp_path, "guarded", X, y, run="before")
    first.close()
    copy = (tmp_path / "ash.sqlite").read_bytes()
    lost = One(tmp_path, "guarded", X, y)
    sent = [lost.ask(np.zeros(4), round) for round in (1, 2, 3)]
    lost.close()
    (tmp_path / "ash.sqlite").write_bytes(copy)
    with pytest.raises(SiloError, match="ends at entry 2, its anchor saw 6") as caught:
        One(tmp_path, "guarded", X, y)
    assert caught.value.code == "ledger-lost"
    ledger = SqliteLedger("ash", tmp_path / "ash.sqlite", tmp_path / "ash.anchor", fitting=False)
    closed, added = ledger.reconcile()
    ledger.close()
    full = Charge.of(first.plan.silo_events("ash"), 1e-5)
    assert closed == ["before"] and added.mu_squared == pytest.approx(full.mu_squared, rel=1e-12)

    again = One(tmp_path, "guarded", X, y, key=b"another")
    answers = [again.ask(np.zeros(4), round) for round in (1, 2, 3)]
    assert all((one != other).all() for one, other in zip(sent, answers, strict=True))
    charges = again.ledger.charges().values()
    again.close()
    assert sum(charge.mu_squared for charge in charges) == pytest.approx(3 * full.mu_squared, rel=1e-12)


# Queries


HUGE = {
    "1e308": [1e308, 0, 0, 0],
    "-1e308 everywhere": [-1e308] * 4,
    "largest float": [0, 0, 0, np.finfo(float).max],
    "just at the bound": [0, 1e12, 0, 0],
    "nan beside zeros": [0, 0, 0, np.nan],
    "both infinities": [np.inf, -np.inf, 0, 0],
}
FORMS = {
    "number": 0.0,
    "nothing": None,
    "text": np.array(["0"] * 4),
    "long double": np.zeros(4, np.longdouble),
    "masked": np.ma.MaskedArray([0.0, 0.0, 0.0, np.inf], mask=[0, 0, 0, 1]),
    "matrix": np.zeros((1, 4)),
    "empty": np.zeros(0),
    "single": np.zeros(4, np.float32),
}
SENTENCES = {
    "a query needs float64 arrays of 4 values below 1e+12",
    "a query is about models of norm at most 5, half of model.diameter",
    "a query of this phase holds arrays of their own for no participant",
    "this is no query: packed arrays are cut",
}
"""All refusals of queries: they name bounds and no value."""


@pytest.mark.parametrize("kind", KINDS)
def test_a_query_that_overflows_or_has_another_form_is_refused_before_a_silo_sees_it(one, monkeypatch, kind):
    made, seen = one(kind, *records()), []
    monkeypatch.setattr(PrivateSilo, "answer", lambda *_: seen.append("asked"))
    wrong = {name: np.array(values, float) for name, values in HUGE.items()} | FORMS
    found = {}
    for name, array in wrong.items():
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            error = refusal(made.answer, made.query(None, arrays={"w": array}))
        found[name] = (error.code, error.sentence)
        for own in ({"ash": {"more": array}}, {"ash": {"w": array}}, {"elm": {"w": array}}):
            error = refusal(made.answer, made.query(np.zeros(4), own=own))
            found[f"{name}, own: {own.keys()}"] = (error.code, error.sentence)
    assert {code for code, _ in found.values()} == {"query"}
    assert {message for _, message in found.values()} <= SENTENCES, found
    assert seen == [] and made.silo.computed == 0 and made.ledger.rows("run") == []


class Bytes(bytes):
    """A subclass of bytes with its own state."""


@pytest.mark.parametrize("kind", KINDS)
def test_a_site_takes_bytes_and_no_objects(one, kind):
    """A query that arrived as an object once brought the digest that keyed its noise."""
    made = one(kind, *records())
    query, agreement = made.query(np.zeros(4)), made.agreement
    data = query.to_bytes()
    forms = (query, bytearray(data), memoryview(data), Bytes(data), "query", None, 1)
    assert {refusal(made.site.answer, form).sentence for form in forms} == {"this is no query: it takes bytes"}
    assert {refusal(made.site.approve, form).code for form in (agreement, Bytes(agreement.to_bytes()), None)} == {
        "agreement"
    }
    assert refusal(made.site.restore, "run", []).code == "receipts"
    assert refusal(made.site.simulated, "run", np.zeros(4)).code == "model"
    for act in (made.site.accounts, made.site.close_run):
        for run in ("unknown", ["run"], None):
            assert refusal(act, run).code == "plan"
    assert made.ledger.rows("run") == []


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("loss", [Squared(), Logistic()], ids=["squared", "logistic"])
def test_the_largest_queries_that_are_let_in_get_finite_answers(one, kind, loss):
    """Records at a feature bound of 1e160, models at the edge of the domain: predictors whose squares overflow."""
    X, y = records(16, 4)
    X *= 1e160 / np.linalg.norm(X, axis=1)[:, None]
    made = one(kind, X, np.sign(y), loss=loss, clip=2.0)
    edge = made.problem.objective.diameter / 2
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for round, w in enumerate(([edge / 2] * 4, [-edge, 0, 0, 0], [0, 0, 0, 5e-324]), start=1):
            answer = made.ask(w, round)
            assert np.isfinite(answer).all()
            # A mean of gradients of norm 2 at most, and noise.
            sigma = made.plan.phases[0].by_silo["ash"].sigma
            assert np.linalg.norm(answer) <= 2.0 + sigma * (2 + 8)
    assert len(made.ledger.rows("run")) == 3


def test_a_query_without_the_methods_array_gets_the_constant_sentence_and_no_release(one):
    made = one("guarded", *records())
    error = refusal(made.answer, made.query(None, arrays={"v": np.zeros(4)}))
    assert (error.code, error.sentence) == ("query", "a query of this phase holds the arrays w")
    assert made.ledger.rows("run") == []
