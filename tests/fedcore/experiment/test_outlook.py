"""Warnings before a training starts, against the quotients computed by hand."""

import math
import re

import pytest

from fedcore.experiment.experiment import make_plan
from fedcore.experiment.loading import load_experiment
from fedcore.experiment.outlook import urgent, warnings


def warned(file, *overrides):
    config = load_experiment(file, list(overrides))
    return warnings(config, make_plan(config))


MBSGD = "algorithm={name: mbsgd, step: 4, rounds: 40}"


def test_too_much_noise_is_told_where_the_quotient_says_so(file):
    for epsilon in (0.2, 0.5, 1, 4):
        plan = make_plan(load_experiment(file, [MBSGD, f"privacy.epsilon={epsilon}"]))
        shares = plan.phases[0].shares
        # All silos alike: the mean of 25 messages has noise sigma / 5 in each of 65 coordinates, 40 rounds of clip 1.
        deviation = math.sqrt(sum(share.sigma**2 for share in shares)) / 25
        ratio = 40 / (math.sqrt(40 * 65) * deviation)
        messages = warned(file, MBSGD, f"privacy.epsilon={epsilon}")
        assert [f"can have is {ratio:.2g} times the noise" in sentence for sentence in messages] == [True] * (ratio < 4)
    assert warned(file, MBSGD, "privacy.epsilon=0.2") and not warned(file, MBSGD, "privacy.epsilon=4")
    assert not warned(file, MBSGD, "privacy.trust=none", "privacy.epsilon=null")


def test_weights_of_silos_count(file):
    alone = f"participation.weights={[1 - 24e-9] + [1e-9] * 24}"
    assert not warned(file, MBSGD, "privacy.epsilon=2") and warned(file, MBSGD, "privacy.epsilon=2", alone)


def test_steps_that_cannot_leave_the_start_are_told(file):
    (message,) = warned(file, "algorithm={name: mbsgd, step: 0.1, rounds: 8}", "model.clip=0.5", "privacy.epsilon=64")
    assert "at most 0.4: take longer steps" in message  # 8 steps of 0.1 along gradients of norm 0.5, records of norm 1
    assert not warned(file, "algorithm={name: scaffold, step: 0.001}", "privacy.epsilon=64")


@pytest.mark.parametrize(
    ("features", "expected"), [("[age, dose]", True), ("[age]", False), ("{age: {range: [0, 9]}}", False)]
)
def test_columns_that_are_only_named_are_told(file, tmp_path, features, expected):
    (tmp_path / "n.csv").write_text("age,dose,y\n" + "1,2,0\n" * 400)
    (tmp_path / "m.csv").write_text("age,dose,y\n" + "1,2,0\n" * 400)
    silos = ", ".join(f"{{name: {name}, path: {tmp_path}/{name}.csv}}" for name in "nm")
    files = f"data={{source: files, silos: [{silos}], features: {features}, label: y}}"
    messages = warned(file, MBSGD, files, "privacy.epsilon=8")
    assert any("only names columns" in sentence for sentence in messages) == expected and len(messages) == expected


@pytest.mark.parametrize(("doses", "message"), [((2, 3), "only names columns"), ((2000, 3000), "differ in size")])
def test_columns_without_scales_are_told_once(file, tmp_path, doses, message):
    for name in "nmt":
        rows = "".join(f"1,{dose},0\n-1,{dose},1\n" for dose in doses)
        (tmp_path / f"{name}.csv").write_text("age,dose,y\n" + rows * 100)
    silos = ", ".join(f"{{name: {name}, path: {tmp_path}/{name}.csv}}" for name in "nm")
    files = f"data={{source: files, silos: [{silos}], features: [age, dose], label: y, test: {tmp_path}/t.csv}}"
    config = load_experiment(file, [MBSGD, files, "privacy.epsilon=8"])
    plan = make_plan(config)
    texts = [each for each in [*urgent(config, plan), *warnings(config, plan)] if "range" in each]
    assert len(texts) == 1 and message in texts[0]


@pytest.mark.parametrize(
    "changes, message",
    [
        # Logistic loss, records of norm at most 1: |l'''| is at most 1 / (6 sqrt(3)), in z = log(2 +- sqrt(3)).
        (
            ["algorithm={name: dp-fcrn, cubic: 0.09, rounds: 3}"],
            "algorithm.cubic = 0.09 is below the .* constant, 0.0962",
        ),
        (
            ["algorithm={name: dp-fcrn, cubic: 0.7, rounds: 3}", "model.feature_bound=2"],
            "cubic = 0.7 .* constant, 0.77",
        ),
        (["algorithm={name: noised-newton, cubic: 0.05}"], "algorithm.cubic = 0.05 is below the .* constant, 0.0962"),
        (
            ["algorithm={name: dp-fcrn, rounds: 3}", "model={loss: {name: hinge}, smoothing: {name: moreau}}"],
            "no theorem",
        ),
        (["algorithm={name: dp-fcrn, rounds: 3, local_steps: 2}"], "one step, which no Hessian has a part in"),
    ],
)
def test_numbers_of_a_cubic_model_that_no_theorem_holds_for_are_told(file, changes, message):
    found = [sentence for sentence in warned(file, "privacy.epsilon=1000", *changes) if "algorithm." in sentence]
    assert len(found) == 1 and re.search(message, found[0])


@pytest.mark.parametrize(
    "algorithm",
    ["{name: dp-fcrn, cubic: 0.097, rounds: 3}", "{name: noised-newton}", "{name: noised-newton, cubic: 0.1}"],
)
def test_numbers_of_a_cubic_model_that_theorems_take_are_not(file, algorithm):
    assert not [sentence for sentence in warned(file, f"algorithm={algorithm}") if "algorithm." in sentence]


def test_one_silo_alone_gets_a_remark(file):
    alone = "there is one silo"
    for silos in (1, 2):
        texts = warned(file, MBSGD, f"data={{source: synthetic, silos: {silos}, records: 20000, test_records: 10}}")
        assert any(alone in each for each in texts) == (silos == 1)
