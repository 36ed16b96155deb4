"""An account's charge for a phase's blocks, against all events one by one and against every single record."""

import math

import pytest

from fedcore.accounting.composition import spent, worst_mu_squared
from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.experiment import make_plan

METHODS = {
    "full batches": {"name": "mbsgd", "rounds": 7, "step": 1},
    "samples": {"name": "mbsgd", "rounds": 3, "step": 1, "batch": 9},
    "shards": {"name": "localized-mbsgd", "rounds": [4, 3, 2], "lam": 0.1, "step": 1},
    "blocks": {"name": "one-pass-mbsgd", "rounds": 9, "step": 1},
    "blocks of stages": {"name": "one-pass-accelerated-mbsgd", "rounds": 9},
    "parts": {"name": "diff2", "rounds": 9, "period": 4, "step": 0.1},
    "local steps": {"name": "scaffold", "rounds": 3, "local_steps": 2, "sampling_rate": 0.2, "warm": True},
}


def plan(method, **sections):
    values = {
        "data": {"source": "synthetic", "silos": 3, "records": 45, "features": 2},
        "privacy": {"epsilon": 2},
        "algorithm": METHODS[method],
    }
    return make_plan(ExperimentConfig.model_validate(values | sections))


@pytest.mark.parametrize("evaluated", [False, True])
@pytest.mark.parametrize("method", METHODS)
def test_a_charge_is_that_of_all_events(method, evaluated):
    made = plan(method, **({"evaluation": {"epsilon": 1, "every": "phase"}} if evaluated else {}))
    for silo in made.problem.sizes:
        events, charged = made.silo_events(silo), made.charged_events(silo)
        delta = made.problem.budget.delta(made.problem.sizes[silo])
        assert spent(charged, delta) == spent(events, delta) == made.silo_epsilon(silo)
        assert worst_mu_squared(charged) == worst_mu_squared(events)
        # Record by record, without any grouping.
        naive = [
            math.fsum(event.gdp_mu_squared for event in events if event.start <= position < event.stop)
            for position in range(made.problem.sizes[silo])
        ]
        assert worst_mu_squared(charged) == pytest.approx(max(naive), rel=1e-14)
        if "blocks" in method:
            assert len(charged) == len(made.phases) < len(events)


def test_equal_events_count_each_time():
    made = plan("full batches")
    (event,) = made.phases[0].events(next(iter(made.problem.sizes)))
    assert worst_mu_squared([event] * 5) == pytest.approx(5 * worst_mu_squared([event]), rel=1e-15)
    assert worst_mu_squared(iter([event, event])) == math.fsum([event.gdp_mu_squared] * 2)


def test_blocks_are_accounted_in_a_time_that_does_not_depend_on_their_number():
    values = {
        "data": {"source": "synthetic", "silos": 2, "records": 400_000, "features": 2},
        "privacy": {"epsilon": 2},
        "algorithm": {"name": "one-pass-mbsgd", "rounds": 100_000, "step": 1},
    }
    made = make_plan(ExperimentConfig.model_validate(values))
    silo = next(iter(made.problem.sizes))
    (charged,) = made.charged_events(silo)
    assert (charged.start, charged.stop) == (0, 100_000 * int(made.phases[0].by_silo[silo].batch))
