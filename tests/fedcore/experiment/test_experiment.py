"""From a config to a run, without any engine: planning touches nothing, a run in this process ends with a model."""

import json
import math
import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from fedcore.algorithms import ALGORITHMS
from fedcore.data.silo_file import open_records
from fedcore.errors import InputError, SiloError
from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.experiment import Experiment, make_plan
from fedcore.experiment.identity import run_id
from fedcore.experiment.problem import make_problem
from fedcore.federation.rounds import rounds
from fedcore.home import LedgerFolders
from fedcore.planning.problem import SiloFacts
from tests.contract.epsilon_by_hand import events_by_hand
from tests.processors import on

SHUFFLED = {"trust": "shuffler", "ledger": "sqlite"}
HYPER = {"localized-accelerated": {"rounds": [8, 5, 3], "lam": 0.01}, "localized-mbsgd": {"rounds": [8, 5, 3]}}


def config(method="localized-mbsgd", **sections):
    values = {
        "seed": 5,
        "data": {"source": "synthetic", "silos": 4, "records": 30, "features": 3, "test_records": 200},
        "model": {"diameter": 10},
        "privacy": {"epsilon": 4},
        "algorithm": {"name": method, **HYPER.get(method, {})},
    }
    return ExperimentConfig.model_validate(values | sections)


def play(experiment, folder):
    backend = experiment.in_process(LedgerFolders.below(folder), folder / "log.txt")
    backend.open()
    try:
        method = experiment.config.algorithm
        for _, _, state in rounds(experiment.context, method.init(experiment.start()), backend.ask):  # noqa: B007
            pass
        return method.output(state), backend.accounts(experiment.run)
    finally:
        backend.close()


_OPENED: list | None = None


def _listen(event, arguments):
    if _OPENED is not None and event in ("open", "os.mkdir", "os.rename", "os.remove", "sqlite3.connect"):
        _OPENED.append((event, arguments))


sys.addaudithook(_listen)


def test_planning_the_digits_opens_and_writes_no_file(tmp_path, monkeypatch):
    global _OPENED
    monkeypatch.chdir(tmp_path)
    digits = config(data={"source": "digits"}, algorithm={"name": "mbsgd"})
    make_plan(digits)  # imports are over
    _OPENED = []
    try:
        plan = make_plan(digits)
        json.dumps(plan.as_json(), allow_nan=False)
    finally:
        seen, _OPENED = _OPENED, None
    assert seen == [] and os.listdir(tmp_path) == []
    # 1,797 images less a fifth, in 25 silos; d = 64 pixels and the bias.
    assert sum(silo.n for silo in plan.problem.silos) == 1797 - 359
    assert (plan.problem.n_silos, plan.problem.objective.dim) == (25, 65)
    assert {silo.n for silo in plan.problem.silos} <= {55, 56, 57, 58, 59, 60}


@pytest.mark.parametrize("method", sorted(ALGORITHMS))
def test_a_run_in_this_process_ends_as_planned(method, tmp_path):
    made = config(method)
    experiment = Experiment.prepare(made, tmp_path / "silos")
    assert experiment.plan.digest == make_plan(made).digest
    w, accounts = play(experiment, tmp_path)
    assert w.shape == (4,) and np.isfinite(w).all() and 0 < np.linalg.norm(w) <= 5 * (1 + 1e-12)
    for account in accounts:
        assert 0.999 * 4 <= account.epsilon <= 4
        assert account.epsilon == pytest.approx(experiment.plan.silo_epsilon(account.silo), rel=1e-12)
        assert (account.n, account.delta) == (30, 1 / 900)
        asked = len(list(events_by_hand(experiment.plan, account.silo)))  # all rounds, but for other silos' turns
        assert account.releases == account.computed == asked
    done = [line.split() for line in (tmp_path / "log.txt").read_text().splitlines() if " end " in line]
    # One line for each answer that was computed.
    assert len(done) == sum(len(list(events_by_hand(experiment.plan, silo.silo))) for silo in accounts)
    assert set(os.listdir(tmp_path)) == {"silos", "log.txt"}  # memory ledgers leave nothing
    again, _ = play(Experiment.prepare(made, tmp_path / "elsewhere"), tmp_path)
    assert again.tobytes() == w.tobytes()


def test_without_noise_the_run_learns_what_plain_gradient_descent_learns(tmp_path):
    made = config("mbsgd", privacy={"trust": "none"}, algorithm={"name": "mbsgd", "rounds": 60, "average": "last"})
    experiment = Experiment.prepare(made, tmp_path)
    w, accounts = play(experiment, tmp_path)
    assert all(account.epsilon == math.inf for account in accounts)
    v = np.zeros(4)
    held = [open_records(source) for source in experiment.dataset.sources]
    for _ in range(60):
        v -= 4.0 * np.mean([(-r.y / (1 + np.exp(r.y * (r.X @ v)))) @ r.X / r.n for r in held], axis=0)
        v *= min(1.0, 5 / np.linalg.norm(v))
    np.testing.assert_allclose(w, v, rtol=1e-9)
    train = [experiment.model.evaluate(w, r.X, r.y)[1].mean() for r in held]
    errors = [np.mean(np.where(r.X @ v >= 0, 1.0, -1.0) != r.y) for r in held]
    assert train == errors and np.mean(train) < 0.5


def test_a_cap_stops_the_run_that_would_pass_it_and_leaves_the_others_alone(tmp_path):
    """Two runs at epsilon 2 cost sqrt(2) mu(2), which is epsilon 2.93; three cost 3.67."""
    ledger = {"epsilon": 2, "delta": 1e-6, "ledger": "sqlite", "cap": {"epsilon": 3.2, "delta": 1e-6}}
    made = [
        Experiment.prepare(config("mbsgd", privacy=ledger, repetition=repetition), tmp_path / "silos")
        for repetition in range(3)
    ]
    first, _ = play(made[0], tmp_path)
    play(made[1], tmp_path)
    backend = made[2].in_process(LedgerFolders.below(tmp_path))
    message = r"cap of epsilon 3\.2 .* left .runs so far: 2.; run .* asks for 2 at delta 1e-06"
    with pytest.raises(SiloError, match=message):
        backend.open()
    with pytest.raises(SiloError, match="has not approved"):
        backend.ask(made[2].context.query(made[2].config.algorithm.init(made[2].start())))
    backend.close()
    # What was done stays: the first run is answered again from the ledger, to the same bits.
    again, accounts = play(made[0], tmp_path)
    assert again.tobytes() == first.tobytes() and all(account.computed == 0 for account in accounts)


def test_durable_ledgers_keep_a_run_and_another_run_adds_to_them(tmp_path):
    made = config("mbsgd", privacy={"epsilon": 4, "ledger": "sqlite"})
    experiment = Experiment.prepare(made, tmp_path / "silos")
    first, _ = play(experiment, tmp_path)
    again, accounts = play(experiment, tmp_path)
    assert again.tobytes() == first.tobytes()
    assert all((a.computed, a.releases) == (0, experiment.plan.rounds) for a in accounts)
    assert len(list((tmp_path / "ledgers").rglob("*.sqlite"))) == 4
    other = Experiment.prepare(made.model_copy(update={"repetition": 1}), tmp_path / "silos")
    second, accounts = play(other, tmp_path)
    assert second.tobytes() != first.tobytes()
    assert all(a.computed == other.plan.rounds for a in accounts)


@pytest.mark.parametrize(
    "sections, message",
    [
        ({"participation": {"silos_per_round": 5}}, r"participation\.silos_per_round = 5 .* 4 silos"),
        ({"privacy": {"epsilon": 1, "delta": 0.05}}, r"privacy\.delta = 0\.05 must be below 1/n .* silo-000"),
        ({"privacy": {"epsilon": 40, "calibration": "paper"}}, r"privacy\.epsilon = 40 is outside"),
        ({"algorithm": {"name": "one-pass-mbsgd", "rounds": 31}}, r"silo-000: 30 records .* algorithm\.rounds = 31"),
    ],
)
def test_what_does_not_fit_the_silos_is_told_before_work_starts(sections, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=message):
        make_plan(config(**sections))
    with pytest.raises(InputError, match=message):
        Experiment.prepare(config(**sections), tmp_path / "silos")


@pytest.mark.parametrize("method", ["mbsgd", "fedavg"])
@pytest.mark.parametrize("multiplier", [5e-324, 1e-300])
def test_noise_that_no_epsilon_is_accounted_for_is_no_guarantee(method, multiplier, tmp_path):
    """A subnormal multiplier gives a sigma of 0 or nearly 0; that is trust none, and the config must declare it."""
    made = config(method, privacy={"noise_multiplier": multiplier, "delta": 1e-5})
    for planned in (make_plan, lambda made: Experiment.prepare(made, tmp_path)):
        with pytest.raises(InputError, match=r"say privacy.trust = none"):
            planned(made)


def test_a_silo_of_one_record_is_refused():
    with pytest.raises(InputError, match="silo b: 1 records are too few"):
        make_problem(config(), [SiloFacts("a", 5), SiloFacts("b", 1)], 3)


def test_problem_is_made_of_public_constants():
    made = config(model={"diameter": 7, "feature_bound": 2.0}, participation={"silos_per_round": 3})
    problem = make_problem(made, [SiloFacts(name, n) for name, n in (("a", 9), ("b", 8), ("c", 20))], 6)
    # Logistic loss: 1-Lipschitz and 1/4-smooth in z, records of norm at most 2.
    assert (problem.objective.clip, problem.objective.smoothness, problem.objective.diameter) == (2.0, 1.0, 7)
    assert (problem.n, problem.n_silos, problem.participants, problem.objective.dim) == (8, 3, 3, 6)
    assert problem.delta == 1 / 64


def test_plan_digest_is_the_same_in_another_process_that_uses_all_instructions_of_the_processor():
    target = {"epsilon": 1.3, "delta": 1e-5}
    made = [config(method) for method in sorted(ALGORITHMS)]
    made += [config(method, privacy=target) for method in sorted(ALGORITHMS)]
    mbsgd = {"name": "mbsgd", "rounds": 5}
    for changes in ({"whole_silo": {"epsilon": 30.0, "delta": 1e-6}}, {"calibration": "paper"}, SHUFFLED):
        made.append(config(privacy=target | changes, algorithm=mbsgd))
    made.append(config(privacy=target, algorithm=mbsgd, evaluation={"epsilon": 0.3}))
    code = (
        "import sys, json; from fedcore.experiment.config import ExperimentConfig;"
        "from fedcore.experiment.experiment import make_plan; from fedcore.experiment.identity import run_id;"
        "made = [ExperimentConfig.model_validate_json(line) for line in sys.stdin];"
        "print(json.dumps([[make_plan(c).digest, run_id(c)] for c in made]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        input="\n".join(c.model_dump_json() for c in made),
        env={**on(), "PYTHONHASHSEED": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout) == [[make_plan(c).digest, run_id(c)] for c in made]


def test_plan_digest_covers_noise_and_no_epsilon_that_follows_from_it():
    plan = make_plan(config())
    phase = plan.phases[0]

    def digest(**changes) -> str:
        shares = (replace(phase.shares[0], **changes), *phase.shares[1:])
        return replace(plan, phases=(replace(phase, shares=shares), *plan.phases[1:])).digest

    share = phase.shares[0]
    assert digest(epsilon_accounted=3.0, epsilon_paper=2.0) == digest() == plan.digest
    assert digest(sigma=math.nextafter(share.sigma, 1.0)) != plan.digest != digest(n=share.n - 1)


def test_plan_digest_covers_what_a_silo_must_agree_to():
    base = make_plan(config()).digest
    changes = [
        {"privacy": {"epsilon": 4.000001}},
        {"privacy": {"epsilon": 4, "delta": 1e-6}},
        {"privacy": {"epsilon": 4, "calibration": "paper"}},
        {"privacy": {"trust": "none"}},
        {"model": {"diameter": 10, "clip": 0.9}},
        {"model": {"diameter": 11}},
        {"algorithm": {"name": "localized-mbsgd", "rounds": [8, 5, 4]}},
        {"algorithm": {"name": "localized-mbsgd", "rounds": [8, 5, 3], "max_phases": 2}},
        {"participation": {"silos_per_round": 3}},
    ]
    digests = {make_plan(config(**change)).digest for change in changes}
    assert len({base, *digests}) == len(changes) + 1
