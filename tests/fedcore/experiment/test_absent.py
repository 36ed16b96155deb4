"""`participation.absent`: where silos may be skipped, and that it makes no other run."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.identity import canonical, placeless

FEDERATION = {
    "data": {
        "source": "federation",
        "federation": "heart",
        "features": {"age": {"range": [20, 90]}},
        "label": "disease",
        "classes": [0, 1],
    },
    "privacy": {"epsilon": 2, "noise": "guarded", "ledger": "sqlite"},
    "algorithm": {"name": "mbsgd", "rounds": 3},
}


def config(**sections):
    return ExperimentConfig.model_validate({**FEDERATION, **sections})


def test_a_run_that_waits_and_one_that_skips_are_one_run():
    waits, skips = config(), config(participation={"absent": "skip", "deadline": 5, "minimum": 2})
    assert canonical(waits) == canonical(skips)
    assert placeless(waits.model_dump(mode="json")) == placeless(skips.model_dump(mode="json"))
    assert canonical(waits) != canonical(config(participation={"silos_per_round": 2}))


@pytest.mark.parametrize(
    ("sections", "sentence"),
    [
        ({"data": {"source": "synthetic"}}, "about the services of data.source = federation, not synthetic"),
        (
            {"data": {"source": "digits"}, "privacy": {"epsilon": 2, "trust": "central"}},
            "aggregator needs all silos",
        ),
        ({"evaluation": {"fraction": 0.2}}, "counts the held-out records of all silos"),
    ],
)
def test_silos_are_skipped_only_where_the_result_allows_it(sections, sentence):
    if "data" in sections:
        sections = {"privacy": {"epsilon": 2}, **sections}
    with pytest.raises(ValidationError, match=sentence):
        config(**sections, participation={"absent": "skip"})


@pytest.mark.parametrize("wrong", [{"absent": "later"}, {"deadline": 0}, {"deadline": 10**9}, {"minimum": 0}])
def test_values_out_of_bounds_are_refused(wrong):
    with pytest.raises(ValidationError):
        config(participation=wrong)
