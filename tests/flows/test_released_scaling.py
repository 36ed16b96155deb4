"""Released centres and scales, from config to result: one release, totals, and stored constants.

tests/flows/test_released.py has the kills, locks and bindings of all released statistics.
"""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from scipy.linalg import fractional_matrix_power

from fedcore.data.silo_file import open_records
from fedcore.errors import InputError
from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.experiment import make_plan
from fedcore.experiment.identity import run_id
from fedcore.experiment.loading import load_experiment
from fedcore.experiment.statistics import make_statistics_plan, statistics_id
from fedcore.experiment.statistics_run import StatisticsRun
from fedcore.home import Home
from fedcore.ledger.account import account
from fedcore.ledger.sqlite import SqliteLedger
from flows.driver.session import Session
from flows.runs import statistics_path
from flows.sweep_budget import sweep_totals
from tasks.run_store import RunStore
from tests.commits import noted
from tests.flows.driving import run
from tests.gaussian_curve import epsilon_by_hand

KINDS = {"memory": {}, "sqlite": {"ledger": "sqlite"}, "guarded": {"ledger": "sqlite", "noise": "guarded"}}
N = (60, 90)


@pytest.fixture
def files(tmp_path):
    """Files of two silos: ages off centre, doses with a logarithm and holes, a category, and a centred pulse."""
    rng = np.random.default_rng(0)
    for name, n in zip(("north", "south"), N, strict=True):
        age, dose = rng.normal(70, 6, n), np.where(rng.random(n) < 0.1, 0, rng.lognormal(2, 0.5, n))
        lines = [f"{a},{d},{'xy'[k % 2]},{k % 7},{int(a > 70)}" for k, (a, d) in enumerate(zip(age, dose, strict=True))]
        (tmp_path / f"{name}.csv").write_text("age,dose,kind,pulse,ill\n" + "\n".join(lines) + "\n")
    return tmp_path


def config(folder, scaling=None, privacy=None, **sections) -> ExperimentConfig:
    return ExperimentConfig.model_validate(
        {
            "name": "released",
            "data": {
                "source": "files",
                "label": "ill",
                "silos": [{"name": name, "path": str(folder / f"{name}.csv")} for name in ("north", "south")],
                "features": {
                    "age": {"range": [20, 90]},
                    "dose": {"range": [0.1, 1000], "log": True, "missing": [0]},
                    "kind": {"categories": ["x", "y"], "other": False},
                    "pulse": {"centre": 3, "scale": 2},
                },
                "scaling": {"constants": "released", "epsilon": 1.5, **(scaling or {})},
            },
            "privacy": {"epsilon": 2, **(privacy or {})},
            "algorithm": {"name": "mbsgd", "rounds": 3, "step": 1},
            "cluster": {"backend": "in-process"},
            "tracking": {"mlflow": False},
            **sections,
        }
    )


@pytest.fixture
def home(tmp_path):
    return Home(tmp_path / "home").make()


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_said_of_a_run_is_both_composed(home, files, kind, request):
    if kind == "guarded":
        request.getfixturevalue("policies")
    made = config(files, privacy=KINDS[kind])
    result = run(home, made)
    plan, before = make_plan(made), make_statistics_plan(made)
    assert before.problem.objective.dim == 4  # two columns with a range
    for silo in result.silos:
        n, delta = silo.n, 1 / silo.n**2
        # By hand: B = sqrt(5) / 2. A replaced record moves the moments by B sqrt(37 / 8). Three rounds of norm 1.
        mu_1 = math.sqrt(5) / 2 * math.sqrt(37 / 8) / n / before.phases[0].by_silo[silo.silo].sigma
        mu_2 = math.sqrt(3) * 2 / n / plan.phases[0].by_silo[silo.silo].sigma
        assert silo.epsilon == pytest.approx(epsilon_by_hand(math.hypot(mu_1, mu_2), delta), rel=1e-5)
        assert silo.epsilon_statistics == pytest.approx(1.5, rel=1e-9)
        assert silo.epsilon_training == pytest.approx(2, rel=1e-9)
    assert result.statistics == statistics_id(made)
    assert "centres and scales of columns from moments that the silos released with noise" in result.noise
    statement = json.loads((home.runs / run_id(made) / "model.json").read_text())
    assert (statement["privacy.epsilon_statistics"], statement["privacy.epsilon_training"]) == ("1.5", "2")
    assert "for its centres and scales of columns (epsilon 1.5)" in statement["privacy.statement"]
    shown = json.loads((home.runs / run_id(made) / "plan.json").read_text())
    assert shown["totals"]["epsilon_accounted"] == pytest.approx(result.epsilon_accounted, rel=1e-9)
    assert shown["statistics"]["moment_noise"] > 0
    for version, silo in () if kind == "memory" else home.ledger_folders.found("north"):
        ledger = SqliteLedger(silo, *home.ledger_folders.of(version, silo))
        found = account(ledger)
        ledger.close()
        assert {each["run"]: each["state"] for each in found["runs"]} == {
            statistics_id(made): "closed",
            run_id(made): "closed",
        }


def test_without_noise_records_are_centred_and_scaled_by_what_all_of_them_are(home, files):
    """Age is off the middle of its range and nearly constant; none of 150 records is shortened."""
    made = config(files, {"epsilon": None, "limit": 2.0}, {"trust": "none", "epsilon": None})
    session = Session(home)
    experiment = session.experiment(made)
    session.close()
    rows = np.concatenate(
        [np.genfromtxt(files / f"{name}.csv", delimiter=",", skip_header=1)[:, 0] for name in ("north", "south")]
    )
    unit = np.clip(2 * (rows - 20) / 70 - 1, -1, 1)
    column = experiment.dataset.sources[0].schema[0]
    assert np.abs(unit).max() < 1 and column.range is None
    doses = np.concatenate([open_records(s).X[:, 1] for s in StatisticsRun.prepare(made, home.silos).dataset.sources])
    factor = np.minimum(1, math.sqrt(5) / 2 / np.hypot(unit, doses))
    assert column.centre == pytest.approx(55 + 35 * (factor * unit).mean(), rel=1e-12)
    assert column.scale == pytest.approx(35 * (factor * unit).std(), rel=1e-12)
    X = open_records(experiment.dataset.sources[1]).X
    longest = math.sqrt(4 + 4 + 1 + 9 + 1)  # age, dose (missing ones are 0, and 1 in their own feature), kind, pulse
    expected = np.clip((rows[N[0] :] - column.centre) / column.scale, -2, 2) / longest
    np.testing.assert_allclose(X[:, 0], expected, atol=1e-12)


def test_second_moments_are_released_where_columns_are_whitened(home, files):
    made = config(files, {"whiten": True})
    assert statistics_id(made) != statistics_id(config(files))
    result, before = run(home, made), make_statistics_plan(made)
    assert "centres, scales and whitening of columns from moments that the silos released with noise" in result.noise
    assert before.problem.objective.dim == 2 + 3  # two means, and a symmetric matrix
    for silo in result.silos:
        # By hand: B^2 = 0.16 * 5, a replaced record moves the moments by 3 B^2 / sqrt(2).
        mu = 3 * 0.16 * 5 / math.sqrt(2) / silo.n / before.phases[0].by_silo[silo.silo].sigma
        assert epsilon_by_hand(mu, 1 / silo.n**2) == pytest.approx(silo.epsilon_statistics, rel=1e-5)
        assert silo.epsilon_statistics == pytest.approx(1.5, rel=1e-9)
    shown = json.loads((home.runs / run_id(made) / "plan.json").read_text())
    assert shown["totals"]["epsilon_accounted"] == pytest.approx(result.epsilon_accounted, rel=1e-9)


def test_without_noise_records_are_whitened_by_all_of_their_correlations(home, files):
    """Age and the logarithm of dose, which is missing at times; records are cut to a norm of 0.4 sqrt(5)."""
    for name in ("north", "south"):  # doses that grow with age
        head, *rows = (files / f"{name}.csv").read_text().splitlines()
        cells = [row.split(",") for row in rows]
        for k, cell in enumerate(cells):
            grown = math.exp((float(cell[0]) - 70) / 3 + 3 + math.sin(7 * k))
            cell[1] = "0" if cell[1] == "0.0" else str(grown)
        (files / f"{name}.csv").write_text("\n".join([head, *(",".join(cell) for cell in cells)]) + "\n")
    made = config(files, {"epsilon": None, "limit": 5.0, "whiten": True}, {"trust": "none", "epsilon": None})
    session = Session(home)
    experiment = session.experiment(made)
    session.close()
    tables = [np.genfromtxt(files / f"{name}.csv", delimiter=",", skip_header=1) for name in ("north", "south")]
    ages, doses = np.concatenate(tables)[:, :2].T
    middle = math.sqrt(0.1 * 1000)  # a missing dose counts as the middle of the logarithms
    logs = np.log(np.clip(np.where(doses == 0, middle, doses), 0.1, 1000))
    logs, half = logs - math.log(middle), math.log(1000 / 0.1) / 2
    u = np.stack([2 * (ages - 20) / 70 - 1, logs / half])
    factor = np.minimum(1, 0.4 * math.sqrt(5) / np.hypot(*u))
    assert 0 < np.mean(factor < 1) < 1
    centre, scale = (factor * u).mean(axis=1)[:, None], (factor * u).std(axis=1)[:, None]
    rho = float(np.corrcoef(factor * u)[0, 1])
    assert rho > 0.3
    shrunk = rho * (1 - 1 / 150 / rho**2)
    matrix = fractional_matrix_power(np.array([[1, shrunk], [shrunk, 1]]), -0.5)
    longest = math.sqrt(25 + 25 + 1 + 1 + 9 + 1)  # age, dose and whether it is missing, kind, pulse, bias
    with np.errstate(divide="ignore"):  # a value beyond its range counts unchanged, up to the limit
        z = (np.stack([u[0], (np.log(doses) - math.log(middle)) / half]) - centre) / scale
    z[1, doses == 0] = 0.0  # beside its indicator, a missing dose is the released centre
    expected = np.clip(matrix @ np.clip(z, -5, 5), -5, 5)[:, N[0] :] / longest
    X = open_records(experiment.dataset.sources[1]).X
    assert (np.abs(X[:, :2]) > 4.999 / longest).any()
    np.testing.assert_allclose(X[:, :2], expected.T, rtol=1e-9, atol=1e-12)


def test_cells_that_differ_in_training_share_one_release_and_a_sweep_counts_it_once(home, files, monkeypatch):
    seen = noted(monkeypatch)
    cells = [
        config(files),
        config(files, {"limit": 2.0}),
        config(files, repetition=1),
        config(files, model={"clip": 0.5}),
        config(files, algorithm={"name": "localized-mbsgd", "rounds": 2, "lam": 0.1}),
        config(files, {"epsilon": 1.0}),
    ]
    ids = [statistics_id(cell) for cell in cells]
    assert len(set(ids[:5])) == 1 and ids[5] != ids[0]
    results = [run(home, cell) for cell in cells]
    assert sum(each.run.startswith("statistics-") for each in seen) == 2 * len(N)
    north = next(total for total in sweep_totals(home, cells, results) if total.silo == "north")
    assert (north.cells, north.statistics) == (6, 2)  # one account, whatever the cells


def test_constants_that_were_changed_on_disk_are_refused(home, files):
    made = config(files)
    run(home, made)
    (path,) = home.silos.glob("files/statistics-*/released/scaling/scales.bin")
    again = config(files, repetition=1)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(InputError, match=r"scales\.bin is missing or damaged"):
        run(home, again)
    for file in path.parent.iterdir():
        file.unlink()
    path.parent.rmdir()
    run(home, again)  # computed from the released moments, without another release
    store = RunStore(statistics_path(home, statistics_id(made)))
    assert any(key.startswith("constants-2") for key in store.meta())
    store.close()


def test_persons_count_once_in_what_is_released(home, files):
    """Each row of both silos twice: a person's two rows have the mean of the one row before."""
    made = config(files, {"epsilon": None}, {"trust": "none", "epsilon": None})
    for name in ("north", "south"):
        head, *rows = (files / f"{name}.csv").read_text().splitlines()
        twice = [f"{row},{k}" for k, row in enumerate(rows) for _ in range(2)]
        (files / f"{name}-persons.csv").write_text("\n".join([f"{head},who", *twice]) + "\n")
    data = made.model_dump(mode="json")["data"]
    silos = [{"name": name, "path": str(files / f"{name}-persons.csv")} for name in ("north", "south")]
    values = {**made.model_dump(mode="json"), "data": {**data, "silos": silos, "person": "who"}}
    session = Session(home)
    alone = session.experiment(made)
    persons = session.experiment(ExperimentConfig.model_validate(values))
    session.close()
    assert [facts.n for facts in persons.plan.problem.silos] == list(N)
    for mine, other in zip(persons.dataset.sources[0].schema[:2], alone.dataset.sources[0].schema[:2], strict=True):
        assert mine.centre == pytest.approx(other.centre, rel=1e-9)
        assert mine.scale == pytest.approx(other.scale, rel=1e-9)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (["data.scaling={constants: released}"], r"data\.scaling\.epsilon is missing: released constants need a"),
        (["privacy={trust: none}"], r"data\.scaling\.epsilon has no meaning with privacy\.trust = none"),
        (["data.scaling.path=public.csv"], r"data\.scaling\.path is not a known key; known keys: constants, epsilon"),
        (["data.scaling.constants=relased"], r"constants must be public or released"),
        (["data.features={pulse: {centre: 3, scale: 2}}"], r"needs a column of data\.features with a range"),
        (["data.scaling.whiten=true", "data.features={age: {range: [20, 90]}}"], r"whiten is for 2 to 256 columns"),
        (["data.features=[age]"], r"data\.scaling needs a schema of data\.features"),
    ],
)
def test_a_mistake_in_the_section_is_named_by_its_key(files, change, words):
    (files / "c.yaml").write_text(config(files).model_dump_json())
    with pytest.raises(InputError, match=words):
        load_experiment(files / "c.yaml", change)


def test_only_what_the_release_depends_on_is_in_its_id(files):
    made = config(files)
    base = made.model_dump(mode="json")

    def changed(**data):
        return statistics_id(ExperimentConfig.model_validate({**base, "data": {**base["data"], **data}}))

    assert changed(test="public.csv") == statistics_id(made) == changed(scaling={**base["data"]["scaling"], "limit": 1})
    features = base["data"]["features"]
    assert changed(features=[features[0], features[1]]) == statistics_id(made)
    assert changed(features=[{**features[0], "range": [20, 91]}, *features[1:]]) != statistics_id(made)


def test_plan_shows_the_release_and_the_errors_by_noise(files, monkeypatch):
    from typer.testing import CliRunner

    from flows.commands.app import app

    monkeypatch.setenv("FEDCORE_HOME", str(files / "home"))
    (files / "c.yaml").write_text(config(files).model_dump_json())
    done = CliRunner().invoke(app, ["plan", str(files / "c.yaml")])
    text = " ".join(done.stdout.split())
    assert done.exit_code == 0 and "releases 4 numbers, once for all runs" in text
    assert "above the target" not in text  # by the config, the statistics are spent beside the target
    before = make_statistics_plan(config(files))
    noise = math.hypot(*(share.n * share.sigma for share in before.phases[0].shares)) / sum(N)
    assert f"centres will be off by about {noise:.4g}, and deviations below about {math.sqrt(noise):.4g}" in text
    assert "a record's norm is at most 5.385 with its bias" in text  # root of 3 * 9 + 1 + 1
    values = json.loads(CliRunner().invoke(app, ["plan", str(files / "c.yaml"), "--json"]).stdout)
    assert values["statistics"]["moment_noise"] == pytest.approx(noise, rel=1e-12)
    assert values["totals"]["epsilon_statistics"] == pytest.approx(1.5, rel=1e-9)
    done = CliRunner().invoke(app, ["plan", str(files / "c.yaml"), "data.scaling.whiten=true"])
    text = " ".join(done.stdout.split())
    before = make_statistics_plan(config(files, {"whiten": True}))
    noise = math.hypot(*(share.n * share.sigma for share in before.phases[0].shares)) / sum(N)
    assert f"centres will be off by about {noise / (0.4 * math.sqrt(5)):.4g}, and deviations" in text
    # Entries off the diagonal carry sqrt(2), and a column's deviation is 0.3 of half of its range.
    assert f"fill a third of their ranges will be off by about {noise / math.sqrt(2) / 0.09:.4g}: columns" in text
