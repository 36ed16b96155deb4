"""Bits that stopped runs rely on: a changed bit needs a raise of the version that binds checkpoints.

For an intended change: raise ARITHMETIC (or FORMAT) in `fedcore/experiment/stored/binding.py`, then `python -m
tests.contract.golden`. These tests find changes that are not intended.
"""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest

from fedcore.algorithms import METHODS
from fedcore.data.records import Records
from fedcore.experiment.stored import binding
from fedcore.losses import LOSSES, Logistic
from fedcore.mechanisms import gaussian
from fedcore.mechanisms.gaussian import numbered
from fedcore.planning.plan import Plan
from fedcore.silo import round_view
from fedcore.silo.keys import secret, seeded
from tests.contract import golden as golden_module
from tests.contract.golden import CLOSE, COMMAND, KINDS, PLAN, Case, computed, differences, faults, main
from tests.contract.methods import ONLY, quick

pytestmark = pytest.mark.skipif(ONLY is not None, reason="of registered methods only")


@pytest.fixture(scope="module")
def golden():
    return json.loads(golden_module.FILE.read_text())


@pytest.fixture(scope="module")
def now():
    return computed()


def test_bits_are_golden_or_their_version_is_raised(golden, now):
    assert not faults(golden, now), "\n".join(faults(golden, now))


@pytest.mark.parametrize("name", [*METHODS, *LOSSES])
def test_what_is_registered_is_watched(golden, name):
    watched = golden["courses"].keys() | {loss.partition(" of ")[0] for loss in golden["losses"]}
    assert (LOSSES[name].__name__ if name in LOSSES else name) in watched, f"record it: {COMMAND}"


def test_every_way_of_drawing_is_watched(golden):
    assert len(golden["first answers"]) >= 18 and "mbsgd of samples" in golden["first answers"]
    assert set(golden["first guarded answers"]) | {"a trusted aggregator"} == set(golden["first answers"])
    assert golden["forms"].keys() >= {"tables", "receipts", "scaffold"}
    assert all(golden[kind] for kind in KINDS)


def changed(now, kind, name):
    other = copy.deepcopy(now)
    value = other[kind][name]
    other[kind][name] = [number + 1.0 for number in value] if isinstance(value, list) else f"{value}0"
    return other


@pytest.mark.parametrize("kind", KINDS)
def test_the_sentence_names_the_change_the_version_to_raise_and_the_command(golden, now, kind):
    name = sorted(now[kind])[0]
    other, version = changed(now, kind, name), KINDS[kind]
    (sentence,) = faults(golden, other)
    assert (
        f"{kind} of {name}" in sentence
        and f"raise {version.upper()} in fedcore/experiment/stored/binding.py" in sentence
    )
    assert COMMAND in sentence
    raised = other | {version: other[version] + 1}
    (left,) = faults(golden, raised)
    assert "raise" not in left and COMMAND in left
    assert not faults(raised, raised)
    (back,) = faults(raised, other | {})[:1]
    assert "only raised" in back


def test_the_command_writes_nothing_under_the_same_version(golden, now, tmp_path, capsys):
    file = tmp_path / "golden.json"
    file.write_text(json.dumps(golden))
    other = changed(now, "courses", "mbsgd")
    assert main(lambda: other, file) == 1 and "raise ARITHMETIC" in capsys.readouterr().err
    assert json.loads(file.read_text()) == golden
    raised = other | {"arithmetic": golden["arithmetic"] + 1}
    assert main(lambda: raised, file) == 0 and not faults(json.loads(file.read_text()), raised)
    new = copy.deepcopy(raised)
    new["courses"]["a new method"] = [1.0]
    assert any("no golden bits yet" in fault for fault in faults(raised, new))
    assert main(lambda: new, file) == 0 and not faults(json.loads(file.read_text()), new)
    assert main(lambda: raised, file) == 1 and "a new method" in capsys.readouterr().err


def touched(golden):
    """Kinds of golden values that differ under a test's patch."""
    with patch.object(Plan, "digest", property(lambda plan: PLAN)):
        cases = {"mbsgd": Case(quick("mbsgd")), "mbsgd of samples": Case(replace(quick("mbsgd"), batch=3))}
        found = {kind: dict(golden[kind]) for kind in KINDS}
        found["first answers"] |= {name: golden_module.first_answers(case, False) for name, case in cases.items()}
        guarded = {name: golden_module.first_answers(case, True) for name, case in cases.items()}
        found["first guarded answers"] |= guarded
        found["courses"] |= {"mbsgd": golden_module.course(cases["mbsgd"])}
    found |= {"losses": golden_module.formulas(), "draws": golden_module.draws()}
    return {kind for kind, _, _ in differences(golden, found)}


def test_nothing_is_touched_where_nothing_changes(golden):
    assert touched(golden) == set()


def test_an_address_of_noise_or_samples_that_changes_is_found(golden, monkeypatch):
    for where in (round_view, gaussian):
        monkeypatch.setattr(where, "numbered", lambda address, ask: numbered(address, ask)[::-1])
    assert touched(golden) == {"first answers", "first guarded answers", "courses"}


def test_a_run_s_key_that_changes_is_found(golden, monkeypatch):
    real = secret.derive
    monkeypatch.setattr(secret, "derive", lambda key, *address: real(key, *address, 1))
    assert touched(golden) == {"first guarded answers"}
    monkeypatch.setattr(seeded, "simulation_key", lambda *address: real(b"another", *address))
    assert touched(golden) == {"first answers", "first guarded answers", "courses"}


def test_a_formula_that_changes_is_found(golden, monkeypatch):
    """By a thousandth of a step, far more than processors differ."""
    update = METHODS["mbsgd"].server_update

    def longer(self, state, messages, phase):
        return update(self, state, messages.changed({at: 1.001 * each for at, each in messages.items()}), phase)

    monkeypatch.setattr(METHODS["mbsgd"], "server_update", longer)
    assert touched(golden) == {"courses"}


def test_a_loss_that_changes_is_found(golden, monkeypatch):
    residual = Logistic.residual
    monkeypatch.setattr(Logistic, "residual", lambda self, z, y: residual(self, z, y) * (1.0 + 1e-6))
    assert touched(golden) == {"losses"}


def test_last_bits_of_sums_which_processors_decide_change_no_golden_value(golden, monkeypatch):
    """Changes courses of records by some last bits, more than an order of summation does.

    Bits are compared for exact sums only, which are equal in any order.
    """
    made = Case.records

    def longer(case, dyadic):
        found = made(case, dyadic)
        if dyadic:  # another order: exact sums are the same
            return {name: Records(r.X[::-1].copy(), r.y[::-1].copy(), r.bound) for name, r in found.items()}
        return {name: Records(r.X * (1.0 + 2.0**-48), r.y, r.bound) for name, r in found.items()}

    monkeypatch.setattr(Case, "records", longer)
    with patch.object(Plan, "digest", property(lambda plan: PLAN)):
        courses = {name: golden_module.course(case) for name, case in golden_module.cases().items()}
        whole = Case(quick("mbsgd"))
        monkeypatch.setattr(seeded, "order_of_run", lambda *given: np.arange(given[1]))
        reversed_answer = golden_module.first_answers(whole, False)
        monkeypatch.setattr(Case, "records", made)
        assert reversed_answer == golden_module.first_answers(whole, False)
    for name, values in courses.items():
        expected = np.array(golden["courses"][name])
        moved = np.max(np.abs(np.array(values) - expected)) / np.max(np.abs(expected))
        assert moved < CLOSE / 100, name


def test_versions_are_those_of_checkpoints(golden):
    assert (golden["arithmetic"], golden["format"]) == (binding.ARITHMETIC, binding.FORMAT)
