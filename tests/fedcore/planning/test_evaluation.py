"""Held-out records: their ranges, and the fields of plans, problems and configs about them."""

import json

import numpy as np
import pytest

from fedcore.accounting.calibration import Budget
from fedcore.algorithms import Mbsgd
from fedcore.algorithms.statistics.evaluated import evaluated
from fedcore.errors import InputError
from fedcore.experiment.experiment import make_plan
from fedcore.experiment.identity import run_id
from fedcore.experiment.loading import load_experiment
from fedcore.planning.evaluation import Evaluation, guarded_held_out, held_out, order_of_run
from fedcore.planning.problem import SiloFacts
from tests.problems import problem_of

DIGITS = "conf/experiment/digits.yaml"


@pytest.mark.parametrize("held_out", [held_out, guarded_held_out])
def test_held_out_records_follow_from_name_and_number_alone_and_smaller_choices_are_among_larger_ones(held_out):
    rows = held_out("ash", 100, 20)
    assert len(set(rows.tolist())) == 20 and list(rows) == sorted(rows)
    assert set(held_out("ash", 100, 7)) < set(rows)
    assert set(rows) != set(held_out("birch", 100, 20)) and set(rows) != set(held_out("ash", 101, 20))
    # Every row is as likely as another: over 2,000 silos each of 10 rows is held out in half of them.
    often = np.bincount(np.concatenate([held_out(f"s{at}", 10, 5) for at in range(2000)]), minlength=10)
    assert np.abs(often - 1000).max() < 5 * np.sqrt(2000 / 4)


def test_the_order_of_a_run_has_them_last_and_is_as_before_without():
    def rng():
        return np.random.default_rng(4)

    apart = held_out("ash", 30, 6)
    assert list(order_of_run(rng(), 30, 0, apart[:0])) == list(rng().permutation(30))
    order = order_of_run(rng(), 30, 6, apart)
    assert sorted(order) == list(range(30)) and list(order[24:]) == list(apart)


def problem(held=10, evaluation=Evaluation(1.0, "end", 2), epsilon=1.0):  # noqa: B008
    return problem_of((SiloFacts("ash", 50, held),), 3, 1.0, 1.0, 10.0, 1, Budget(epsilon, 1e-5), evaluation=evaluation)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"held": 0}, "needs records of each silo"),
        ({"held": 50}, "needs records of each silo"),
        ({"held": -1}, "needs records of each silo"),
        ({"evaluation": None}, "needs records of each silo"),
        ({"evaluation": Evaluation(None, "end", 2)}, "where training adds noise"),
        ({"epsilon": None}, "where training adds noise"),
    ],
)
def test_a_problem_without_records_on_both_sides_or_with_noise_on_one_is_refused(arguments, message):
    with pytest.raises(InputError, match=message):
        problem(**arguments)


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ((1.0, "round", 2), "phase or end"),
        ((1.0, "end", 1), "classes"),
        ((1.0, "end", 10**6), "classes"),
        ((1.0, "end", 2, 3), "even"),
        ((1.0, "end", 2, 128), "even"),
        ((1.0, "end", 2, 4, 0.0), "norm of records"),
        ((1.0, "end", 2, 4, float("nan")), "norm of records"),
    ],
)
def test_an_evaluation_of_impossible_numbers_is_refused(numbers, message):
    with pytest.raises(InputError, match=message):
        Evaluation(*numbers)


def test_a_target_out_of_range_is_refused_when_it_is_planned():
    asked = problem(evaluation=Evaluation(1e9, "end", 2))
    with pytest.raises(InputError, match=r"epsilon = 1000000000 must lie between"):
        evaluated(Mbsgd(), asked).plan(asked)


def test_a_shown_plan_without_an_evaluation_says_so():
    plain = problem_of((SiloFacts("ash", 50),), 3, 1.0, 1.0, 10.0, 1, Budget(1.0, 1e-5))
    shown = Mbsgd().plan(plain).as_json()
    assert shown["problem"]["evaluation"] is None and shown["problem"]["silos"] == [{"name": "ash", "n": 50, "held": 0}]
    assert "numbers" not in json.dumps(shown["phases"])
    shown = evaluated(Mbsgd(), problem()).plan(problem()).as_json()
    assert shown["problem"]["evaluation"]["epsilon"] == 1.0 and shown["problem"]["silos"][0]["held"] == 10
    assert shown["phases"][-1]["numbers"] == problem().evaluation.cells


def test_delta_is_that_of_all_records_and_training_is_about_the_rest():
    config = load_experiment(DIGITS, ["evaluation.fraction=0.25", "algorithm.name=scaffold", "algorithm.rounds=4"])
    plan, plain = make_plan(config), make_plan(config.model_copy(update={"evaluation": None}))
    for silo, before in zip(plan.problem.silos, plain.problem.silos, strict=True):
        n = before.n
        assert (silo.n, silo.held) == (n, n // 4)
        assert plan.phases[0].by_silo[silo.name].delta == plain.phases[0].by_silo[silo.name].delta == 1 / n**2
        assert plan.phases[0].by_silo[silo.name].n == n - n // 4
        assert plan.silo_epsilon(silo.name) <= config.privacy.epsilon * (1 + 1e-9)


@pytest.mark.parametrize("name", ["mbsgd", "localized-accelerated", "one-pass-mbsgd", "scaffold", "localized-mbsgd"])
def test_evaluations_of_at_most_trainings_target_leave_its_epsilon_as_it_is(name):
    base = [f"algorithm.name={name}", "privacy.epsilon=3"]
    for epsilon, whole in (("null", 3.0), ("0.2", 3.0), ("5", 5.0)):
        plan = make_plan(load_experiment(DIGITS, [*base, f"evaluation.epsilon={epsilon}"]))
        assert plan.epsilon_accounted == pytest.approx(whole, rel=2e-3)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["evaluation.bins=3"], "evaluation.bins"),
        (["evaluation.fraction=0.6"], "evaluation.fraction"),
        (["evaluation.every=round"], "evaluation.every"),
        (["evaluation.epsilon=0"], "evaluation.epsilon"),
        (["evaluation.epsilon=1", "privacy.trust=none", "privacy.epsilon=null"], "evaluation.epsilon has no meaning"),
        (
            ["evaluation.every=end", "privacy.epsilon=null", "privacy.noise_multiplier=3", "algorithm.name=mbsgd"],
            "evaluation.epsilon is missing",
        ),
    ],
)
def test_a_config_that_does_not_fit_names_the_key(overrides, message):
    with pytest.raises(InputError, match=message):
        load_experiment(DIGITS, overrides)


def test_labels_that_are_no_classes_and_bins_of_several_are_refused_before_anything_is_asked():
    ten = ["model.loss.name=softmax", "data.labels=digit"]
    with pytest.raises(InputError, match=r"evaluation.bins = 4 is for two classes; of 10"):
        make_plan(load_experiment(DIGITS, [*ten, "evaluation.bins=4"]))
    assert make_plan(load_experiment(DIGITS, [*ten, "evaluation.every=end"])).phases[-1].question.cells == 100
    with pytest.raises(InputError, match="counts classes, and loss 'huber' takes real numbers"):
        make_plan(load_experiment(DIGITS, ["model.loss.name=huber", "evaluation.every=end"]))


def test_another_evaluation_is_another_run_and_none_is_the_one_of_before():
    ids = [run_id(load_experiment(DIGITS, more)) for more in ([], ["evaluation=null"], ["evaluation.every=phase"])]
    assert ids[0] == ids[1] != ids[2]
