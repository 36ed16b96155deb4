"""`fedcore privacy`: the numbers that scripts read, against the closed form written anew; sentences for mistakes."""

from __future__ import annotations

import json
import math

import pytest
from scipy.optimize import brentq
from scipy.stats import norm
from typer.testing import CliRunner

from fedcore.errors import InputError
from flows.privacy_commands import app


def ask(*arguments: str) -> dict:
    done = CliRunner().invoke(app, [*arguments, "--json"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return json.loads(done.output)


def epsilon_by_hand(sigma: float, sensitivity: float, answers: int, delta: float) -> float:
    mu = sensitivity * math.sqrt(answers) / sigma

    def excess(epsilon: float) -> float:
        return norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu) - delta

    return brentq(excess, 1e-9, 60)


HUNDRED = ("--n", "1000", "--rounds", "100", "--delta", "1e-6", "--clip", "1")


def test_exact_and_paper_noise_of_a_hundred_full_rounds():
    """The example of docs/privacy.md."""
    exact = ask("sigma", "--calibration", "exact", "--epsilon", "1", *HUNDRED)
    paper = ask("sigma", "--calibration", "paper", "--epsilon", "1", *HUNDRED)
    for found in (exact, paper):
        assert found["epsilon_target"] == 1 and found["adjacency"] == "replace-one"
        by_hand = epsilon_by_hand(found["sigma"], 2 / 1000, 100, 1e-6)
        assert found["epsilon_accounted"] == pytest.approx(by_hand, rel=1e-5)
    assert exact["epsilon_accounted"] == pytest.approx(1, rel=1e-9) and exact["epsilon_accounted"] <= 1
    # 256 L^2 R ln(2.5 R / delta) ln(2 / delta) / (n epsilon)^2
    printed = math.sqrt(256 * 100 * math.log(250 / 1e-6) * math.log(2 / 1e-6)) / 1000
    assert paper["sigma"] == pytest.approx(printed, rel=1e-12) and paper["epsilon_paper"] == pytest.approx(1)
    assert exact["epsilon_paper"] == pytest.approx(printed / exact["sigma"], rel=1e-9)
    assert paper["sigma"] / exact["sigma"] == pytest.approx(31.7, abs=0.05)
    assert paper["epsilon_accounted"] == pytest.approx(0.02455, abs=1e-5)


def test_epsilon_and_rounds_answer_back():
    sigma = ask("sigma", "--epsilon", "1", *HUNDRED)["sigma"]
    back = ask("epsilon", "--sigma", repr(sigma), *HUNDRED)
    assert back["epsilon_accounted"] == pytest.approx(1, rel=1e-9) and back["epsilon_target"] is None
    counted = ask("rounds", "--n", "1000", "--delta", "1e-6", "--epsilon", "1.0000001", "--sigma", repr(sigma))
    assert counted["rounds"] == 100


def test_sampled_batches_and_what_has_no_accountant():
    common = ("--n", "1000", "--rounds", "100", "--batch", "100", "--sigma", "0.09")
    full = ask("epsilon", "--n", "1000", "--rounds", "100", "--sigma", "0.09")["epsilon_accounted"]
    poisson = ask("epsilon", *common, "--sampling", "poisson")["epsilon_accounted"]
    fixed = ask("epsilon", *common, "--sampling", "without-replacement")["epsilon_accounted"]
    # The noise on the mean is the same, so that a sample of a tenth has the noise multiplier of a tenth.
    assert 0.99 * full < poisson < fixed < 1.5 * full
    assert ask("epsilon", *common, "--sampling", "with-replacement")["epsilon_accounted"] is None
    shown = CliRunner().invoke(app, ["epsilon", *common, "--sampling", "with-replacement"], catch_exceptions=False)
    assert "accounted none" in shown.output


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        (("sigma", "--n", "1000", "--epsilon", "-1"), "epsilon = -1 must be a positive number"),
        (("sigma", "--n", "1000", "--epsilon", "1", "--batch", "2000"), "batch = 2000 must lie between 1 and n"),
        (("epsilon", "--n", "1000", "--sigma", "0"), "sigma = 0 must be a positive number"),
        (("rounds", "--n", "1000", "--sigma", "1e-4", "--epsilon", "1"), "not one round keeps to epsilon = 1"),
        (("sigma", "--n", "1000", "--epsilon", "99", "--calibration", "paper"), "stated for 0 < epsilon <="),
        (("sigma", "--n", "9", "--epsilon", "1", "--sampling", "with-replacement"), "no sound accountant"),
    ],
)
def test_mistakes_get_a_sentence(arguments, sentence):
    with pytest.raises(InputError, match=sentence):
        CliRunner().invoke(app, list(arguments), catch_exceptions=False)
