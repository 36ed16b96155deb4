"""Warnings before a training starts, against the quotients computed by hand."""

import math

import pytest

from fedcore.experiment.experiment import make_plan
from fedcore.experiment.loading import load_experiment
from fedcore.experiment.outlook import warnings


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
        said = warned(file, MBSGD, f"privacy.epsilon={epsilon}")
        assert [f"can have is {ratio:.2g} times the noise" in sentence for sentence in said] == [True] * (ratio < 4)
    assert warned(file, MBSGD, "privacy.epsilon=0.2") and not warned(file, MBSGD, "privacy.epsilon=4")
    assert not warned(file, MBSGD, "privacy.trust=none", "privacy.epsilon=null")


def test_weights_of_silos_count(file):
    alone = f"participation.weights={[1 - 24e-9] + [1e-9] * 24}"
    assert not warned(file, MBSGD, "privacy.epsilon=2") and warned(file, MBSGD, "privacy.epsilon=2", alone)


def test_steps_that_cannot_leave_the_start_are_told(file):
    (said,) = warned(file, "algorithm={name: mbsgd, step: 0.1, rounds: 8}", "model.clip=0.5", "privacy.epsilon=64")
    assert "at most 0.4: take longer steps" in said  # 8 steps of 0.1 along gradients of norm 0.5, records of norm 1
    assert not warned(file, "algorithm={name: scaffold, step: 0.001}", "privacy.epsilon=64")


@pytest.mark.parametrize(
    ("features", "told"), [("[age, dose]", True), ("[age]", False), ("{age: {range: [0, 9]}}", False)]
)
def test_columns_that_are_only_named_are_told(file, tmp_path, features, told):
    (tmp_path / "n.csv").write_text("age,dose,y\n" + "1,2,0\n" * 400)
    files = f"data={{source: files, silos: [{{name: n, path: {tmp_path}/n.csv}}], features: {features}, label: y}}"
    said = warned(file, MBSGD, files, "privacy.epsilon=8")
    assert any("only names columns" in sentence for sentence in said) == told and len(said) == told
