"""What a shuffler cannot hide is refused by the problem itself, wherever it comes from."""

import pytest

from fedcore.accounting.calibration import Budget
from fedcore.algorithms import ALGORITHMS
from fedcore.errors import InputError
from fedcore.losses import Logistic
from fedcore.planning.evaluation import Evaluation
from fedcore.planning.plan import Plan, agreed_problem
from fedcore.planning.problem import Problem, SiloFacts
from fedcore.planning.shuffle import Shuffle
from fedcore.silo.agreement import Agreement


def problem(sizes=(8, 8, 8), minimum=3, **more):
    silos = tuple(SiloFacts(f"s{i}", n, 2 * ("evaluation" in more)) for i, n in enumerate(sizes))
    given = {"participants": len(sizes), "budget": Budget(1.0, 1e-4), "shuffle": Shuffle(minimum), **more}
    return Problem(silos, 3, 1.0, 1.0, 10.0, **given)


@pytest.mark.parametrize(
    "changed, sentence",
    [
        ({"sizes": (8, 9, 8)}, "silos of equal size, and these have 8 to 9"),
        ({"minimum": 1}, "shuffler.minimum = 1 must be from 2 to the 3"),
        ({"minimum": 4}, "shuffler.minimum = 4 must be from 2 to the 3"),
        ({"participants": (3, 4)}, "participation.silos_per_round a number"),
        ({"participants": 2}, "shuffler.minimum = 3 must be from 2 to the 2"),
        ({"weights": (2.0, 0.5, 0.5)}, "participation.weights = equal"),
        ({"evaluation": Evaluation(1.0, "end", 2)}, "no evaluation"),
    ],
)
def test_what_would_tell_silos_apart_is_refused(changed, sentence):
    with pytest.raises(InputError, match=sentence.replace(".", r"\.")):
        problem(**changed)


@pytest.mark.parametrize("name, hyper, sentence", [
    ("mbsgd", {"batch": 3}, "full batches only"),
    ("fedavg", {"rounds": 3, "local_steps": 2}, "one answer a round"),
    ("scaffold", {"rounds": 3, "local_steps": 2}, "one answer a round"),
])  # fmt: skip
def test_a_plan_of_samples_or_of_several_answers_is_refused(name, hyper, sentence):
    with pytest.raises(InputError, match=sentence):
        ALGORITHMS[name](**hyper).plan(problem())


def test_a_problem_without_a_shuffler_has_no_word_of_it_in_digests():
    plain, shuffled = problem(shuffle=None), problem()
    assert "shuffle" not in agreed_problem({"shuffle": plain.shuffle})
    assert Plan(plain, ()).digest != Plan(shuffled, ()).digest != Plan(problem(minimum=2), ()).digest


def test_an_agreement_carries_the_minimum():
    sent = Agreement("run", problem(minimum=2), ALGORITHMS["mbsgd"](), Logistic(), "0" * 64)
    assert Agreement.from_bytes(sent.to_bytes()).problem.shuffle == Shuffle(2)
