"""Guarded silos: secret keys in the ledger, noise on a grid, and nothing shown but releases."""

from __future__ import annotations

import math

import numpy as np
import pytest
from pydantic import ValidationError

from fedcore.accounting.gaussian import epsilon_of
from fedcore.algorithms import ALGORITHMS
from fedcore.data.records import Records
from fedcore.errors import SiloError
from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.experiment import Experiment
from fedcore.federation.rounds import rounds
from fedcore.home import LedgerFolders
from fedcore.ledger.account import account
from fedcore.ledger.sqlite import SqliteLedger
from fedcore.mechanisms.grid import Grid
from fedcore.silo.keys import SecretKeys
from fedcore.silo.private_silo import PrivateSilo
from tests.registers import registered

pytestmark = pytest.mark.usefixtures("policies")
ROUNDS = 7


def config(**privacy) -> ExperimentConfig:
    return ExperimentConfig.model_validate(
        {
            "data": {"source": "synthetic", "silos": 2, "records": 50, "features": 4, "test_records": 9},
            "privacy": {"epsilon": 2, "delta": 1e-5, "ledger": "sqlite", "noise": "guarded", **privacy},
            "algorithm": {"name": "mbsgd", "rounds": ROUNDS, "step": 0.5},
        }
    )


def opened(folder, made=None):
    experiment = Experiment.prepare(made or config(), folder / "silos")
    backend = registered(experiment, LedgerFolders.below(folder)).in_process(LedgerFolders.below(folder))
    backend.open()
    return experiment, backend


def play(experiment, backend, count=ROUNDS):
    loop = rounds(experiment.context, experiment.config.algorithm.init(experiment.start()), backend.ask)
    return [next(loop) for _ in range(count)]


def test_answers_lie_on_the_grid_of_the_plan_and_spend_the_target(tmp_path):
    experiment, backend = opened(tmp_path)
    history = play(experiment, backend)
    phase = experiment.plan.phases[0]
    for _, releases, _ in history:
        for release in releases:
            share = phase.by_silo[release.silo]
            grid = Grid.of(
                share.sigma * share.batch, phase.question.clip, share.batch, experiment.plan.problem.objective.dim
            )
            steps = release.payload * share.batch / grid.step
            # The mean was divided once: its multiple of the step is an integer up to that rounding.
            assert np.abs(steps - np.rint(steps)).max() <= 2e-16 * np.abs(steps).max()
    for each in backend.accounts(experiment.run):
        # By hand: R answers with the planned sigma, at what delta leaves; sensitivity with both slacks.
        share = phase.by_silo[each.silo]
        sensitivity = 2 * phase.question.clip * (1 + 1e-6) * (1 + 2**-20) * (1 + 2**-37) / share.batch
        assert each.epsilon == pytest.approx(epsilon_of(math.sqrt(ROUNDS) * sensitivity / share.sigma, 1e-5), rel=1e-11)
        assert 2 * (1 - 1e-11) <= each.epsilon <= 2 * (1 + 1e-12)
    backend.close()


@pytest.mark.parametrize("method", ["diff2", "diff2-bvr"])
def test_differences_lie_on_a_grid_in_units_of_the_step_and_spend_the_target(tmp_path, method):
    local = {"local_steps": 3, "batch": 8} if method == "diff2-bvr" else {}
    made = config().model_copy(
        update={"algorithm": ALGORITHMS[method](rounds=6, period=3, split=0.5, step=0.3, **local)}
    )
    experiment, backend = opened(tmp_path, made)
    whole, dim = experiment.plan.phases[0], experiment.plan.problem.objective.dim
    seen = 0
    for query, releases, _ in play(experiment, backend, whole.rounds):
        phase = whole.at(query.round)
        if phase.schedule.answers > 1:
            continue  # a trajectory, whose single answers are never sent
        unit = 1.0
        if "before" in query.arrays:
            unit = np.linalg.norm(query.arrays["w"] - query.arrays["before"])
            seen += 1
        for release in releases:
            share = phase.by_silo[release.silo]
            grid = Grid.of(share.sigma * unit * share.batch, phase.question.clip * unit, share.n, dim)
            steps = release.payload * share.batch / grid.step
            assert np.abs(steps - np.rint(steps)).max() <= 2e-16 * np.abs(steps).max()
    assert seen == 4
    for each in backend.accounts(experiment.run):
        assert 2 * (1 - 5e-3) <= each.epsilon <= 2 * (1 + 1e-12)
    backend.close()


def test_gradients_with_hessians_lie_on_the_grid_of_their_length_and_spend_the_target(tmp_path):
    made = config().model_copy(update={"algorithm": ALGORITHMS["noised-newton"](rounds=4, period=2, balance=2.0)})
    experiment, backend = opened(tmp_path, made)
    whole, clip = experiment.plan.phases[0], experiment.plan.problem.objective.clip
    for query, releases, _ in play(experiment, backend, whole.rounds):
        phase, both = whole.at(query.round), query.round % 2 == 1
        numbers = 5 + 15 * both
        # At balance 2 both parts are at most sqrt(3) C long, and two of them sqrt(2 + 4 + 1/4) C apart.
        reach, norm = (math.sqrt(6.25) / 2, math.sqrt(3)) if both else (1.0, 1.0)
        reach = max(reach, math.sqrt(4 + 2) / 2) if both else reach
        for release in releases:
            assert len(release.payload) == numbers
            share = phase.by_silo[release.silo]
            grid = Grid.of(share.sigma * share.n, reach * clip, share.n, numbers, norm=norm * clip)
            steps = release.payload * share.n / grid.step
            assert np.abs(steps - np.rint(steps)).max() <= 2e-16 * np.abs(steps).max()
    for each in backend.accounts(experiment.run):
        assert 2 * (1 - 1e-9) <= each.epsilon <= 2 * (1 + 1e-12)
    backend.close()


@pytest.mark.parametrize("sampling", ["all", "record"])
def test_inner_steps_of_newton_models_spend_the_target(tmp_path, sampling):
    chosen = ALGORITHMS["dp-fcrn"](rounds=3, local_steps=4, kept=0.5, sampling=sampling)
    experiment, backend = opened(tmp_path, config().model_copy(update={"algorithm": chosen}))
    for _, releases, _ in play(experiment, backend, 3):
        assert {release.payload.shape for release in releases} == {(3,)}
    for each in backend.accounts(experiment.run):
        assert 2 * (1 - 5e-3) <= each.epsilon <= 2 * (1 + 1e-12)
    backend.close()


def test_noise_is_secret_and_stays_with_the_run(tmp_path):
    """Two silos' homes with the same seed draw other noise; a run that is gone on with draws the same."""
    finals = []
    for place in ("one", "two"):
        experiment, backend = opened(tmp_path / place)
        finals.append(play(experiment, backend)[-1][1][0].payload)
        backend.close()
    assert (finals[0] != finals[1]).all()

    made = config(epsilon=1)
    experiment, backend = opened(tmp_path / "again", made)
    first = play(experiment, backend, 3)
    backend.close()
    experiment, backend = opened(tmp_path / "again", made)
    again = play(experiment, backend, 5)
    for (_, before, _), (_, after, _) in zip(first, again, strict=False):
        assert [r.payload.tobytes() for r in before] == [r.payload.tobytes() for r in after]
    backend.close()


def test_an_answer_that_was_not_committed_comes_out_the_same(tmp_path, monkeypatch):
    """The ledger refuses once, after the noise was drawn: nothing was sent, and the bytes are the same later."""
    experiment, backend = opened(tmp_path)
    seen, commit = [], SqliteLedger.commit

    def full(self, run, row, lease=0):
        seen.append(row.payload)
        raise SiloError("x", "ledger", "full")

    monkeypatch.setattr(SqliteLedger, "commit", full)
    with pytest.raises(SiloError, match="full"):
        play(experiment, backend, 1)
    monkeypatch.setattr(SqliteLedger, "commit", commit)
    assert play(experiment, backend, 1)[0][1][0].payload.tobytes() == seen[0]
    backend.close()


def test_a_closed_run_has_no_key_and_gives_back_nothing_new(tmp_path):
    experiment, backend = opened(tmp_path)
    play(experiment, backend, 4)
    backend.close_run(experiment.run)
    backend.close()
    experiment, backend = opened(tmp_path)
    play(experiment, backend, 4)
    with pytest.raises(SiloError) as caught:
        play(experiment, backend, 5)
    assert caught.value.code == "closed"
    backend.close()


def test_a_guarded_silo_shows_nothing_but_releases(tmp_path):
    experiment, backend = opened(tmp_path)
    assert experiment.config.simulation_metrics is False
    with pytest.raises(SiloError) as caught:
        backend.simulated(experiment.run, experiment.start())
    assert caught.value.code == "guarded"
    backend.close()


def test_a_silo_refuses_noise_of_another_kind_and_none(tmp_path):
    for made, guarded in (
        (config(noise="seeded"), True),
        (config(trust="none", epsilon=None, noise="seeded"), True),
        (config(), False),
    ):
        experiment = Experiment.prepare(made, tmp_path / "silos")
        facts = experiment.plan.problem.silos[0]
        ledger = SqliteLedger(facts.name, tmp_path / "a.sqlite", tmp_path / "a.anchor")
        records = Records(np.zeros((facts.n, experiment.plan.problem.objective.dim)), np.ones(facts.n))
        silo = PrivateSilo(facts.name, records, SecretKeys(b"k" * 32), ledger, guarded=guarded)
        with pytest.raises(SiloError) as caught:
            silo.approve("run", experiment.plan, made.algorithm, made.model.loss)
        assert caught.value.code == "noise"
        assert account(ledger)["runs"] == []  # nothing was charged
        ledger.close()


def test_configs_that_could_not_hold_their_promise_are_refused():
    for values, sentence in (
        ({"ledger": "memory"}, "needs privacy.ledger = sqlite"),
        ({"trust": "none", "epsilon": None}, "has no meaning with privacy.trust = none"),
    ):
        with pytest.raises(ValidationError, match=sentence):
            config(**values)
    with pytest.raises(ValidationError, match="simulation_metrics"):
        ExperimentConfig.model_validate({**config().model_dump(), "tracking": {"simulation_metrics": True}})
