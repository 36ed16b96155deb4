"""A coordinator whose keys are right asks a silo's service for what its plan does not have, and gets one sentence."""

from __future__ import annotations

import json
import math
import threading
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from fedcore.accounting.calibration import Budget
from fedcore.accounting.filters import Cap
from fedcore.arrays import canonical_json
from fedcore.errors import RelayError, SiloError
from fedcore.identity.envelope import Envelope, Heading
from fedcore.identity.keys import Identity
from fedcore.relay.members import COORDINATOR
from fedcore.remote.forms import Answer, Call
from fedcore.silo.agreement import Agreement
from tasks.relay.calls import _Waiting
from tests.problems import changed
from tests.tasks.relay.remote_silos import HEART, IDENTITIES, Direct, Federation, Silo

NAME = "cleveland"


@pytest.fixture
def federation(tmp_path):
    made = Federation(tmp_path / "federation")
    yield made
    made.close()


class Caller:
    """The coordinator's calls to one silo, without a relay."""

    def __init__(self, federation: Federation) -> None:
        self.silo, self.number = federation.silos[NAME], 0

    def __call__(self, operation: str, *parts: bytes, run: str = "run", lease: int = 1) -> Answer:
        self.number += 1
        body = Call(operation, run, lease, parts).to_bytes()
        heading = Heading(HEART, COORDINATOR, NAME, run, self.number)
        answered = self.silo.service.answer(
            Envelope.made(heading, IDENTITIES[COORDINATOR], IDENTITIES[NAME].public, body).to_bytes()
        )
        self.silo.service.sent(answered)
        back = Envelope.from_bytes(answered.envelope).opened(IDENTITIES[COORDINATOR], IDENTITIES[NAME].public)
        return Answer.from_bytes(back)

    def refused(self, *call, **options) -> str:
        found = self(*call, **options)
        assert found.refusal is not None and found.body == b""
        silo, code, sentence = found.refusal
        assert silo == NAME and code != "failed" and sentence.isprintable() and len(sentence) <= 600
        return sentence


def charged(silo: Silo) -> dict[str, int]:
    """Releases of each run in the silo's ledger, each of which has one address and is charged."""
    found = {}
    for run, charge in silo.ledger.charges().items():
        rows = [(row.phase, row.round) for row in silo.ledger.rows(run)]
        assert len(set(rows)) == len(rows)
        spent = sum(event.count * (event.sensitivity / event.sigma) ** 2 for event in silo.ledger.events(run))
        assert spent <= charge.mu_squared * (1 + 1e-9)
        found[run] = len(rows)
    return found


def test_an_altered_plan_is_approved_under_no_digest(federation):
    call, agreement = Caller(federation), federation.agreement
    for share in (2.0, 0.01):
        phases = tuple(
            replace(each, shares=tuple(replace(one, sigma=one.sigma * share) for one in each.shares))
            for each in federation.plan.phases
        )
        forged = replace(federation.plan, phases=phases).digest
        assert "its own plan for run run is" in call.refused("approve", replace(agreement, plan=forged).to_bytes())
    assert "its own plan" in call.refused("approve", replace(agreement, plan="0" * 64).to_bytes())
    assert charged(call.silo) == {}


@pytest.mark.parametrize(
    "budget",
    [
        Budget(None, 1e-6),
        Budget(None, 1e-6, mechanism="discrete-gaussian"),
        Budget(3.0, 1e-6),
        Budget(3.0, 1e-6, multiplier=1e-6, mechanism="discrete-gaussian"),
    ],
    ids=["none", "none on the grid", "of a seed", "given, and tiny"],
)
def test_noise_of_none_or_of_another_kind_is_refused(federation, budget):
    """Sigma 0 in a problem that the coordinator made, under the digest of its own plan."""
    problem = changed(federation.agreement.problem, budget=budget)
    call = Caller(federation)
    try:
        plan = federation.method.plan(problem)
    except Exception:
        plan = federation.plan
    agreement = Agreement("run", problem, federation.method, federation.agreement.loss, plan.digest)
    call.refused("approve", agreement.to_bytes())
    query = federation.context.query(federation.method.init(np.zeros(4)))
    assert "no approved run of this id" in call.refused("answer", query.at((NAME,)).to_bytes())
    assert charged(call.silo) == {}


def test_a_sigma_that_is_written_into_an_agreement_is_another_form(federation):
    call = Caller(federation)
    for path, value in ((("budget", "epsilon"), 0.0), (("budget", "sigma"), 0.0), (("budget", "multiplier"), 0.0)):
        fields = json.loads(federation.agreement.to_bytes())
        fields[2][path[0]][path[1]] = value
        call.refused("approve", canonical_json(fields).encode())
    assert charged(call.silo) == {}


def test_a_second_plan_under_one_run_is_refused_and_the_first_goes_on(federation):
    call = Caller(federation)
    assert call("approve", federation.agreement.to_bytes()).refusal is None
    method = replace(federation.method, rounds=federation.method.rounds + 1)
    plan = method.plan(federation.agreement.problem)
    other = Agreement("run", federation.agreement.problem, method, federation.agreement.loss, plan.digest)
    assert "it goes on with the plan that was approved" in call.refused("approve", other.to_bytes())
    query = federation.context.query(federation.method.init(np.zeros(4))).at((NAME,))
    call.refused("answer", replace(query, plan=plan.digest).to_bytes())
    for round in (0, plan.phases[0].rounds, 2**62):
        call.refused("answer", replace(query, round=round).to_bytes())
    call.refused("answer", replace(query, phase=2).to_bytes())
    assert charged(call.silo) == {"run": 0}
    assert call("answer", query.to_bytes()).refusal is None
    assert charged(call.silo) == {"run": 1}


def test_an_answered_address_gives_its_bytes_and_nothing_about_another_model(federation):
    call = Caller(federation)
    call("approve", federation.agreement.to_bytes())
    query = federation.context.query(federation.method.init(np.zeros(4))).at((NAME,))
    first = call("answer", query.to_bytes()).body
    rng = np.random.default_rng(1)
    for w in (np.nextafter(np.zeros(4), 1), np.ones(4), *(rng.standard_normal((3, 4)))):
        sentence = call.refused("answer", replace(query, arrays={"w": w}).to_bytes())
        assert "another" in sentence or "other" in sentence
    call.silo.kill()  # a new process knows it from the ledger
    call("approve", federation.agreement.to_bytes())
    call.refused("answer", replace(query, arrays={"w": np.ones(4)}).to_bytes())
    assert call("answer", query.to_bytes()).body == first
    assert charged(call.silo) == {"run": 1}


@pytest.mark.parametrize(
    "w",
    [np.full(4, value) for value in (np.nan, np.inf, 1e308, -1e300, 1e12)]
    + [np.zeros(0), np.zeros(3), np.zeros((4, 1)), np.zeros(2**20)],
)
def test_queries_that_overflow_are_refused_before_a_record_is_read(federation, w, monkeypatch):
    call = Caller(federation)
    call("approve", federation.agreement.to_bytes())
    monkeypatch.setattr(type(call.silo.site._silos[NAME]), "answer", lambda *_: pytest.fail("a record was read"))
    query = federation.context.query(federation.method.init(np.zeros(4))).at((NAME,))
    made = replace(query, arrays={"w": w})
    call.refused("answer", made.to_bytes())
    assert charged(call.silo) == {"run": 0}


def test_runs_that_begin_together_at_the_cap_are_charged_within_it(tmp_path, federation):
    """Ten runs' approvals at once, of which the cap admits three; whoever was refused gets no answer."""
    one = federation.plan.charge(NAME).mu_squared
    cap = Cap(1.0, 1e-6)
    low, high = 0.01, 1000.0
    for _ in range(60):  # the epsilon of a cap for three runs and a half
        middle = (low + high) / 2
        low, high = (middle, high) if Cap(middle, 1e-6)._largest_mu_squared() < 3.5 * one else (low, middle)
    cap = Cap(high, 1e-6)
    silo = Silo(NAME, tmp_path / "capped", cap)
    refusals: dict[str, str] = {}
    start = threading.Barrier(10)

    def begin(run: str) -> None:
        start.wait()
        try:
            silo.site.approve(replace(federation.agreement, run=run).to_bytes())
            refusals[run] = ""
        except SiloError as error:
            refusals[run] = error.sentence

    threads = [threading.Thread(target=begin, args=(f"run-{number}",)) for number in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    admitted = [run for run, refused in refusals.items() if not refused]
    assert len(admitted) == 3 and all("cap" in refused for refused in refusals.values() if refused)
    query = federation.context.query(federation.method.init(np.zeros(4))).at((NAME,))
    for run in refusals:
        if run in admitted:
            silo.site.answer(replace(query, run=run).to_bytes())
        else:
            with pytest.raises(SiloError):
                silo.site.answer(replace(query, run=run).to_bytes())
    assert charged(silo) == dict.fromkeys(admitted, 1)
    assert sum(each.mu_squared for each in silo.ledger.charges().values()) <= cap._largest_mu_squared()
    silo.close()


@pytest.mark.parametrize("days", [2.0, -2.0])
def test_a_clock_that_is_off_is_named_and_costs_nothing(federation, days, caplog):
    """The silo's clock; the relay's and the coordinator's are right."""
    silo = federation.silos[NAME]
    silo.clock = lambda: datetime.now(UTC) + timedelta(days=days)
    federation.serve()
    if days > 0:  # a clock that runs ahead takes every envelope: its sender's numbers grow all the same
        federation.train(federation.backend(lease=1))
        federation.stop()
        assert charged(silo) == {"run": 5}
        return
    with pytest.raises(SiloError, match=f"silo {NAME}: no answer within 3 s"):
        federation.backend(deadline=3.0).open()
    assert "more than a day ahead of this clock; set the clocks right" in caplog.text
    assert charged(silo) == {}
    silo.clock = lambda: datetime.now(UTC)
    federation.train(federation.backend(lease=2))
    federation.stop()
    assert charged(silo) == {"run": 5}


def test_a_coordinator_from_the_future_is_refused_by_the_relay_in_a_sentence(federation, monkeypatch):
    federation.serve()
    backend = federation.backend()
    now = time.time
    backend._calls._numbers[NAME]._clock = lambda: now() + 2 * 86400
    with pytest.raises(SiloError, match="more than a day ahead of this clock; set the clocks right"):
        backend.open()
    assert charged(federation.silos[NAME]) == {}


def test_a_thief_of_a_silos_card_gets_and_leaves_nothing(federation):
    """A card is public: names, counts, schema and public keys. Whoever has it has none of the private keys."""
    thief, backend = Identity.new(), federation.backend()
    stolen = Direct(federation.relay, NAME, identity=thief)
    waiting = {NAME: _Waiting([backend._call("approve", federation.agreement.to_bytes())])}
    backend._calls._send(waiting)
    for act in (stolen.collect, lambda: stolen.deposit(b"x"), lambda: stolen.taken([b"x"])):
        with pytest.raises(RelayError, match="not that of its sender"):
            act()
    # A relay that helps the thief hands it the question, and its forged answer to the driver.
    (asked,) = Direct(federation.relay, NAME).collect("run")
    question = Envelope.from_bytes(asked)
    with pytest.raises(ValueError, match="not sealed to this key"):
        question.opened(thief, IDENTITIES[COORDINATOR].public)
    heading = Heading(HEART, NAME, COORDINATOR, "run", question.heading.sequence)
    body = Answer(question.digest, b'["cleveland"]').to_bytes()
    forged, true = (
        Envelope.made(heading, each, IDENTITIES[COORDINATOR].public, body).to_bytes()
        for each in (thief, IDENTITIES[NAME])
    )
    assert backend._calls._answer(forged, waiting) is None
    assert backend._calls._answer(true, waiting) is not None
    assert all(charged(silo) == {} for silo in federation.silos.values())


def test_a_silo_refuses_in_its_own_name_and_in_one_line(federation):
    """Its sentence is shown to the coordinator: no other silo's name, no second line, no command to a terminal."""

    def act(call: Call) -> bytes:
        error = SiloError("virginia", "plan", "")
        error.sentence = "first\nwaiting for others\x1b[2J"  # as a service writes it that is another program
        raise error

    federation.silos["hungary"].service._called = act
    federation.serve()
    with pytest.raises(SiloError) as found:
        federation.backend().open()
    assert str(found.value) == "silo hungary: first?waiting for others?[2J"


@pytest.mark.parametrize(
    "account",
    [
        [NAME, 12, 1, math.nan, 1e-6, 1, False],
        [NAME, 12, 1, math.inf, 1e-6, 1, False],
        [NAME, 12, 1, -1.0, 1e-6, 1, False],
        [NAME, 12, -1, 1.0, 1e-6, 1, False],
        [NAME, 2**70, 1, 1.0, 1e-6, 1, False],
        ["hungary", 12, 1, 1.0, 1e-6, 1, False],
    ],
)
def test_an_account_that_is_none_is_refused_by_its_silos_name(federation, account):
    called = federation.silos[NAME].service._called
    federation.silos[NAME].service._called = lambda call: (
        json.dumps([account]).encode() if call.operation == "accounts" else called(call)
    )
    federation.serve()
    backend = federation.backend()
    backend.open()
    with pytest.raises(SiloError, match=f"silo {NAME}: it sent something else than its account"):
        backend.accounts("run")
