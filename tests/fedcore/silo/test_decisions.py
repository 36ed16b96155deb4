"""Decisions of a silo's operator: on single runs, bound to their terms, and a pause. Nothing is charged before."""

from __future__ import annotations

import json

import numpy as np
import pytest

from fedcore.accounting.calibration import Budget
from fedcore.algorithms.mbsgd import Mbsgd
from fedcore.data.records import Records
from fedcore.errors import InputError, SiloError
from fedcore.federation.rounds import RunContext
from fedcore.ledger.memory import MemoryLedger
from fedcore.losses import Squared
from fedcore.planning.problem import SiloFacts
from fedcore.randomness import driver_key
from fedcore.silo.agreement import Agreement, own_plan, terms
from fedcore.silo.keys import SecretKeys
from fedcore.silo.policies.decisions import MOST_ASKED, Decisions
from fedcore.silo.policies.policy import Policy
from fedcore.silo.private_silo import PrivateSilo
from fedcore.silo.site import Site
from tests.policies import ALL
from tests.problems import problem_of

N = 12


class Hospital:
    """A guarded silo whose policy leaves runs to its operator, and a driver's calls."""

    def __init__(self, folder, decides="operator", ledger=None):
        self.decisions = Decisions(folder / "decisions", "ash")
        self.ledger = ledger or MemoryLedger("ash")
        rng = np.random.default_rng(4)
        records = Records(rng.standard_normal((N, 3)), rng.standard_normal(N))
        policy = Policy.model_validate(ALL | {"decides": decides})
        self.silo = PrivateSilo(
            "ash", records, SecretKeys(b"k" * 32), self.ledger, None, True, policy, decisions=self.decisions
        )
        self.site = Site([self.silo])

    def agreement(self, run="first", rounds=3):
        budget = Budget(3.0, 1e-6, mechanism="discrete-gaussian")
        problem = problem_of((SiloFacts("ash", N),), 3, 1.0, 1.0, 1e6, 1, budget)
        method = Mbsgd(rounds=rounds, step=0.1)
        return Agreement(run, problem, method, Squared(), method.plan(problem).digest)

    def approve(self, agreement):
        return self.site.approve(agreement.to_bytes())

    def question(self, agreement, round=1):
        plan = own_plan(agreement, None)[0]
        context = RunContext(agreement.run, plan, agreement.method, driver_key(0, 0, agreement.method.name))
        state = agreement.method.init(np.zeros(3))
        for _ in range(1, round):
            state = context.fold(state, query := context.query(state), self.ask(query))
        return context.query(state)

    def ask(self, query):
        from fedcore.messages import Releases

        return Releases.from_bytes(self.site.answer(query.to_bytes()), 3)


def digest(agreement):
    return terms(agreement.plan, agreement.method, agreement.loss)


@pytest.fixture
def hospital(tmp_path):
    return Hospital(tmp_path)


def test_a_run_waits_for_its_operator_and_is_charged_nothing_before(hospital):
    agreement = hospital.agreement()
    for _ in range(3):
        with pytest.raises(SiloError, match="has not decided yet on run first") as caught:
            hospital.approve(agreement)
        assert caught.value.code == "undecided" and not hospital.ledger.is_run("first")
    assert [Agreement.from_bytes(data) for data in hospital.decisions.asked()] == [agreement]
    hospital.decisions.decide("first", digest(agreement))
    assert hospital.decisions.asked() == [] and hospital.approve(agreement) == ["ash"]
    assert len(hospital.ask(hospital.question(agreement))) == 1


def test_an_approval_is_of_one_plan_and_another_under_the_same_name_waits_again(hospital):
    hospital.decisions.decide("first", digest(hospital.agreement(rounds=3)))
    with pytest.raises(SiloError, match="not decided") as caught:
        hospital.approve(hospital.agreement(rounds=4))
    assert caught.value.code == "undecided" and not hospital.ledger.is_run("first")
    assert hospital.approve(hospital.agreement(rounds=3)) == ["ash"]


def test_a_refused_run_does_not_begin_and_one_that_has_begun_gets_no_new_answer(hospital):
    agreement = hospital.agreement()
    hospital.decisions.decide("first", None)
    with pytest.raises(SiloError, match="has refused run first") as caught:
        hospital.approve(agreement)
    assert caught.value.code == "policy" and hospital.decisions.asked() == []

    hospital.decisions.decide("first", digest(agreement))
    hospital.approve(agreement)
    first = hospital.question(agreement)
    stored = hospital.ask(first).to_bytes()
    second = hospital.question(agreement, round=2)
    hospital.decisions.decide("first", None)
    with pytest.raises(SiloError, match="has refused run first"):
        hospital.ask(second)
    assert hospital.ask(first).to_bytes() == stored, "what was released is sent again"
    hospital.decisions.withdraw("first")
    with pytest.raises(SiloError, match="not decided"):
        hospital.ask(second)
    hospital.decisions.decide("first", digest(agreement))
    assert len(hospital.ask(second)) == 1


def test_a_run_from_before_the_policy_asked_for_an_operator_waits_for_one(tmp_path):
    before = Hospital(tmp_path, decides="policy")
    agreement = before.agreement()
    before.approve(agreement)
    first = before.question(agreement)
    stored = before.ask(first).to_bytes()
    second = before.question(agreement, round=2)
    hospital = Hospital(tmp_path, ledger=before.ledger)
    assert hospital.approve(agreement) == ["ash"], "what was released may be sent again"
    assert hospital.ask(first).to_bytes() == stored
    with pytest.raises(SiloError, match="has not decided"):
        hospital.ask(second)
    assert [Agreement.from_bytes(data) for data in hospital.decisions.asked()] == [agreement]
    hospital.decisions.decide("first", digest(agreement))
    assert len(hospital.ask(second)) == 1


@pytest.mark.parametrize("decides", ["operator", "policy"])
def test_a_paused_silo_answers_nothing_new(tmp_path, decides):
    hospital = Hospital(tmp_path, decides)
    agreement = hospital.agreement()
    hospital.decisions.decide("first", digest(agreement))
    hospital.approve(agreement)
    first = hospital.question(agreement)
    stored = hospital.ask(first).to_bytes()
    second = hospital.question(agreement, round=2)
    hospital.decisions.pause(True)
    for act in (lambda: hospital.ask(second), lambda: hospital.approve(hospital.agreement("second"))):
        with pytest.raises(SiloError, match="has paused it") as caught:
            act()
        assert caught.value.code == "paused"
    assert hospital.ask(first).to_bytes() == stored and not hospital.ledger.is_run("second")
    hospital.decisions.pause(False)
    assert len(hospital.ask(second)) == 1


def test_a_policy_that_decides_alone_asks_nobody_and_keeps_its_digest(tmp_path):
    hospital = Hospital(tmp_path, decides="policy")
    assert hospital.approve(hospital.agreement()) == ["ash"] and hospital.decisions.asked() == []
    assert "decides" not in json.loads(Policy.model_validate(ALL).text)
    assert Policy.model_validate(ALL).digest != Policy.model_validate(ALL | {"decides": "operator"}).digest


@pytest.mark.parametrize(
    "content",
    [b"", b"{}", b'["first", "ab", "now"]', b'["second", null, "now"]', b'["first", true, "now"]', b"\xff" * 9],
)
def test_a_decision_that_cannot_be_read_refuses(hospital, content):
    agreement = hospital.agreement()
    hospital.decisions.decide("first", digest(agreement))
    (path,) = (hospital.decisions.folder / "decided").iterdir()
    path.write_bytes(content)
    with pytest.raises(SiloError, match="cannot be read"):
        hospital.approve(agreement)
    with pytest.raises(InputError, match="decide again"):
        hospital.decisions.verdict("first")
    assert not hospital.ledger.is_run("first")


def test_a_coordinator_that_invents_runs_does_not_fill_the_disk(hospital):
    for number in range(MOST_ASKED):
        with pytest.raises(SiloError, match="has not decided"):
            hospital.approve(hospital.agreement(f"run {number}"))
    with pytest.raises(SiloError, match=f"{MOST_ASKED} runs wait"):
        hospital.approve(hospital.agreement("one more"))
    with pytest.raises(SiloError, match="has not decided"):  # a known one is replaced
        hospital.approve(hospital.agreement("run 3", rounds=4))
    assert len(hospital.decisions.asked()) == MOST_ASKED


def test_a_process_without_an_operator_refuses_what_asks_for_one(tmp_path):
    hospital = Hospital(tmp_path)
    policy = Policy.model_validate(ALL | {"decides": "operator"})
    records = Records(np.zeros((N, 3)), np.zeros(N))
    silo = PrivateSilo("ash", records, SecretKeys(b"k" * 32), MemoryLedger("ash"), None, True, policy)
    with pytest.raises(SiloError, match="in a service only"):
        Site([silo]).approve(hospital.agreement().to_bytes())
