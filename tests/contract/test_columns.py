"""A site of simulated silos answers in columns with the bits, ledgers and refusals that each silo has alone."""

import dataclasses

import numpy as np
import pytest

from fedcore.errors import SiloError
from fedcore.ledger.blocks import Blocks
from fedcore.ledger.rows import RoundLog, Rows
from fedcore.limits import LONGEST_ADDRESS
from fedcore.messages import Releases
from fedcore.silo.columns.matrix_view import MatrixView
from fedcore.silo.columns.members import Members
from fedcore.silo.keys import SecretKeys, SeededKeys
from tests.contract.methods import named


@pytest.fixture
def counted(monkeypatch):
    """Rounds that were answered in columns."""
    answers, rounds = Members.answers, []

    def noted(self, query, phase, whole):
        rounds.append((query.phase, query.round))
        return answers(self, query, phase, whole)

    monkeypatch.setattr(Members, "answers", noted)
    return rounds


@pytest.fixture
def mbsgd():
    return named("mbsgd")


def test_columns_have_the_bits_and_the_ledgers_of_each_silo_alone(asker, federate, toy, counted):
    together, alone = federate(asker, toy), federate(asker, toy, sites=len(toy))
    found = [(query, list(releases)) for query, releases, _ in together.play()]
    schedules = [together.plan.phases[query.phase - 1].at(query.round).schedule for query, _ in found]
    joint = [not (schedule.at_most_once or schedule.in_turn) for schedule in schedules]
    expected = [(query.phase, query.round) for (query, _), columns in zip(found, joint, strict=True) if columns]
    assert counted == expected
    counted.clear()
    for (query, releases), (_, single, _) in zip(found, alone.play(), strict=True):
        assert [each[:5] for each in releases] == [each[:5] for each in single]
        assert [each.payload.tobytes() for each in releases] == [each.payload.tobytes() for each in single]
        for silo in query.participants:
            ledgers = together.silos[silo].ledger, alone.silos[silo].ledger
            mine, other = (ledger.find("run", query.phase, query.round) for ledger in ledgers)
            assert mine[:5] == other[:5]
    assert not counted
    for silo in toy:
        assert together.silos[silo].ledger.rows("run") == alone.silos[silo].ledger.rows("run")
        assert together.silos[silo].computed == alone.silos[silo].computed


def test_silos_with_secret_keys_answer_by_themselves(asker, federate, toy, counted):
    for _ in federate(asker, toy, key=lambda name: SecretKeys(name.encode().ljust(32))).play():
        pass
    assert not counted


@pytest.mark.parametrize("participants, where", [(3, (RoundLog, "append")), (2, (Rows, "put"))])
def test_a_round_that_was_interrupted_is_repeated(federate, toy, mbsgd, counted, monkeypatch, participants, where):
    whole = federate(mbsgd, toy, participants=participants).play()
    expected = [(query, list(releases)) for query, releases, _ in whole]
    counted.clear()
    federation = federate(mbsgd, toy, participants=participants)
    _, _, state = next(federation.play())
    question = federation.context.query(state)
    before = {name: len(silo.ledger.rows("run")) for name, silo in federation.silos.items()}
    store, calls = getattr(*where), []

    def interrupted(self, rows):
        calls.append(rows)
        if len(calls) == 4 - participants:  # the only call for all silos; the second silo's call
            raise KeyboardInterrupt
        return store(self, rows)

    with monkeypatch.context() as patch:
        patch.setattr(*where, interrupted)
        with pytest.raises(KeyboardInterrupt):
            federation.ask(question)
    after = {name: len(silo.ledger.rows("run")) for name, silo in federation.silos.items()}
    halfway = {question.participants[0]} if participants == 2 else set()
    assert after == {name: count + (name in halfway) for name, count in before.items()}
    for query, releases in expected[1:3]:
        found = federation.ask(question)
        assert (question.to_bytes(), found.silos) == (query.to_bytes(), query.participants)
        assert [each[:5] for each in found] == [each[:5] for each in releases]
        assert [each.payload.tobytes() for each in found] == [each.payload.tobytes() for each in releases]
        state = federation.context.fold(state, question, found)
        question = federation.context.query(state)
    assert counted == [(1, round) for round in ((1, 2, 2, 3) if participants == 3 else (1, 2, 3))]


def test_closed_runs_and_older_leases_are_refused(federate, toy, mbsgd):
    federation = federate(mbsgd, toy)
    _, _, state = next(federation.play())
    question = federation.context.query(state)
    first = next(iter(federation.silos.values()))
    first.ledger.close_run("run", 0.0)
    with pytest.raises(SiloError) as caught:
        federation.ask(question)
    assert (caught.value.silo, caught.value.code) == (first.name, "closed")


@pytest.mark.parametrize("other", ["another model", "an earlier round"])
def test_another_question_at_an_answered_address_is_refused(federate, toy, mbsgd, other):
    federation = federate(mbsgd, toy)
    history = [query for query, _, _ in federation.play()]
    query = history[-1] if other == "another model" else history[0]
    changed = {name: np.nextafter(array, 0.1) for name, array in query.arrays.items()}
    with pytest.raises(SiloError) as caught:
        federation.ask(dataclasses.replace(query, arrays=changed))
    assert caught.value.code == "replayed"


def test_a_method_of_columns_asks_by_the_plan(federate, toy, mbsgd, monkeypatch):
    for step, sentence in (
        (lambda sent, silo: silo.ask("moments"), "asked for moments"),
        (lambda sent, silo: silo.ask("gradient", sent["w"])[:1], "messages are not"),
        (lambda sent, silo: silo.ask("gradient", sent["w"]) + silo.ask("gradient", sent["w"]), "asked 2 times"),
        (lambda sent, silo: silo.address, "needs no silo's name"),
    ):
        monkeypatch.setattr(type(mbsgd), "silo_step", lambda self, sent, silo, step=step: step(sent, silo))
        with pytest.raises(SiloError, match=sentence):
            next(federate(mbsgd, toy).play())


def test_no_answer_follows_the_round(federate, toy, mbsgd, monkeypatch):
    held = []
    monkeypatch.setattr(
        type(mbsgd), "silo_step", lambda self, sent, silo: held.append(silo) or silo.ask("gradient", sent["w"])
    )
    next(federate(mbsgd, toy).play())
    (view,) = held
    assert isinstance(view, MatrixView)
    with pytest.raises(SiloError, match="after its round"):
        view.ask("gradient", np.zeros(4))


def test_a_seeded_silo_beside_a_guarded_one_answers_alone(federate, toy, mbsgd, counted):
    first = next(iter(toy))
    keys = {name: SecretKeys(b"k" * 32) if name == first else SeededKeys(0) for name in toy}
    seeded = federate(mbsgd, toy)
    for (_, mixed, _), (_, releases, _) in zip(
        federate(mbsgd, toy, key=keys.__getitem__).play(), seeded.play(), strict=False
    ):
        assert [each.payload.tobytes() for each in mixed[1:]] == [each.payload.tobytes() for each in releases[1:]]
        assert mixed[0].payload.tobytes() != releases[0].payload.tobytes()
        break
    assert counted == [(1, 1)]


def test_a_round_that_was_stored_as_a_signal_came_is_repeated_and_charged_once(federate, toy, mbsgd, monkeypatch):
    whole = federate(mbsgd, toy)
    expected = [list(releases) for _, releases, _ in whole.play()]
    federation = federate(mbsgd, toy)
    _, _, state = next(federation.play())
    question, store = federation.context.query(state), Blocks.append

    def stored(self, record):
        store(self, record)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Blocks, "append", stored)
        with pytest.raises(KeyboardInterrupt):
            federation.ask(question)
    found = federation.ask(question)
    assert [each.payload.tobytes() for each in found] == [each.payload.tobytes() for each in expected[1]]
    for name, silo in federation.silos.items():
        assert [row[:5] for row in silo.ledger.rows("run")] == [r[:5] for r in whole.silos[name].ledger.rows("run")[:2]]
        assert len(silo.ledger.events("run")) == 2


def test_rows_that_a_ledger_was_taking_from_the_log_are_counted_once(federate, toy, mbsgd, monkeypatch):
    federation = federate(mbsgd, toy)
    for _ in federation.play():
        pass
    ledger = next(iter(federation.silos.values())).ledger
    rows, events, put = ledger.rows("run"), ledger.events("run"), Rows.put

    def interrupted(self, row, number=0):
        put(self, row, number)
        if row.round == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Rows, "put", interrupted)
        with pytest.raises(KeyboardInterrupt):
            ledger.restore("run", [])
    assert [row[:5] for row in ledger.rows("run")] == [row[:5] for row in rows] and ledger.events("run") == events
    ledger.restore("run", [])
    assert [row[:5] for row in ledger.rows("run")] == [row[:5] for row in rows] and ledger.events("run") == events


def test_a_site_that_ends_under_way_answers_with_a_code(federate, toy, mbsgd, monkeypatch):
    federation = federate(mbsgd, toy)
    last = list(federation.silos.values())[-1]

    def ending(self, sent, silo):
        last.ledger.close()
        return silo.ask("gradient", sent["w"])

    monkeypatch.setattr(type(mbsgd), "silo_step", ending)
    with pytest.raises(SiloError) as caught:
        next(federation.play())
    assert caught.value.code == "failed"
    assert all(not silo.ledger.rows("run") for silo in federation.silos.values())


@pytest.mark.parametrize("end", [b" " * LONGEST_ADDRESS, b"]" * LONGEST_ADDRESS])
def test_an_address_beyond_its_bound_is_refused(end):
    data = Releases(1, 2, ("ash",), [b"q" * 32], np.zeros((1, 3))).to_bytes()
    address, rest = data.split(b"\n", 1)
    assert Releases.from_bytes(data, 3).silos == ("ash",)
    with pytest.raises(ValueError, match="are more than"):
        Releases.from_bytes(address + end + b"\n" + rest, 3)
