"""Silos whose 1/n^2 is no small delta: a warning, and a refusal unless a config or policy gives the number."""

from __future__ import annotations

import math

import pytest

from fedcore.accounting.filters import Charge
from fedcore.accounting.tiny_silos import refusal, warning
from fedcore.errors import InputError, SiloError
from fedcore.experiment.experiment import make_plan
from fedcore.experiment.loading import load_experiment
from fedcore.experiment.outlook import urgent
from fedcore.ledger.memory import MemoryLedger
from fedcore.losses import Logistic
from fedcore.silo.policies.policy import METHODS, Policy
from fedcore.silo.policies.policy_in_force import PolicyInForce
from tests.policies import ALL


@pytest.mark.parametrize("n", range(2, 40))
def test_the_bounds_are_those_of_records(n):
    """1/16 is above 0.05 and 1/25 is not; 1/31^2 is above 1e-3 and 1/32^2 is not."""
    assert (refusal("1/n^2", n, "privacy.delta") is not None) == (n <= 4) == (refusal(None, n, "delta") is not None)
    assert refusal(1 / n**2, n, "privacy.delta") is None, "a number says so"
    assert (warning({"north": n, "south": 4000}, None, "records") is not None) == (n <= 31)


def test_a_warning_is_about_the_smallest_silo_and_rounds_up():
    silos = {"north": 30, "south": 7, "west": 90}
    message = warning(silos, None, "persons")
    assert "above 0.001 at 2 of 3 silos, up to 0.0205 (1/n^2 at south, of 7 persons)" in message  # 1/49 = 0.020408
    assert float("0.0205") >= 1 / 49
    assert "at 3 of 3 silos, up to 0.002 (privacy.delta at south" in warning(silos, 0.002, "records")
    assert warning(silos, 1e-4, "records") is None


def config(tmp_path, records, *overrides, person=False):
    rows = "".join(f"p{k},{20 + k},{k % 2}\n" for k in range(records))
    (tmp_path / "north.csv").write_text("who,age,ill\n" + rows)
    (tmp_path / "south.csv").write_text("who,age,ill\n" + "".join(f"q{k},{k},{k % 2}\n" for k in range(40)))
    silos = "".join(f"    - {{name: {name}, path: {tmp_path}/{name}.csv}}\n" for name in ("north", "south"))
    (tmp_path / "mine.yaml").write_text(
        f"data:\n  source: files\n  silos:\n{silos}  features: {{age: {{range: [0, 90]}}}}\n  label: ill\n"
        f"{'  person: who' * person}\nprivacy: {{epsilon: 1}}\nalgorithm: {{name: mbsgd, rounds: 2}}\n"
    )
    return load_experiment(tmp_path / "mine.yaml", list(overrides))


@pytest.mark.parametrize("person", [False, True])
def test_a_plan_refuses_one_in_sixteen_unless_a_number_says_so(tmp_path, person):
    with pytest.raises(InputError) as caught:
        make_plan(config(tmp_path, 4, person=person))
    unit = "persons" if person else "records"
    assert f"silo north: privacy.delta = 1/n^2 is 0.0625 for 4 {unit}, above 0.05" in str(caught.value)
    declared = config(tmp_path, 4, "privacy.delta=0.02", person=person)
    made = make_plan(declared)
    assert made.problem.delta == 0.02
    assert any("up to 0.02 (privacy.delta at north" in each for each in urgent(declared, made))
    assert make_plan(config(tmp_path, 4, "privacy.trust=none", "privacy.epsilon=null")).problem.n_silos == 2
    assert make_plan(config(tmp_path, 5)).problem.delta == pytest.approx(1 / 25)


def test_a_plan_warns_of_deltas_that_are_large(tmp_path):
    for records, warned in ((31, True), (32, False)):
        experiment = config(tmp_path, records)
        messages = urgent(experiment, make_plan(experiment))
        assert [f"1/n^2 at north, of {records} records" in each for each in messages] == [True] * warned


def test_a_cap_at_one_over_n_squared_is_refused_too(tmp_path):
    given = ["privacy.delta=1e-4", "privacy.ledger=sqlite"]
    with pytest.raises(InputError, match=r"silo north: privacy\.cap\.delta = 1/n\^2 is 0\.112 for 3 records"):
        make_plan(config(tmp_path, 3, *given, "privacy.cap={epsilon: 8}"))
    make_plan(config(tmp_path, 3, *given, "privacy.cap={epsilon: 8, delta: 0.112}"))


@pytest.mark.parametrize("key", ["cap", "one_run"])
def test_a_policy_of_an_operator_has_to_say_so_too(key):
    """A driver's number does not count for the operator: at 3 records a policy of 1/n^2 would admit a delta of 0.11."""
    held = {"cap": {"epsilon": 9, "delta": 0.2}, "one_run": {"epsilon": 9, "delta": 0.2}}

    def approve(n, **changes):
        force = PolicyInForce(Policy.model_validate(ALL | held | changes), "ash", n)
        force.approve("new", METHODS["mbsgd"](), Logistic(), Charge(0.01, 0.5, 0.1), MemoryLedger("ash"))

    approve(3)
    words = rf"its policy says too little: {key}\.delta = 1/n\^2 is 0\.112 for 3"
    with pytest.raises(SiloError, match=words) as caught:
        approve(3, **{key: {"epsilon": 9, "delta": "1/n^2"}})
    assert caught.value.code == "policy"
    assert math.isclose(1 / 3**2, 0.1111, rel_tol=1e-3)
