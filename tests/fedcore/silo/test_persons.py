"""A silo of persons: whole persons in shards and samples, sizes, units that do not fit, guarded noise, metrics."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from fedcore.accounting.calibration import Budget
from fedcore.algorithms import Fedavg, LocalizedMbsgd, Mbsgd
from fedcore.arrays import pack
from fedcore.data.persons import of_persons
from fedcore.data.records import Records
from fedcore.data.silo_file import open_records
from fedcore.errors import InputError, SiloError
from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.experiment import Experiment
from fedcore.federation.rounds import rounds
from fedcore.home import LedgerFolders
from fedcore.ledger.memory import MemoryLedger
from fedcore.losses import Absolute, Squared
from fedcore.mechanisms.grid import Grid
from fedcore.messages import Query, Releases
from fedcore.planning.evaluation import held_out
from fedcore.planning.problem import SiloFacts
from fedcore.silo.agreement import Agreement
from fedcore.silo.answers import Gradient, Histogram, Shard
from fedcore.silo.keys import SecretKeys
from fedcore.silo.opening import SiteSpec
from fedcore.silo.private_silo import PrivateSilo
from fedcore.silo.site import Site
from studies.figures.optimum import least_training_loss
from tests.problems import problem_of
from tests.registers import registered

PERSONS, PLACES, CLIP = 24, 4, 0.5
SAMPLED = [Mbsgd(rounds=3, batch=6), Fedavg(rounds=2, local_steps=2, sampling_rate=0.25)]


def persons(rng, count=PERSONS):
    """Persons of 1 to 7 rows; a row's first feature is its person's number, from 1."""
    whose = np.repeat(np.arange(count), rng.integers(1, 8, count))
    X = np.column_stack([whose + 1.0, rng.standard_normal(len(whose))])
    return of_persons(Records(X, rng.standard_normal(len(whose))), whose, PLACES, "patient"), whose, X


def problem(n=PERSONS, person="patient", budget=None, **more):
    values = {"dim": 2, "clip": CLIP, "smoothness": math.inf, "diameter": 4.0, "participants": 1, **more}
    return problem_of(silos=(SiloFacts("ash", n),), budget=budget or Budget(None, 1e-5), person=person, **values)


def opened(records, method, asked=None, loss=None):
    """A site of one silo that has approved a run."""
    silo, loss = PrivateSilo("ash", records, SecretKeys(b"k" * 32), MemoryLedger("ash")), loss or Absolute()
    asked = asked or problem()
    plan = method.plan(asked)
    site = Site([silo])
    site.approve(Agreement("run", asked, method, loss, plan.digest).to_bytes())
    return site, silo, plan


def ask(site, plan, phase=1, round=1, w=None):
    query = Query("run", plan.digest, phase, round, ("ash",), {"w": np.zeros(2) if w is None else w})
    (release,) = Releases.from_bytes(site.answer(query.to_bytes()), 2)
    return release.payload


@pytest.fixture
def asked_about(monkeypatch):
    """(shard, chosen, sum) of every sum that a silo makes."""
    seen, whole = [], Gradient.sum

    def noting(self, phase, shard, chosen, draw, *asked):
        total = whole(self, phase, shard, chosen, draw, *asked)
        seen.append((shard, chosen, total.copy()))
        return total

    monkeypatch.setattr(Gradient, "sum", noting)
    return seen


def owners(shard):
    """The owner of the filled places of each person of the shard."""
    numbers = shard.X[:, 0].reshape(-1, PLACES)
    assert shard.n == len(numbers) and shard.weights.reshape(-1, PLACES).sum(axis=1) == pytest.approx(np.ones(shard.n))
    found = [set(mine[mine > 0]) for mine in numbers]
    assert all(len(mine) == 1 for mine in found)  # no two persons share places
    return [int(mine.pop()) for mine in found]


def test_pieces_of_a_split_are_whole_persons_and_nobody_is_in_two(asked_about):
    records, _, _ = persons(np.random.default_rng(0))
    budget = Budget(2.0, 1e-5)
    site, silo, plan = opened(
        records, LocalizedMbsgd(rounds=(2, 1), lam=0.1, max_phases=2), problem(budget=budget, smoothness=1.0)
    )
    for phase in plan.phases:
        ask(site, plan, phase.index)
    assert len(asked_about) == len(plan.phases) == 2
    seen = [owners(shard) for shard, *_ in asked_about]
    for phase, mine, (shard, *_) in zip(plan.phases, seen, asked_about, strict=True):
        assert len(mine) == phase.by_silo["ash"].n == shard.event.stop - shard.event.start
    assert len({*seen[0], *seen[1]}) == len(seen[0]) + len(seen[1])
    assert silo.n == plan.problem.sizes["ash"] == PERSONS


@pytest.mark.parametrize("method", SAMPLED, ids=lambda method: method.name)
def test_samples_take_whole_persons_with_their_mean_gradient(method, asked_about):
    """A sample by coins, and one of a fixed size; against a dictionary of persons."""
    records, whose, X = persons(np.random.default_rng(1))
    site, _, plan = opened(records, method)
    message = ask(site, plan)
    event = plan.phases[0].event("ash", 1)
    assert event.sampling == ("poisson" if isinstance(method, Mbsgd) else "without-replacement")
    shard, chosen, summed = asked_about[0]
    assert shard.n == PERSONS and (np.diff(chosen) > 0).all() and chosen.max(initial=0) < PERSONS
    if event.sampling == "without-replacement":
        assert len(chosen) == 6
    rows = shard.rows(chosen)
    assert len(rows) == PLACES * len(chosen)
    people = {person + 1: X[whose == person][:PLACES] for person in range(PERSONS)}
    labels = dict(zip(owners(shard), shard.y.reshape(-1, PLACES), strict=True))
    total = np.zeros(2)
    for person in np.array(owners(shard))[chosen]:
        for x, y in zip(people[person], labels[person], strict=False):
            g = -np.sign(y) * x  # of |z - y| at z = 0
            total += g * min(1.0, CLIP / np.linalg.norm(g)) / len(people[person])
    np.testing.assert_allclose(summed, total, rtol=1e-9)
    if isinstance(method, Mbsgd):
        np.testing.assert_allclose(message, total / 6, rtol=1e-9)
    ask(site, plan, 1, 2)
    assert len({tuple(chosen) for _, chosen, _ in asked_about}) == len(asked_about)


def test_whole_persons_are_held_out_and_no_row_of_theirs_is_trained_on(tmp_path, monkeypatch):
    """And the histogram adds up to their number, each counting as much as any other."""
    seen = {}
    for kind in (Gradient, Histogram):
        whole = kind.sum

        def noting(self, phase, shard, chosen, draw, *asked, kind=kind, whole=whole):
            seen[kind.name] = shard
            seen[kind.name, "sum"] = whole(self, phase, shard, chosen, draw, *asked).copy()
            return whole(self, phase, shard, chosen, draw, *asked)

        monkeypatch.setattr(kind, "sum", noting)
    monkeypatch.setattr(Gradient, "batched", classmethod(lambda cls, parts: None))  # else no silo's own sum is asked
    made, _, accounts = experiment(tmp_path, evaluation={"fraction": 0.25})
    assert [(silo.n, silo.held) for silo in made.plan.problem.silos] == [(30, 7), (40, 10)]
    trained, held = seen["gradient"], seen["histogram"]
    assert trained.n == 30 and held.n == 10 and len(held.y) == 50  # of the last silo, with five places each
    assert seen["histogram", "sum"].sum() == pytest.approx(10)
    source = made.dataset.sources[1]
    records = open_records(source)
    apart = held_out("south", 40, 10)
    rows = (apart[:, None] * 5 + np.arange(5)).ravel()
    np.testing.assert_array_equal(held.X, records.X[rows])
    people = {tuple(mine.ravel()) for mine in held.X.reshape(10, -1)}
    assert not people & {tuple(mine.ravel()) for mine in trained.X.reshape(30, -1)}
    assert all(account.epsilon <= 2 * (1 + 1e-9) for account in accounts)


def test_a_plan_of_another_unit_or_size_is_refused_by_the_silo_itself():
    records, _, X = persons(np.random.default_rng(2))
    plain = Records(X, np.ones(len(X)))
    rows = len(X)
    for held, n, person, code, words in (
        (records, PERSONS, None, "unit", "the plan protects records, it was opened for persons by column 'patient'"),
        (records, PERSONS, "visit", "unit", "persons by column 'visit', it was opened for persons by column 'patient'"),
        (records, rows, "patient", "size", f"the plan says {rows} persons, it holds {PERSONS}"),
        (plain, rows, "patient", "unit", "the plan protects persons by column 'patient', it was opened for records"),
        (plain, PERSONS, None, "size", f"the plan says {PERSONS} records, it holds {rows}"),
    ):
        with pytest.raises(SiloError) as caught:
            opened(held, Mbsgd(rounds=1), problem(n, person))
        assert caught.value.code == code and words in caught.value.sentence


def test_an_answer_that_does_not_weigh_rows_is_refused_for_persons(monkeypatch):
    records, _, _ = persons(np.random.default_rng(3))
    monkeypatch.setattr(Gradient, "weighs", False)
    with pytest.raises(SiloError, match="gradient is an answer about records, not about persons"):
        opened(records, Mbsgd(rounds=1))


def test_a_plan_about_persons_has_the_noise_of_as_many_records_and_another_digest():
    method, budget = Mbsgd(rounds=7), Budget(1.5, 1e-5)
    one, other = (method.plan(problem(40, person, budget)) for person in (None, "patient"))
    assert one.phases == other.phases and one.epsilon_accounted == other.epsilon_accounted
    assert one.digest != other.digest and one.as_json()["totals"]["unit"] == "records"
    assert other.as_json()["totals"]["unit"] == "persons"


def test_metrics_of_a_simulation_count_each_person_once():
    records, whose, X = persons(np.random.default_rng(4))
    site, _, _ = opened(records, Mbsgd(rounds=1), loss=Squared())
    w = np.array([0.3, -0.2])
    ((n, loss, wrong),) = site.simulated("run", pack({"w": w}))
    y = records.y[records.weights > 0]
    at, means = 0, []
    for person in range(PERSONS):
        mine = X[whose == person][:PLACES]
        means.append(np.mean((mine @ w - y[at : at + len(mine)]) ** 2 / 2))
        at += len(mine)
    assert (n, wrong) == (PERSONS, 0) and loss == pytest.approx(sum(means), rel=1e-12)


def test_silos_of_persons_are_summed_together_with_the_bits_of_each_alone():
    """Among them one far larger than a block; beside one of records they are summed one by one."""
    rng, shards = np.random.default_rng(6), []
    for count in (5, 9000, 3, 7):
        records, _, _ = persons(rng, count)
        bounds = Gradient.of(problem(count), Squared(), records.X, records.y, math.inf)
        event = Mbsgd(rounds=1).plan(problem(count)).phases[0].event("ash", 1)
        whole = slice(0, len(records.y))
        shard = Shard(event, whole, records.X, records.y, 1.0, 0.0, None, records.weights, records.places)
        shards.append((bounds, shard))
    sums = Gradient.batched(shards)
    w = rng.standard_normal(2)
    alone = [answer.clipped_sum(w, shard) for answer, shard in shards]
    assert [total.tobytes() for total in sums(w)] == [total.tobytes() for total in alone]
    bare = replace(shards[0][1], weights=None, places=1)
    assert Gradient.batched([*shards, (shards[0][0], bare)]) is None


def test_the_least_training_loss_counts_each_person_once(tmp_path):
    """Squared loss on one weight: the weighted mean of labels, by hand."""
    (tmp_path / "north.csv").write_text("patient,x,y\na,1,0\na,1,1\nb,1,4\na,1,8\nc,1,3\n")
    config = ExperimentConfig.model_validate(
        {
            "data": {
                "source": "files",
                "silos": [{"name": "north", "path": str(tmp_path / "north.csv")}],
                "features": ["x"],
                "label": "y",
                "classes": None,
                "person": "patient",
                "person_rows": 2,
            },
            "model": {"loss": {"name": "squared"}, "clip": 1, "bias": False},
            "privacy": {"epsilon": 1, "delta": 0.01},
            "algorithm": {"name": "mbsgd", "rounds": 1},
        }
    )
    least = least_training_loss(Experiment.prepare(config, tmp_path / "silos"))
    centre = np.mean([0.5, 4, 3])  # person a counts by its first two rows
    losses = [np.mean([centre**2, (centre - 1) ** 2]), (centre - 4) ** 2, (centre - 3) ** 2]
    assert least == pytest.approx(np.mean(losses) / 2, rel=1e-6)


def test_a_spec_with_persons_that_no_config_has_is_refused(tmp_path):
    made, _, _ = experiment(tmp_path)
    spec = made.site_spec(["north"], LedgerFolders.below(tmp_path))
    assert SiteSpec.from_bytes(spec.to_bytes()) == spec
    for wrong in ({"person_rows": 0}, {"person_rows": 1001}, {"person": ""}, {"person": "a\nb"}, {"person": "a" * 201}):
        sources = tuple(replace(source, **wrong) for source in spec.sources)
        with pytest.raises(InputError, match="a silo's persons have a column's name and 1 to 1000 rows"):
            SiteSpec.from_bytes(replace(spec, sources=sources).to_bytes())


def experiment(folder, person="patient", places=5, rows=None, evaluation=None, **privacy):
    rng = np.random.default_rng(5)
    for name, count in (("north", 30), ("south", 40)):
        sizes = rng.integers(1, 9, count) if rows is None else np.full(count, rows)
        whose = np.repeat(np.arange(count), sizes)
        lines = [f"{who},{rng.random():.3f},{rng.integers(2)}" for who in whose]
        (folder / f"{name}.csv").write_text("\n".join(["patient,age,ill", *lines]) + "\n")
    silos = [{"name": name, "path": str(folder / f"{name}.csv")} for name in ("north", "south")]
    data = {
        "source": "files",
        "silos": silos,
        "features": {"age": {"range": [0, 1]}},
        "label": "ill",
        "person": person,
        **({} if person is None else {"person_rows": places}),
    }
    config = ExperimentConfig.model_validate(
        {
            "data": data,
            "privacy": {"epsilon": 2, "delta": 1e-5, **privacy},
            "algorithm": {"name": "mbsgd", "rounds": 5, "step": 0.5},
            "evaluation": evaluation,
        }
    )
    made = Experiment.prepare(config, folder / "silos")
    backend = registered(made, LedgerFolders.below(folder)).in_process(LedgerFolders.below(folder))
    backend.open()
    history = list(rounds(made.context, made.context.method.init(made.start()), backend.ask))
    accounts = backend.accounts(made.run)
    backend.close()
    return made, history, accounts


@pytest.mark.usefixtures("policies")
def test_guarded_sums_of_persons_lie_on_the_grid_of_as_many_records(tmp_path):
    made, history, accounts = experiment(tmp_path, ledger="sqlite", noise="guarded")
    phase = made.plan.phases[0]
    assert {account.silo: account.n for account in accounts} == {"north": 30, "south": 40}
    for _, releases, _ in history:
        for release in releases:
            share = phase.by_silo[release.silo]
            grid = Grid.of(share.sigma * share.batch, phase.question.clip, share.batch, made.plan.problem.objective.dim)
            steps = release.payload * share.batch / grid.step
            assert np.abs(steps - np.rint(steps)).max() <= 2e-16 * np.abs(steps).max()
    assert all(2 * (1 - 1e-11) <= account.epsilon <= 2 * (1 + 1e-12) for account in accounts)


def test_persons_of_one_row_cost_and_learn_what_records_do(tmp_path):
    """The same files by persons and by records: one plan but for its unit, and one epsilon."""
    made, accounts = {}, {}
    for person in (None, "patient"):
        folder = tmp_path / str(person)
        folder.mkdir()
        made[person], _, accounts[person] = experiment(folder, person, rows=1)
    one, other = made[None].plan, made["patient"].plan
    assert one.phases == other.phases and one.problem.silos == other.problem.silos
    assert [a.epsilon for a in accounts[None]] == [a.epsilon for a in accounts["patient"]]
    assert made[None].run != made["patient"].run


def test_numbers_of_rows_change_no_size_no_plan_and_no_shape(tmp_path):
    plans = []
    for rows in (1, 3, 9):
        folder = tmp_path / str(rows)
        folder.mkdir()
        made, history, _ = experiment(folder, rows=rows)
        plans.append(made.plan.digest)
        assert history[0][1][0].payload.shape == (2,)
    assert len(set(plans)) == 1
