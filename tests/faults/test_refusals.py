"""What a silo refuses, what it answers all the same, and that neither says anything of its records.

Quick and in this process, but for the last part: there real Dask workers carry errors, and run completed tasks again.
"""

from __future__ import annotations

import dataclasses
import errno
import math
import os
import signal
import sys
import traceback
import warnings
from pathlib import Path

import dask
import numpy as np
import pytest
from scipy import stats
from scipy.optimize import brentq

from fedcore.accounting.calibration import Budget
from fedcore.accounting.events import GaussianRelease
from fedcore.accounting.filters import Cap, Charge
from fedcore.algorithms import METHODS, Mbsgd
from fedcore.data.records import Records
from fedcore.errors import SiloError
from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.experiment import Experiment
from fedcore.home import LedgerFolders
from fedcore.ledger.ledger import MemoryLedger, payload_digest
from fedcore.ledger.sqlite import SqliteLedger
from fedcore.losses import Logistic, Squared
from fedcore.mechanisms.grid import Grid, GridGaussian
from fedcore.messages import Query, unbundled
from fedcore.models import linear
from fedcore.planning.phase import Phase
from fedcore.planning.plan import Plan
from fedcore.planning.problem import Problem, SiloFacts
from fedcore.silo import private_silo as module
from fedcore.silo.agreement import Agreement
from fedcore.silo.opening import open_site
from fedcore.silo.private_silo import PrivateSilo
from fedcore.silo.site import Site
from tests.patience import HANGS
from tests.wire import on_the_wire

sys.path.insert(0, str(Path(__file__).parent))
from quoting import CANARY, CANARY_TEXT, quoting

KINDS = ["seeded", "guarded"]


class One:
    """A site with one silo, ash, over (X, y); `key` is fixed, so guarded noise repeats from test to test."""

    def __init__(
        self,
        folder,
        kind,
        X,
        y,
        *,
        method=None,
        loss=None,
        clip=1.0,
        epsilon=1.0,
        cap=None,
        run="run",
        approve=True,
        key=b"k" * 32,
    ) -> None:
        self.guarded = kind == "guarded"
        self.run, self.method = run, method or Mbsgd(rounds=5, step=0.5)
        mechanism = "discrete-gaussian" if self.guarded else "gaussian"
        X, y = np.asarray(X, float), np.asarray(y, float)
        self.problem = Problem(
            silos=(SiloFacts("ash", len(y)),), dim=X.shape[1], clip=clip, smoothness=1.0, diameter=10.0,
            participants=1, budget=Budget(epsilon, 1e-5, mechanism=mechanism),
        )  # fmt: skip
        self.plan = self.method.plan(self.problem)
        self.ledger = SqliteLedger("ash", folder / "ash.sqlite", folder / "ash.anchor")
        self.silo = PrivateSilo("ash", Records(X, y), key, self.ledger, cap, self.guarded)
        self.site = Site([self.silo])
        self.agreement = Agreement(run, self.problem, self.method, loss or Squared(), self.plan.digest)
        if approve and type(self.method) is METHODS.get(self.method.name):
            self.site.approve(self.agreement.to_bytes())
        elif approve:  # a method of a test's own is installed at no silo, so it cannot be named to one
            self.site.agree(self.agreement)

    def query(self, w, round=1, **changes) -> Query:
        arrays = changes.pop("arrays", {"w": np.asarray(w, float)})
        return Query(self.run, self.plan.digest, 1, round, ("ash",), arrays, **changes)

    def ask(self, w, round=1) -> np.ndarray:
        (release,) = unbundled(self.answer(self.query(w, round)), self.problem.dim)
        return release.payload

    def answer(self, query: Query) -> bytes:
        return self.site.answer(on_the_wire(query))

    def grid(self) -> Grid:
        share = self.plan.phases[0].by_silo["ash"]
        return Grid.of(share.sigma * share.batch, self.problem.clip, share.batch, self.problem.dim)

    def close(self) -> None:
        self.site.close()


@pytest.fixture
def one(tmp_path):
    """Makes sites of one silo, each in a folder of its own, and closes them at the end."""
    made: list[One] = []

    def build(kind, X, y, **options) -> One:
        folder = tmp_path / f"site-{len(made)}"
        made.append(One(folder, kind, X, y, **options))
        return made[-1]

    yield build
    for site in made:
        site.close()


def records(n=20, d=4, seed=1):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((n, d)), rng.standard_normal(n)


def refusal(ask, *arguments) -> SiloError:
    with pytest.raises(SiloError) as caught:
        ask(*arguments)
    return caught.value


# A retry whose sum is another one


@pytest.mark.parametrize("kind", KINDS)
def test_a_retry_whose_sum_differs_in_the_last_bit_draws_other_noise(one, monkeypatch, kind):
    """The first answer was computed and not committed; then one coordinate of the sum moves by one unit in its last
    place, as on another processor. With the noise kept, the two answers together would show the sum without noise."""
    d = 400
    made = one(kind, *records(30, d))
    sigma = made.plan.phases[0].by_silo["ash"].sigma
    uncommitted, commit, real = [], made.ledger.commit, linear.clipped_gradient_sum

    def refuse(run, row):
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
    total = real(made.agreement.loss, np.zeros(d), *_whole(made))
    noises = [answer - total / 30 for answer in (sent, uncommitted[0])]
    assert abs(np.corrcoef(noises)[0, 1]) < 5 / math.sqrt(d)

    # One of the two is committed, and it is repeated whatever the sum would be now.
    monkeypatch.setattr(linear, "clipped_gradient_sum", real)
    assert made.ask(np.zeros(d)).tobytes() == sent.tobytes()
    (row,) = made.ledger.rows("run")
    assert made.ledger.find("run", row.phase, row.round).payload == sent.tobytes() and made.silo.computed == 1 + 2


def _whole(made: One):
    run = made.silo._runs["run"]
    return run.X, run.y, run.answers["gradient"].bounds


# A backup that does not know the run


def test_a_run_that_a_restored_backup_does_not_know_is_charged_beside_what_was_lost(tmp_path):
    """Its approval is lost with its answers: approved anew it has another secret key, and each of the answers that an
    address may have got by then is in the charges."""
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
"""Whatever was wrong: they name bounds and no value."""


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
    assert {said for _, said in found.values()} <= SENTENCES, found
    assert seen == [] and made.silo.computed == 0 and made.ledger.rows("run") == []


class Bytes(bytes):
    """Bytes with a state of their own."""


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
    edge = made.problem.diameter / 2
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


# Plans and events


def lowered(plan: Plan) -> Plan:
    """The plan with a hundredth of ash's noise."""
    (phase,) = plan.phases
    shares = tuple(dataclasses.replace(share, sigma=share.sigma / 100) for share in phase.shares)
    return dataclasses.replace(plan, phases=(dataclasses.replace(phase, shares=shares),))


@pytest.mark.parametrize("kind", KINDS)
def test_a_plan_with_less_noise_is_approved_under_no_digest(one, kind):
    made = one(kind, *records(), approve=False)
    forged = lowered(made.plan)
    assert forged.digest != made.plan.digest
    error = refusal(made.site.approve, dataclasses.replace(made.agreement, plan=forged.digest).to_bytes())
    assert error.code == "plan" and "its own plan for run run" in error.sentence
    # An agreement has no place for a plan: under the right digest the silo's own noise is used and charged.
    made.site.approve(made.agreement.to_bytes())
    made.ask(np.zeros(4))
    (row,) = made.ledger.rows("run")
    assert row.event.sigma == made.plan.phases[0].by_silo["ash"].sigma
    asked = dataclasses.replace(made.query(np.zeros(4), 2), plan=forged.digest)
    assert refusal(made.answer, asked).code == "plan"
    assert len(made.ledger.rows("run")) == 1


UNKNOWN = {"mechanism": "laplace", "adjacency": "add-remove", "sampling": "shuffled", "rate": 0.5, "count": 0}


@pytest.mark.parametrize("field", UNKNOWN)
def test_a_plan_with_an_event_that_nobody_can_account_is_not_charged_as_something_else(one, monkeypatch, field):
    event = dataclasses.replace(GaussianRelease(0, 20, 0.1, 1.0), **{field: UNKNOWN[field]})
    with pytest.raises(ValueError):
        Charge.of([event], 1e-5)
    made = one("seeded", *records(), approve=False)
    monkeypatch.setattr(Plan, "silo_events", lambda plan, silo: [event])
    error = refusal(made.silo.approve, "run", made.plan, made.method, Squared())
    assert error.code == "plan" and "no sound bound" in error.sentence
    assert refusal(made.site.approve, made.agreement.to_bytes()).code == "plan"
    assert made.ledger.charges() == {}
    assert refusal(made.answer, made.query(np.zeros(4))).code == "plan"


def test_an_event_whose_sampling_has_no_bound_is_charged_under_no_cap():
    """One record may be in such a batch several times; the bound by full participation is for the other schemes."""
    with pytest.raises(ValueError, match="no bound on mu"):
        Charge.of([GaussianRelease(0, 20, 0.1, 1.0, sampling="with-replacement", rate=0.1)], 1e-5)


@pytest.mark.parametrize("sampling", ["without-replacement", "with-replacement"])
def test_a_silo_draws_no_other_samples_than_it_knows(one, monkeypatch, sampling):
    """A plan with a scheme that the silo cannot draw is refused at the answer, if it got so far: nothing is sent."""
    made = one("seeded", *records())
    real = Phase.event
    other = {"sampling": sampling, "rate": 0.5}
    monkeypatch.setattr(Phase, "event", lambda self, silo, round: dataclasses.replace(real(self, silo, round), **other))
    assert refusal(made.answer, made.query(np.zeros(4))).code == "plan"
    assert made.ledger.rows("run") == []


# Methods


@dataclasses.dataclass(frozen=True)
class Silent(Mbsgd):
    def silo_step(self, sent, silo):
        return np.zeros(4)


@dataclasses.dataclass(frozen=True)
class Twice(Mbsgd):
    def silo_step(self, sent, silo):
        return (silo.ask("gradient", sent["w"]) + silo.ask("gradient", sent["w"])) / 2


@dataclasses.dataclass(frozen=True)
class Keeping(Mbsgd):
    """Asks again, in a later round, what an earlier round gave it to ask."""

    def silo_step(self, sent, silo):
        kept.append(silo)
        answer = silo.ask("gradient", sent["w"])
        return kept[0].ask("gradient", sent["w"]) + answer if len(kept) > 1 else answer


kept: list = []


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", [Silent(rounds=5), Twice(rounds=5)], ids=["not at all", "twice"])
def test_a_method_that_does_not_ask_once_sends_nothing(one, kind, method):
    made = one(kind, *records(), method=method)
    error = refusal(made.ask, np.zeros(4))
    assert error.code == "plan" and error.sentence.endswith("planned for 1")
    assert made.ledger.rows("run") == [] and made.silo.computed == 0


def test_a_method_cannot_ask_through_an_earlier_round(one):
    """Such an answer would have its noise, and no charge."""
    kept.clear()
    made = one("seeded", *records(), method=Keeping(rounds=5))
    made.ask(np.zeros(4))
    error = refusal(made.ask, np.zeros(4), 2)
    assert error.code == "plan" and "after its round" in error.sentence
    assert [row.round for row in made.ledger.rows("run")] == [1]


MESSAGES = {
    "list": list,
    "float32": lambda g: g.astype(np.float32),
    "matrix": lambda g: g[None, :],
    "shorter": lambda g: g[:3],
    "longer": lambda g: np.append(g, 0.0),
    "objects": lambda g: g.astype(object),
    "number": lambda g: float(g[0]),
    "nothing": lambda g: None,
    "masked": np.ma.MaskedArray,
}


@pytest.mark.parametrize("name", MESSAGES)
def test_a_message_of_another_form_is_not_committed(one, monkeypatch, name):
    """Its bytes would be sent again as something else; those of objects are addresses in the silo's memory."""
    made = one("seeded", *records())
    monkeypatch.setattr(Mbsgd, "silo_step", lambda self, sent, silo: MESSAGES[name](silo.ask("gradient", sent["w"])))
    error = refusal(made.ask, np.zeros(4))
    assert error.code == "plan" and "4 float64" in error.sentence
    assert made.ledger.rows("run") == []


def test_a_message_may_be_made_from_the_answer(one, monkeypatch):
    """Whatever is computed from a noised answer alone is as private as the answer; the ledger keeps what was sent."""
    made, control = one("seeded", *records()), one("seeded", *records())
    answer = control.ask(np.zeros(4))
    monkeypatch.setattr(Mbsgd, "silo_step", lambda self, sent, silo: 3.0 * silo.ask("gradient", sent["w"])[::-1])
    sent = made.ask(np.zeros(4))
    np.testing.assert_array_equal(sent, 3.0 * answer[::-1])
    (row,) = made.ledger.rows("run")
    assert (made.ledger.find("run", 1, 1).payload, row.payload_digest) == payload_digest(sent)
    assert made.ask(np.zeros(4)).tobytes() == sent.tobytes()


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
    """Not a zero with other noise: the sum before noise has the same bits, so nothing at all tells them apart."""
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
        total = linear.clipped_gradient_sum(Squared(), w, *_whole(made))
    other = linear.clipped_gradient_sum(Squared(), w, *_whole(one(kind, zeroed, zero)))
    assert np.linalg.norm(total - other) <= 1.0 + 1e-12


# Errors that quote records


def said(error: BaseException) -> str:
    """All that an error carries: its chain, and what a debugger or a log with variables would print of each frame."""
    found, seen, queue = [], set(), [error]
    while queue:
        each = queue.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        found += [repr(each), str(each), repr(each.__dict__), repr(getattr(each, "__notes__", ""))]
        queue += [each.__cause__, each.__context__]
        for frame, _ in traceback.walk_tb(each.__traceback__):
            if frame.f_code.co_filename != __file__:
                found += [f"{name} = {value!r}" for name, value in frame.f_locals.items()]
    return "\n".join(found)


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
    assert CANARY_TEXT not in said(error)
    assert made.ledger.rows("run") == []
    # The control: the error that was planted is one that would have said it.
    with pytest.raises(RuntimeError) as caught:
        quoting()
    assert CANARY_TEXT in said(caught.value)


def test_an_error_while_a_run_is_approved_quotes_no_record_either(one, monkeypatch):
    """Approving sorts and bounds the records: it is the first thing that touches them."""
    made = one("guarded", *records(), approve=False)
    monkeypatch.setattr(linear, "residual_bounds", quoting)
    error = refusal(made.site.approve, made.agreement.to_bytes())
    assert (error.code, error.__context__) == ("failed", None)
    assert CANARY_TEXT not in said(error)


# Caps


def delta_by_hand(mu: float, epsilon: float) -> float:
    return stats.norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * stats.norm.cdf(-mu / 2 - epsilon / mu)


def mu_by_hand(epsilon: float, delta: float) -> float:
    return brentq(lambda mu: delta_by_hand(mu, epsilon) - delta, 0.01, 9.0, xtol=1e-14)


def epsilon_by_hand(mu: float, delta: float) -> float:
    return brentq(lambda epsilon: delta_by_hand(mu, epsilon) - delta, 0.0, 50.0, xtol=1e-14)


class Watched(np.ndarray):
    """Features that note whenever somebody looks at their values rather than at their shape."""

    looked: list[str] = []  # noqa: RUF012

    def __getitem__(self, key):
        self.looked.append("indexed")
        return np.asarray(self).__getitem__(key)

    def __array_ufunc__(self, ufunc, method, *inputs, **options):
        self.looked.append(ufunc.__name__)
        plain = [np.asarray(each) if isinstance(each, Watched) else each for each in inputs]
        return getattr(ufunc, method)(*plain, **options)


@pytest.mark.parametrize("kind", KINDS)
def test_a_silo_refuses_what_would_pass_its_cap_before_it_looks_at_a_record(tmp_path, kind):
    X, y = records()
    cap = Cap(1.4, 1e-5)
    first = One(tmp_path, kind, X, y, cap=cap, run="first")
    answer = first.ask(np.zeros(4))
    charged = first.ledger.charges()
    Watched.looked.clear()
    second = PrivateSilo("ash", Records(X.view(Watched), y), b"k" * 32, first.ledger, cap, kind == "guarded")
    error = refusal(Site([second]).approve, dataclasses.replace(first.agreement, run="second").to_bytes())
    assert error.silo == "ash" and error.code == "cap"
    for part in ("its cap of epsilon 1.4 at delta 1e-05 (gdp)", "left (runs so far: 1)", "run second asks for 1 at"):
        assert part in error.sentence
    # By the plain formula: squares of mu add up, and what 1.4 leaves beside a run at 1 is less than 1.
    left = epsilon_by_hand(math.sqrt(mu_by_hand(1.4, 1e-5) ** 2 - mu_by_hand(1.0, 1e-5) ** 2), 1e-5)
    assert left < 1 and f" has {left:.4g} left" in error.sentence
    assert Watched.looked == []
    assert first.ledger.charges() == charged
    # What was done stays usable: the run that was admitted goes on, and repeats what it sent.
    assert first.ask(np.zeros(4)).tobytes() == answer.tobytes()
    first.ask(np.ones(4), 2)
    assert [row.round for row in first.ledger.rows("first")] == [1, 2]
    # The control: a run that is admitted does look.
    control = PrivateSilo("ash", Records(X.view(Watched), y), b"k" * 32, MemoryLedger("ash"), None, kind == "guarded")
    Site([control]).approve(first.agreement.to_bytes())
    assert Watched.looked != []
    first.close()


# Dask


def guarded_experiment(folder) -> Experiment:
    config = ExperimentConfig.model_validate({
        "data": {"source": "synthetic", "silos": 2, "records": 50, "features": 4, "test_records": 9},
        "privacy": {"epsilon": 2, "delta": 1e-5, "ledger": "sqlite", "noise": "guarded"},
        "algorithm": {"name": "mbsgd", "rounds": 4, "step": 0.5},
    })  # fmt: skip
    return Experiment.prepare(config, folder / "silos")


@pytest.mark.usefixtures("policies")
def test_no_error_text_of_a_worker_arrives_at_the_driver(tmp_path):
    """On a worker where a holder could not be opened before: Dask has then taught pickle to send along what an error
    was raised from, and where, so that `raise ... from None` alone would not be enough."""
    from tasks.holder import Holder
    from tasks.sites import DaskSites, local_cluster

    made, folders = guarded_experiment(tmp_path), LedgerFolders.below(tmp_path)
    preload = {"distributed.worker.preload": [str(Path(__file__).with_name("quoting.py"))]}
    with dask.config.set(preload), local_cluster(1) as client:
        names = [silo.name for silo in made.plan.problem.silos]
        spec = made.site_spec(names, folders)
        gone = tuple(dataclasses.replace(source, path=str(tmp_path / "gone.parquet")) for source in spec.sources)
        failed = client.submit(
            Holder, dataclasses.replace(spec, sources=gone, ledger="memory").to_bytes(), client.id, actor=True
        )
        assert isinstance(failed.exception(timeout=HANGS), SiloError)

        sites = DaskSites(client, made, folders, deadline=HANGS)
        sites.open()
        query = made.context.query(made.config.algorithm.init(made.start()))
        error = refusal(sites.ask, query)
        assert str(error) == f"silo {names[0]}: it could not answer; see the log at the silo"
        assert error.__cause__ is None and error.__context__ is None
        assert CANARY_TEXT not in said(error)
        sites.close()


@pytest.mark.usefixtures("policies")
def test_a_completed_answer_that_dask_computes_again_changes_nothing(tmp_path):
    """Dask runs a completed task again if the worker that holds its result dies while somebody wants the result."""
    from tasks.sites import local_cluster

    made, folders, log = guarded_experiment(tmp_path), LedgerFolders.below(tmp_path), tmp_path / "log"
    query = made.context.query(made.config.algorithm.init(made.start())).to_bytes()
    spec = made.site_spec([silo.name for silo in made.plan.problem.silos], folders, log)
    agreement = made.agreement.to_bytes()

    def answered():
        site = open_site(spec)
        try:
            site.approve(agreement)
            return site.answer(query)
        finally:
            site.close()

    with local_cluster(2) as client:
        future = client.submit(answered, pure=False)
        first = future.result(timeout=HANGS)
        (address,) = client.who_has([future])[future.key]
        # Only the result in the worker's memory is lost with it; the future is still held.
        os.kill(client.run(os.getpid)[address], signal.SIGKILL)
        client.wait_for_workers(2, timeout=HANGS)
        assert client.submit(lambda again: again, future).result(timeout=HANGS) == first
    ended = [line.split() for line in log.read_text().splitlines() if line.split()[1] == "end"]
    assert len({pid for pid, *_ in ended}) == 2 and [line[-1] for line in ended] == ["1", "1", "0", "0"]
    for source in spec.sources:
        ledger = SqliteLedger(source.name, *folders.of(source.version, source.name))
        assert [(row.phase, row.round) for row in ledger.rows(made.run)] == [(1, 1)]
        assert list(ledger.charges()) == [made.run]
        ledger.close()


def test_a_log_that_cannot_be_written_is_a_sentence(tmp_path, one, monkeypatch):
    """An OSError from an actor's call looks to Dask like a lost worker."""
    made = one("seeded", *records())
    error = refusal(Site, [made.silo], tmp_path / "nowhere" / "log")
    assert error.code == "log" and "cannot be opened" in error.sentence and error.__context__ is None
    logged = Site([made.silo], tmp_path / "log")
    logged.approve(made.agreement.to_bytes())

    def full(*_):
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr("fedcore.silo.site.os.write", full)
    error = refusal(logged.answer, made.query(np.zeros(4)).to_bytes())
    assert error.code == "log" and error.__context__ is None and made.ledger.rows("run") == []
