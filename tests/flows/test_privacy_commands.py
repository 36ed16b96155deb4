"""`fedcore privacy`: JSON numbers against an independent closed form, and sentences for mistakes."""

from __future__ import annotations

import json
import math

import pytest
from typer.testing import CliRunner

from fedcore.errors import InputError
from flows.commands.noise.privacy import app
from tests import gaussian_curve


def ask(*arguments: str) -> dict:
    done = CliRunner().invoke(app, [*arguments, "--json"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return json.loads(done.output)


def epsilon_by_hand(sigma: float, sensitivity: float, answers: int, delta: float) -> float:
    return gaussian_curve.epsilon_by_hand(sensitivity * math.sqrt(answers) / sigma, delta)


HUNDRED = ("--n", "1000", "--rounds", "100", "--delta", "1e-6", "--clip", "1")


def shown(*arguments: str) -> str:
    done = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


@pytest.mark.parametrize("n, rounds", [(902, 1), (902, 100), (902, 200), (51, 7), (1999, 33)])
def test_noise_that_is_copied_back_spends_at_most_the_target(n, rounds):
    """At n = 902 sigma rounded to nearest in six digits, as it once was printed, spends 1.0000002."""
    common = ("--n", str(n), "--rounds", str(rounds))
    printed = shown("sigma", "--epsilon", "1", *common).split()[1]
    assert len(printed.lstrip("0.")) <= 6
    back = ask("epsilon", "--sigma", printed, *common)["epsilon_accounted"]
    assert 1 - 1e-4 < back <= 1
    assert gaussian_curve.epsilon_by_hand(2 * (1 + 1e-6) / n * math.sqrt(rounds) / float(printed), n**-2) <= 1 + 1e-9
    assert f"sigma {printed} per coordinate" in shown("epsilon", "--sigma", printed, *common)


def test_noise_and_delta_that_were_typed_are_shown_as_typed_and_a_delta_of_its_own_is_rounded_up():
    typed = ("--sigma", "0.0655710842261", "--delta", "1.23456e-6", "--n", "902")
    assert "sigma 0.0655710842261 per coordinate of the mean, 1 rounds, delta 1.23456e-06" in shown("epsilon", *typed)
    assert "delta 0.000385\n" in shown("epsilon", "--sigma", "1", "--n", "51")  # 1/51^2 = 3.8447e-4
    assert "epsilon: target 1.00000049, accounted 1.00001" in shown("sigma", "--epsilon", "1.00000049", "--n", "902")


@pytest.mark.parametrize(
    "command", [("sigma", "--epsilon", "1"), ("epsilon", "--sigma", "1"), ("rounds", "--epsilon", "9", "--sigma", "1")]
)
def test_one_over_n_squared_of_a_few_records_is_refused_or_warned_of_as_a_plan_does(command):
    with pytest.raises(InputError, match=r"^--delta = 1/n\^2 is 0\.0625 for 4 records, above 0\.05: with that prob"):
        shown(*command, "--n", "4")
    for n, delta, how in (("5", (), "1/n^2"), ("31", (), "1/n^2"), ("4", ("--delta", "0.06"), "--delta")):
        done = CliRunner().invoke(app, [*command, "--n", n, *delta, "--json"], catch_exceptions=False)
        (warning,) = json.loads(done.stdout)["warnings"]
        assert warning.startswith("delta is above 0.001") and f"({how} at this silo, of {n} records)" in warning
        assert warning.endswith("Take a smaller --delta, or join silos")
        assert " ".join(done.stderr.split()) == f"warning: {warning}."
    for few in (("--n", "32"), ("--n", "4", "--delta", "1e-3")):
        assert "warnings" not in ask(*command, *few)


TYPED = {
    ("--n", "1_000"): "1_000 is a text in YAML 1.2 and 1000 in YAML 1.1",
    ("--epsilon", "1_0"): "1_0 is a text in YAML 1.2 and 10 in YAML 1.1",
    ("--n", "010"): "010 is 10 in YAML 1.2 and 8 in YAML 1.1",
    ("--rounds", "1:30"): "1:30 is a text in YAML 1.2 and 90 in YAML 1.1",
    ("--rounds", "1_0_0"): "1_0_0 is a text in YAML 1.2 and 100 in YAML 1.1",
    ("--clip", "0_1.5"): "0_1.5 is a text in YAML 1.2 and 1.5 in YAML 1.1",
    ("--batch", "0b11"): "0b11 is a text in YAML 1.2 and 3 in YAML 1.1",
    ("--delta", "1e-400_0"): "'1e-400_0' is not a valid float",
    ("--epsilon", "1e400"): "1e400 is more than a float holds",
    ("--epsilon", "nan"): "'nan' is not a valid float",
    ("--epsilon", ".nan"): "'.nan' is not a number",
    ("--epsilon", "\u0661"): "is not a valid float",
    ("--n", "\uff11\uff10"): "is not a valid integer",
    ("--n", "1e3"): "'1e3' is not a valid integer",
    ("--n", "10.0"): "'10.0' is not a valid integer",
    ("--n", " 10"): "' 10' is not a valid integer",
}


@pytest.mark.parametrize("option, text", TYPED)
def test_numbers_are_read_as_those_of_configs(option, text):
    given = {"--n": "1000", "--epsilon": "1", option: text}
    words = [part for pair in given.items() for part in pair]
    done = CliRunner().invoke(app, ["sigma", *words], env={"COLUMNS": "200"})
    assert done.exit_code == 2 and TYPED[option, text] in " ".join(done.output.replace("│", " ").split())


def test_numbers_of_one_reading_are_those_numbers():
    for text in ("1e3", "1000.0", "+1000", "1.0E+03", "1000"):
        assert ask("epsilon", "--n", "100", "--sigma", text)["sigma"] == 1000.0
    assert ask("epsilon", "--n", "0x64", "--sigma", "1")["n"] == 100


def test_rounds_by_a_formula_are_whole_numbers_and_no_more_than_it_allows():
    """They once were rounded up to six digits, as epsilons are: 1,809,560.. as 1.80957e+06."""
    name = "lowy-2023-experiments"
    common = ("rounds", "--n", "1000000", "--epsilon", "20", "--sigma", "0.0010001", "--paper", name)
    exact = ask(*common)["rounds_papers"][name]
    assert exact > 10**6 and exact % 10 != 0 and f"rounds by {name} {exact}\n" in shown(*common)


def test_exact_and_paper_noise_of_a_hundred_full_rounds():
    """The example of docs/explanation/accounting.md."""
    exact = ask("sigma", "--calibration", "exact", "--epsilon", "1", *HUNDRED)
    paper = ask("sigma", "--calibration", "paper", "--epsilon", "1", *HUNDRED)
    for found in (exact, paper):
        assert found["epsilon_target"] == 1 and found["adjacency"] == "replace-one"
        by_hand = epsilon_by_hand(found["sigma"], 2 / 1000, 100, 1e-6)
        assert found["epsilon_accounted"] == pytest.approx(by_hand, rel=1e-5)
    assert exact["epsilon_accounted"] == pytest.approx(1, rel=1e-9) and exact["epsilon_accounted"] <= 1
    # 256 L^2 R ln(2.5 R / delta) ln(2 / delta) / (n epsilon)^2
    published = math.sqrt(256 * 100 * math.log(250 / 1e-6) * math.log(2 / 1e-6)) / 1000
    assert paper["sigma"] == pytest.approx(published, rel=1e-12) and paper["epsilon_paper"] == pytest.approx(1)
    assert exact["epsilon_paper"] == pytest.approx(published / exact["sigma"], rel=1e-9)
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
    # The noise on the mean is the same, so the noise multiplier of a sample of a tenth is a tenth.
    assert 0.99 * full < poisson < fixed < 1.5 * full
    assert ask("epsilon", *common, "--sampling", "with-replacement")["epsilon_accounted"] is None
    shown = CliRunner().invoke(app, ["epsilon", *common, "--sampling", "with-replacement"], catch_exceptions=False)
    assert "accounted none" in shown.output


def test_named_formulas_show_what_their_noise_really_spends():
    named = ask("sigma", "--calibration", "gao-2024", "--epsilon", "1", *HUNDRED)
    paper = ask("sigma", "--calibration", "paper", "--epsilon", "1", *HUNDRED)
    shared = ("sigma", "epsilon_target", "epsilon_accounted", "epsilon_paper", "delta", "rounds")
    assert {key: named[key] for key in shared} == {key: paper[key] for key in shared}
    assert (named["calibration"], named["sigmas"]) == ("gao-2024", {"sigma": named["sigma"]})
    # 10 restarts: 4 * 1.25 * 29 * 10 / 1000^2. 90 differences: 4 * 5 * 29 * 90 / 1000^2. 29 = 1 + ceil(27.63).
    options = ("sigma", "--calibration", "diff2", "--period", "10", "--epsilon", "1", *HUNDRED)
    diff2 = ask(*options)
    assert diff2["sigmas"] == {"restart": pytest.approx(math.sqrt(1.45e-3)), "difference": pytest.approx(0.22847319)}
    # Their composition is exactly Gaussian with mu^2 = epsilon / alpha = 1 / 29 (spec diff2, 4.4).
    by_hand = epsilon_by_hand(math.sqrt(29), 1, 1, 1e-6)
    assert diff2["epsilon_accounted"] == pytest.approx(by_hand, rel=1e-5)
    shown = CliRunner().invoke(app, list(options), catch_exceptions=False).output
    assert "by kind of answer: restart 0.0380789, difference 0.228474" in shown
    assert "epsilon: target 1, accounted 0.770179, paper 1" in shown


def test_options_of_named_formulas_reach_them():
    drawn = ("--n", "1000", "--delta", "1e-6", "--rounds", "100", "--sampling", "without-replacement")
    noble = ask(
        "sigma",
        "--calibration",
        "noble-2022",
        "--epsilon",
        "0.8",
        *drawn,
        "--batch",
        "100",
        "--local-steps",
        "10",
        "--silos",
        "10",
        "--silos-per-round",
        "5",
    )
    assert noble["sigma"] == pytest.approx(0.2889961, abs=1e-6)  # by hand in tests/fedcore/accounting/test_papers.py
    fcrn = ask(
        "sigma",
        "--calibration",
        "dp-fcrn",
        "--epsilon",
        "1",
        *drawn,
        "--batch",
        "1",
        "--local-steps",
        "2",
        "--kept",
        "0.25",
        "--step-delta",
        "0.01",
    )
    # 160 * 2 * 100 * 0.25 * ln(125) / 1000^2 = 8000 * 4.828314 / 1e6 = 0.0386265
    assert fcrn["sigma"] ** 2 == pytest.approx(0.0386265, abs=1e-7)


# Spec dp-scaffold, 5.5, synthetic data: K = 50 of 800 of 4000 records, 20 of 100 silos, T = 400, sigma_g = 60.
SCAFFOLD = (
    "--n",
    "4000",
    "--batch",
    "800",
    "--sampling",
    "without-replacement",
    "--delta",
    "2.5e-6",
    "--local-steps",
    "50",
    "--silos",
    "100",
    "--silos-per-round",
    "20",
    "--paper",
    "noble-2022-numeric",
)


def test_local_steps_of_drawn_silos_beside_the_paper():
    options = ("epsilon", "--rounds", "400", "--sigma", "0.15", *SCAFFOLD)  # 2 / 800 * 60
    found = ask(*options)
    assert found["epsilon_accounted"] == pytest.approx(2.030, rel=2e-3)
    assert found["epsilon_honest_sampling"] == pytest.approx(0.860, rel=2e-3)
    assert found["epsilon_papers"] == {
        "noble-2022-numeric": pytest.approx(12.906, abs=6e-4),
        "noble-2022-numeric-server": pytest.approx(13.79, abs=6e-3),
    }
    assert found["epsilon_paper"] == found["epsilon_papers"]["noble-2022-numeric"] and found["local_steps"] == 50
    shown = CliRunner().invoke(app, list(options), catch_exceptions=False).output
    assert "400 rounds of 50 local steps" in shown
    assert "accounted 2.03001, paper 12.9064" in shown and "before it is drawn: 0.8598" in shown
    assert "epsilon by noble-2022-numeric 12.9064, noble-2022-numeric-server 13.78" in shown


def test_noise_for_local_steps_is_that_of_all_answers():
    """Spec 5.5: sigma_g for a server epsilon of 2 in this setting is 60.8."""
    found = ask("sigma", "--rounds", "400", "--epsilon", "2", *SCAFFOLD)
    assert found["sigma"] == pytest.approx(2 / 800 * 60.8, rel=2e-3)
    assert 0.999 * 2 < found["epsilon_accounted"] <= 2 and found["epsilon_honest_sampling"] < 1
    named = ask("sigma", "--rounds", "400", "--epsilon", "13", "--calibration", "noble-2022-numeric", *SCAFFOLD)
    assert named["epsilon_papers"]["noble-2022-numeric"] == pytest.approx(13, rel=1e-9)
    assert named["epsilon_honest_sampling"] < named["epsilon_accounted"]


def test_rounds_by_the_accountant_and_by_the_paper():
    """Table 1 of the paper at sigma_g = 10, K = 20, epsilon 3: T = 324, whose server epsilon is 8.49 (spec 5.5)."""
    changed = [*SCAFFOLD[:9], "20", "--silos", "100", "--silos-per-round", "5", "--paper", "noble-2022-numeric"]
    options = ("rounds", "--epsilon", "3", "--sigma", "0.025", *changed)
    found = ask(*options)
    assert found["rounds_papers"]["noble-2022-numeric"] == 324
    assert found["rounds"] < 100 and found["epsilon_accounted"] <= 3
    same = ask("epsilon", "--rounds", str(found["rounds"] + 1), "--sigma", "0.025", *changed)
    assert same["epsilon_accounted"] > 3
    shown = CliRunner().invoke(app, list(options), catch_exceptions=False).output
    assert "rounds by noble-2022-numeric 324, noble-2022-numeric-server" in shown


def test_unselected_formulas_are_not_shown():
    plain = ask("epsilon", "--sigma", "0.09", *HUNDRED)
    assert not {"local_steps", "epsilon_honest_sampling", "epsilon_papers", "rounds_papers"} & set(plain)


def test_papers_lists_every_formula_whole():
    listed = CliRunner().invoke(app, ["papers", "--json"], catch_exceptions=False)
    rows = {row["name"]: row for row in json.loads(listed.output)}
    assert {name.split("-20")[0] for name in rows} >= {"gao", "lowy", "noble", "diff2", "dp-fcrn"}
    table = CliRunner().invoke(app, ["papers"], catch_exceptions=False).output
    assert "…" not in table  # no formula is cut off at the width of a terminal
    for row in rows.values():
        assert row["name"] in table and row["formula"] and row["limits"] and row["samplings"]


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        (("sigma", "--n", "1000", "--epsilon", "-1"), "epsilon = -1 must be a positive number"),
        (("sigma", "--n", "1000", "--epsilon", "1", "--batch", "2000"), "batch = 2000 must lie between 1 and n"),
        (("epsilon", "--n", "1000", "--sigma", "0"), "sigma = 0 must be a positive number"),
        (("rounds", "--n", "1000", "--sigma", "1e-4", "--epsilon", "1"), "not one round keeps to epsilon = 1"),
        (("sigma", "--n", "1000", "--epsilon", "99", "--calibration", "paper"), "stated for 0 < epsilon <="),
        (("sigma", "--n", "9", "--epsilon", "1", "--sampling", "with-replacement"), "no sound accountant"),
        (("sigma", "--n", "9", "--epsilon", "1", "--calibration", "gau"), "no published formula is called gau; there"),
        (("sigma", "--n", "9", "--epsilon", "1", "--silos", "2"), "silos is an input of named formulas only, not"),
        (("sigma", "--n", "9", "--epsilon", "1", "--period", "2", "--rounds", "2"), "period is an input of named"),
        (("epsilon", "--n", "9", "--sigma", "1", "--silos-per-round", "2"), "silos_per_round = 2 must lie in 1 .. sil"),
        (("epsilon", "--n", "9", "--sigma", "1", "--paper", "gau"), "no published formula is called gau; there"),
        (("rounds", "--n", "9", "--sigma", "9", "--epsilon", "1", "--local-steps", "0"), "local_steps = 0 must be at"),
        (("sigma", "--n", "9", "--epsilon", "2", "--calibration", "dp-fcrn-fedsgd"), "= 2 is outside .* epsilon <= 1;"),
        (("sigma", "--n", "9", "--epsilon", "1", "--calibration", "noble-2022"), "is for sampling without-replacement"),
    ],
)
def test_mistakes_get_a_sentence(arguments, sentence):
    with pytest.raises(InputError, match=sentence):
        CliRunner().invoke(app, list(arguments), catch_exceptions=False)
