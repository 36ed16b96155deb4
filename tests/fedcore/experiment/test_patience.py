"""The rule by which a sweep abandons a step, on sequences worked by hand, and the ladders that it goes down."""

from __future__ import annotations

import math

import pytest

from fedcore.experiment.patience import PatienceConfig
from fedcore.experiment.sweep import SweepConfig
from flows.sweep_files import sweep_id
from tests.fedcore.refusal import refusal

RULE = PatienceConfig(every=20, factor=1.05, limit=3)
GRID = {"algorithm.step": [0.25, 1, 0.5], "seed": [0, 1]}


def sweep(patience: dict | None, grid: dict = GRID, **base: object) -> SweepConfig:
    values = {
        "data": {"source": "synthetic", "silos": 2, "records": 30, "features": 3},
        "privacy": {"epsilon": 2},
        "algorithm": {"name": "mbsgd", "rounds": 40},
        **base,
    }
    made = {"name": "s", "base": values, "grid": grid}
    return SweepConfig.model_validate(made if patience is None else made | {"patience": patience})


@pytest.mark.parametrize(
    "losses, ends",
    [
        ([], None),
        ([5.0, 4.0, 3.0], None),
        ([1.0, 2.0, 2.0, 2.0], 4),  # three looks above the least
        ([1.0, 2.0, 2.0], None),
        ([1.0, 1.05, 1.05, 1.05, 1.05], None),  # 1.05 times is not above
        ([1.0, 1.0500001, 1.06, 1.07], 4),
        ([1.0, 2.0, 2.0, 1.0, 2.0], 5),  # as low as the least is not below it: nothing is given back
        ([1.0, 2.0, 2.0, 1.02, 1.0, 1.05, 2.0], 7),  # between the two nothing changes
        ([1.0, 2.0, 2.0, 0.999, 2.0, 2.0], None),  # a new least gives all back
        ([1.0, 2.0, 2.0, 0.999, 2.0, 2.0, 2.0], 7),
        ([1.0, 2.0, 2.0, 0.999, 1.04, 1.04, 1.04], None),  # below 1.05 times the new least
        ([3.0, 2.0, math.nan, 1.0], 3),
        ([math.nan], 1),
        ([2.0, math.inf], 2),
        ([0.0, 0.0, 0.0, 0.0], None),
        ([0.0, 1e-9, 1e-9, 1e-9], 4),
        ([9.0, 9.0, 9.0, 9.0], None),  # the first look is the least so far, however large
    ],
)
def test_the_rule_on_sequences_by_hand(losses, ends):
    found = RULE.verdict((20 * (place + 1), loss) for place, loss in enumerate(losses))
    assert (None if found is None else found.round) == (None if ends is None else 20 * ends)


def test_the_defaults_are_the_papers_and_a_verdict_says_why():
    paper = PatienceConfig()
    assert (paper.key, paper.every, paper.factor, paper.limit) == ("algorithm.step", 20, 1.05, 5)
    assert [round for round in range(1, 61) if paper.is_due(round)] == [20, 40, 60]
    found = paper.verdict([(20, 0.5), *((20 * place, 0.9) for place in range(2, 9))])
    assert (found.round, found.diverged) == (120, False)
    assert found.reason == ("since its least, 0.5, the training loss was above 1.05 times that at 5 looks, 0.9 last")


def test_ladders_hold_what_differs_in_the_key_alone_the_largest_first():
    found = sweep({}).ladders()
    assert [ladder.values for ladder in found] == [(1, 0.5, 0.25)] * 2
    assert [[cell.algorithm.step for cell in ladder.cells] for ladder in found] == [[1, 0.5, 0.25]] * 2
    assert [ladder.apart for ladder in found] == [{"seed": 0}, {"seed": 1}]
    assert [{cell.seed for cell in ladder.cells} for ladder in found] == [{0}, {1}]
    assert sweep(None).ladders() == ()


def test_values_may_come_from_variants_and_methods_have_ladders_of_their_own():
    values = {
        "name": "s",
        "base": sweep(None).base,
        "grid": {"algorithm.step": [1, 0.5]},
        "patience": {"every": 5},
        "variants": [
            {},
            {"set": {"algorithm": {"name": "scaffold", "rounds": 20}}, "grid": {"algorithm.step": [2, 4]}},
            {"set": {"algorithm.step": 8}, "grid": {}},
        ],
    }
    found = SweepConfig.model_validate(values).ladders()
    assert [(ladder.apart["algorithm.name"], ladder.values) for ladder in found] == [
        ("mbsgd", (8, 1, 0.5)),
        ("scaffold", (4, 2)),
    ]


def test_every_patience_of_a_sweep_has_an_id_of_its_own():
    plain = sweep(None)
    known = {sweep_id(plain), sweep_id(sweep({})), sweep_id(sweep({"limit": 4})), sweep_id(sweep({"every": 10}))}
    assert len(known) == 4
    kept = sweep({"limit": 4})
    assert SweepConfig.model_validate(kept.model_dump(mode="json")) == kept


FILES = {
    "source": "files",
    "silos": [{"name": "a", "path": "a.csv"}],
    "features": ["x"],
    "label": "y",
    "classes": [0, 1],
}


@pytest.mark.parametrize(
    "changed, message",
    [
        ({"privacy": {"epsilon": 2, "noise": "guarded", "ledger": "sqlite"}}, "which privacy.noise = guarded protects"),
        ({"tracking": {"simulation_metrics": False}}, "tracking.simulation_metrics = false: set it to true"),
        ({"data": FILES}, "only where tracking.simulation_metrics = true says"),
    ],
)
def test_what_shows_no_training_losses_is_refused(changed, message):
    sentence = refusal(sweep({}, **changed).cells, "sweep.yaml")
    assert sentence.startswith("sweep.yaml: patience judges by training losses of raw records (simulation/)")
    assert message in sentence
    assert sweep(None, **changed).cells()


def test_ones_own_files_are_judged_where_they_may_be_shown():
    assert sweep({}, data=FILES, tracking={"simulation_metrics": True}).ladders()


@pytest.mark.parametrize(
    "patience, grid, message",
    [
        ({"key": "algorithm.length"}, GRID, "patience.key = algorithm.length: mbsgd has no such key"),
        ({}, {"algorithm.step": [1, "theory"]}, "algorithm.step is 'theory' in a cell of mbsgd"),
        ({"key": "algorithm.average"}, GRID, "algorithm.average is 'uniform' in a cell of mbsgd"),
    ],
)
def test_what_is_no_ladder_is_refused(patience, grid, message):
    assert message in refusal(sweep(patience, grid).cells)


@pytest.mark.parametrize("wrong", [{"key": "seed"}, {"every": 0}, {"factor": 0.9}, {"limit": 0}, {"after": 3}])
def test_nonsense_is_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        PatienceConfig.model_validate(wrong)
