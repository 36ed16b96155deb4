"""Plans, methods and charges that a silo refuses."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from fedcore.accounting.events import GaussianRelease
from fedcore.accounting.filters import Cap, Charge
from fedcore.algorithms import Mbsgd
from fedcore.data.records import Records
from fedcore.ledger.ledger import payload_digest
from fedcore.ledger.memory import MemoryLedger
from fedcore.losses import Squared
from fedcore.planning.phase import Phase
from fedcore.planning.plan import Plan
from fedcore.silo.keys import SecretKeys
from fedcore.silo.private_silo import PrivateSilo
from fedcore.silo.site import Site
from tests.faults.one_silo import KINDS, One, records, refusal
from tests.gaussian_curve import epsilon_by_hand, mu_by_hand

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
    query = dataclasses.replace(made.query(np.zeros(4), 2), plan=forged.digest)
    assert refusal(made.answer, query).code == "plan"
    assert len(made.ledger.rows("run")) == 1


UNKNOWN = {"mechanism": "laplace", "adjacency": "add-remove", "sampling": "shuffled", "rate": 0.5, "count": 0}


@pytest.mark.parametrize("field", UNKNOWN)
def test_a_plan_with_an_event_that_nobody_can_account_is_not_charged_as_something_else(one, monkeypatch, field):
    event = dataclasses.replace(GaussianRelease(0, 20, 0.1, 1.0), **{field: UNKNOWN[field]})
    with pytest.raises(ValueError):
        Charge.of([event], 1e-5)
    made = one("seeded", *records(), approve=False)
    monkeypatch.setattr(Plan, "charged_events", lambda plan, silo: [event])
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
    """A method that repeats, in a later round, the question of an earlier round."""

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
    """Values computed from a noised answer only are as private as the answer; the ledger stores the sent bytes."""
    made, control = one("seeded", *records()), one("seeded", *records())
    answer = control.ask(np.zeros(4))
    monkeypatch.setattr(Mbsgd, "silo_step", lambda self, sent, silo: 3.0 * silo.ask("gradient", sent["w"])[::-1])
    sent = made.ask(np.zeros(4))
    np.testing.assert_array_equal(sent, 3.0 * answer[::-1])
    (row,) = made.ledger.rows("run")
    assert (made.ledger.find("run", 1, 1).payload, row.payload_digest) == payload_digest(sent)
    assert made.ask(np.zeros(4)).tobytes() == sent.tobytes()


# Caps


class Watched(np.ndarray):
    """Features that record every access to their values, and allow access to their shape."""

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
    second = PrivateSilo(
        "ash", Records(X.view(Watched), y), SecretKeys(b"k" * 32), first.ledger, cap, kind == "guarded"
    )
    error = refusal(Site([second]).approve, dataclasses.replace(first.agreement, run="second").to_bytes())
    assert error.silo == "ash" and error.code == "cap"
    for part in ("its cap of epsilon 1.4 at delta 1e-05 (gdp)", "left (runs so far: 1)", "run second asks for 1 at"):
        assert part in error.sentence
    # By the plain formula: squares of mu add up, and what 1.4 leaves beside a run at 1 is less than 1.
    left = epsilon_by_hand(math.sqrt(mu_by_hand(1.4, 1e-5) ** 2 - mu_by_hand(1.0, 1e-5) ** 2), 1e-5)
    assert 0.1 < left < 1 and f" has {math.floor(left * 1e4) / 1e4} left" in error.sentence  # never more than that
    assert Watched.looked == []
    assert first.ledger.charges() == charged
    # What was done stays usable: the run that was admitted goes on, and repeats what it sent.
    assert first.ask(np.zeros(4)).tobytes() == answer.tobytes()
    first.ask(np.ones(4), 2)
    assert [row.round for row in first.ledger.rows("first")] == [1, 2]
    # The control: a run that is admitted does look.
    control = PrivateSilo(
        "ash", Records(X.view(Watched), y), SecretKeys(b"k" * 32), MemoryLedger("ash"), None, kind == "guarded"
    )
    Site([control]).approve(first.agreement.to_bytes())
    assert Watched.looked != []
    first.close()
