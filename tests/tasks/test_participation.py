"""A random number of participants through the engine of a run: resumed bits, charges, and tracked values."""

import numpy as np
import pytest

from fedcore.home import LedgerFolders
from tasks.run_parameters import run_parameters
from tasks.run_store import RunStore
from tasks.training import Training
from tests.tasks.five_silos import experiment

LISTED, COINS = [1, 2, 2, 5], {"binomial": 0.4}


def training(made, folder, stop_after=None):
    """A training in this process, to its end or for some rounds, with a durable store."""
    folder.mkdir(exist_ok=True)
    backend = made.in_process(LedgerFolders.below(folder))
    found = Training(made, backend, RunStore(folder / "run.sqlite"), None)
    found.start()
    done = 0
    while found.phase is not None and done != stop_after:
        found.advance()
        done += 1
    return found


def finished(made, folder):
    whole = training(made, folder)
    result = whole.finish()
    whole.backend.close()
    return result


@pytest.mark.parametrize(
    ("algorithm", "law", "ledger"),
    [
        ("mbsgd", COINS, "memory"),
        ("scaffold", LISTED, "sqlite"),
        ("localized-accelerated", LISTED, "memory"),
        ("one-pass-mbsgd", COINS, "sqlite"),
    ],
)
def test_a_run_that_is_stopped_anywhere_ends_with_the_same_bits_and_charges(tmp_path, algorithm, law, ledger):
    sections = {"participation": {"silos_per_round": law}, "privacy": {"epsilon": 3, "ledger": ledger}}
    made = experiment(tmp_path, algorithm, **sections)
    whole = finished(made, tmp_path / "whole")
    for rounds in (1, made.plan.rounds - 2):
        folder = tmp_path / f"stopped-{rounds}"
        stopped = training(made, folder, stop_after=rounds)
        stopped._checkpoint()
        stopped.backend.close()
        resumed = finished(made, folder)
        assert resumed.weights_sha256 == whole.weights_sha256
        assert [silo.releases for silo in resumed.silos] == [silo.releases for silo in whole.silos]
        assert resumed.epsilon_spent == pytest.approx(whole.epsilon_spent, rel=1e-12)
    assert whole.epsilon_spent <= whole.epsilon_accounted <= 3  # noise is for a silo that is asked in every round
    assert len({silo.releases for silo in whole.silos}) > 1


@pytest.mark.parametrize(("law", "shown"), [(LISTED, {"": "[1, 2, 2, 5]"}), (COINS, {".binomial": 0.4}), (3, None)])
def test_parameters_of_a_run_have_the_law_and_its_means(tmp_path, law, shown):
    made = experiment(tmp_path, "mbsgd", participation={"silos_per_round": law})
    values = run_parameters(made.config, made.plan)
    drawn = {key.removeprefix("plan.participants"): value for key, value in values.items() if "plan.part" in key}
    if shown is None:
        assert drawn == {"": 3} and values["participation.silos_per_round"] == 3
        return
    chances = (
        {1: 1, 2: 2, 5: 1}
        if law == LISTED
        else {m: c * 0.4**m * 0.6 ** (5 - m) for m, c in zip(range(1, 6), (5, 10, 10, 5, 1), strict=True)}
    )
    m, p = np.array(list(chances)), np.array(list(chances.values())) / sum(chances.values())
    means = {".expected": p @ m, ".M": 1 / (p @ (1 / m)), ".M_prime": 1 / np.sqrt(p @ (1 / m**2.0))}
    for key, value in shown.items():
        assert drawn.pop(f".law{key}") == value == values[f"participation.silos_per_round{key}"]
    assert drawn == pytest.approx(means)
    # In whole, shown values are what MLflow can take: text, numbers or nothing.
    assert all(value is None or isinstance(value, str | int | float) for value in values.values())
