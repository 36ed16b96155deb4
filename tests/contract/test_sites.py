"""Refusals and repetitions of sites, for each way of asking them."""

import dataclasses

import numpy as np
import pytest

from fedcore.data.records import Records
from fedcore.errors import SiloError
from fedcore.ledger.memory import MemoryLedger
from fedcore.ledger.sqlite import SqliteLedger
from fedcore.messages import Query
from fedcore.planning.problem import SiloFacts
from fedcore.silo.keys import SecretKeys
from fedcore.silo.private_silo import PrivateSilo
from fedcore.silo.site import Site
from tests.problems import changed
from tests.releases import columns
from tests.wire import on_the_wire


def refused(ask, query):
    with pytest.raises(SiloError) as caught:
        ask(query)
    return caught.value.code


def test_fold_refuses_a_wrong_order_a_missing_silo_and_answers_to_another_query(asker, federate, toy):
    federation = federate(asker, toy)
    context, state = federation.context, federation.start
    query = context.query(state)
    releases = federation.ask(query)
    for wrong, silo in ((releases[::-1], None), (releases[:-1], "cedar"), (releases[1:], "ash"), ([], "ash")):
        with pytest.raises(SiloError) as caught:
            context.fold(state, query, columns(wrong))
        assert caught.value.code == "no-answer" and caught.value.silo == (silo or caught.value.silo)
    with pytest.raises(SiloError) as caught:
        context.fold(state, query, columns([*releases, releases[0]]))
    for changes in ({"round": 2}, {"phase": 2}, {"query_digest": bytes(32)}):
        with pytest.raises(SiloError) as caught:
            context.fold(state, query, columns([releases[0]._replace(**changes), *releases[1:]]))
        assert (caught.value.silo, caught.value.code) == ("ash", "answer")
    assert context.fold(state, query, releases).round == 2


@pytest.mark.parametrize("kind", ["memory", "sqlite", "restored", "reopened"])
def test_a_repeated_query_repeats_its_bytes_and_another_model_is_refused(asker, federate, toy, tmp_path, kind):
    durable = kind in ("sqlite", "reopened")

    def ledger(name):
        if not durable:
            return MemoryLedger(name)
        return SqliteLedger(name, tmp_path / f"{name}.sqlite", tmp_path / f"{name}.anchor")

    federation = federate(asker, toy, ledger=ledger)
    history = [(query, releases) for query, releases, _ in federation.play()]
    rows = {name: [row[:5] for row in silo.ledger.rows("run")] for name, silo in federation.silos.items()}
    if kind == "reopened":
        federation.sites[0].close()
    if kind in ("restored", "reopened"):
        federation = federate(asker, toy, ledger=ledger)
        federation.sites[0].restore("run", [r.receipt for _, releases in history for r in releases])
    for query, releases in (history[-1], *history):  # the newest first, while its bytes are still held
        again = federation.ask(Query.from_bytes(query.to_bytes()))
        assert [r[:5] for r in again] == [r[:5] for r in releases]
        assert [r.payload.tobytes() for r in again] == [r.payload.tobytes() for r in releases]
        other = dataclasses.replace(query, arrays={k: np.nextafter(v, 0.1) for k, v in query.arrays.items()})
        assert refused(federation.ask, other) == "replayed"
    assert {name: [row[:5] for row in s.ledger.rows("run")] for name, s in federation.silos.items()} == rows
    if durable:
        assert all(silo.computed == (0 if kind == "reopened" else len(history)) for silo in federation.silos.values())
        federation.sites[0].close()


def test_what_is_not_in_the_approved_plan_is_refused_before_records_are_read(asker, federate, toy):
    federation = federate(asker, toy)
    good = federation.context.query(federation.start)
    rounds, phases = federation.plan.phases[0].rounds, len(federation.plan.phases)
    name = next(iter(good.arrays))

    def array(value):
        return {**good.arrays, name: np.asarray(value)}

    wrong = {
        "run": ("plan", {"run": "unknown"}),
        "plan": ("plan", {"plan": "0" * 64}),
        "past the phase": ("plan", {"round": rounds + 1}),
        "round 0": ("query", {"round": 0}),
        "round -1": ("query", {"round": -1}),
        "phase 0": ("query", {"phase": 0}),
        "past the last phase": ("plan", {"phase": phases + 1}),
        "half a round": ("query", {"round": 1.5}),
        "half a phase": ("query", {"phase": 1.5}),
        "true": ("query", {"round": True}),
        "outside of the domain": ("query", {"arrays": array([0, 0, 0, federation.plan.problem.objective.diameter])}),
        "nan": ("query", {"arrays": array([np.nan, 0, 0, 0])}),
        "infinite": ("query", {"arrays": array([0, -np.inf, 0, 0])}),
        "huge": ("query", {"arrays": array([0, 0, 0, -1e12])}),
        "short": ("query", {"arrays": array(np.zeros(3))}),
        "long": ("query", {"arrays": array(np.zeros(5))}),
        "column": ("query", {"arrays": array(np.zeros((4, 1)))}),
        "scalar": ("query", {"arrays": array(0.0)}),
        "float32": ("query", {"arrays": array(np.zeros(4, np.float32))}),
        "a word": ("query", {"arrays": {**good.arrays, name: np.frombuffer(b"four", "S1")}}),
        "complex": ("query", {"arrays": array(np.zeros(4, complex))}),
        "extra array": ("query", {"arrays": {**good.arrays, "more": np.zeros(4)}}),
        "no array": ("query", {"arrays": {}}),
        "another array": ("query", {"arrays": {"more": np.zeros(4)}}),
        "an array of its own": ("query", {"own": {silo: {"more": np.zeros(4)} for silo in good.participants}}),
        "a stranger's array": ("query", {"own": {**good.own, "dogwood": {"correction": np.zeros(4)}}}),
        "asked twice": ("query", {"participants": good.participants * 2}),
    }
    found = {}
    for case, (_, changes) in wrong.items():
        try:
            federation.sites[0]._site.answer(on_the_wire(dataclasses.replace(good, **changes)))
            found[case] = "answered"
        except SiloError as error:
            found[case] = error.code
            assert "-1e12" not in str(error)
        except Exception as error:
            found[case] = repr(error)
    assert found == {case: code for case, (code, _) in wrong.items()}
    assert all(silo.computed == 0 and silo.ledger.rows("run") == [] for silo in federation.silos.values())
    assert len(federation.ask(good)) == 3


def test_rounds_between_the_planned_ones_are_no_way_to_more_answers(asker, federate, toy):
    """1.25, 1.5, ... are not rounds of any plan: each answer would be an uncounted release."""
    federation = federate(asker, toy)
    good = federation.context.query(federation.start)
    answered = []
    for round in (1.25, np.float64(1.5), 1.75):
        try:
            answered += federation.sites[0]._site.answer(on_the_wire(dataclasses.replace(good, round=round)))
        except SiloError:
            continue
    assert answered == []


def test_a_run_that_was_not_approved_is_refused(asker, federate, toy):
    federation = federate(asker, toy, approve=False)
    assert refused(federation.ask, federation.context.query(federation.start)) == "plan"
    (site,) = federation.sites
    claimed = dataclasses.replace(federation.agreement, plan="0" * 64)
    with pytest.raises(SiloError, match="its own plan"):
        site._site.approve(claimed.to_bytes())
    site.open()
    other = dataclasses.replace(federation.agreement, problem=changed(federation.agreement.problem, clip=2.0))
    other = dataclasses.replace(other, plan=asker.plan(other.problem).digest)
    with pytest.raises(SiloError) as caught:  # the run's id stands for one plan, for ever
        site._site.approve(other.to_bytes())
    assert caught.value.code == "plan"


@pytest.mark.parametrize("claim", [-1, 1])
def test_a_wrong_claim_about_a_silos_records_is_refused(asker, federate, toy, claim):
    federation = federate(asker, toy, approve=False)
    problem = federation.agreement.problem
    silos = tuple(SiloFacts(s.name, s.n + claim * (s.name == "birch")) for s in problem.silos)
    lie = dataclasses.replace(problem, silos=silos)
    agreement = dataclasses.replace(federation.agreement, problem=lie, plan=asker.plan(lie).digest)
    with pytest.raises(SiloError) as caught:
        federation.sites[0]._site.approve(agreement.to_bytes())
    assert (caught.value.silo, caught.value.code) == ("birch", "size")
    wide = changed(problem, dim=5)
    agreement = dataclasses.replace(federation.agreement, problem=wide, plan=asker.plan(wide).digest)
    with pytest.raises(SiloError) as caught:
        federation.sites[0]._site.approve(agreement.to_bytes())
    assert caught.value.code == "width"


def test_a_silo_that_is_not_in_the_plan_refuses(asker, federate, toy):
    federation = federate(asker, toy)
    stranger = PrivateSilo("dogwood", Records(*toy["ash"]), SecretKeys(b"key"), MemoryLedger("dogwood"))
    with pytest.raises(SiloError) as caught:
        Site([stranger]).approve(federation.agreement.to_bytes())
    assert (caught.value.silo, caught.value.code) == ("dogwood", "size")
