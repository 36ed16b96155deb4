"""Statements of runs whose records were prepared with constants, and the plan that binds a resumed run."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from fedcore.configfile.reading import validated
from fedcore.data.constants.pca import Projection
from fedcore.errors import InputError
from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.experiment import Experiment, make_plan
from fedcore.experiment.result import RunResult, SiloResult, stamp
from fedcore.experiment.served.phase_model import phase_model
from fedcore.home import LedgerFolders
from fedcore.ledger.memory import MemoryLedger
from flows.reports.lines import summarise
from flows.reports.table import table
from tasks.run_parameters import run_parameters
from tasks.run_store import RunStore
from tasks.statement import NO_NOISE, privacy_tags
from tasks.training import Training

EMPTY = {
    "run": "run",
    "method": "mbsgd",
    "seed": 0,
    "trust": "inter-silo",
    "epsilon_target": 2.0,
    "epsilon_accounted": 2.0,
    "epsilon_spent": 2.0,
    "epsilon_paper": None,
    "delta": 1e-5,
    "rounds": 1,
    "gradient_evaluations": 1,
    "theorem": None,
    "seconds": 1.0,
    "weights_sha256": "",
    "weights_shape": (),
    "noise": "",
    "code": "",
    "silos": (),
}


def experiment(folder, constants, **privacy) -> Experiment:
    config = ExperimentConfig.model_validate(
        {
            "data": {"pca": constants and {"dimension": 7, "constants": constants}},
            "privacy": {"epsilon": 2, **privacy},
            "algorithm": {"name": "mbsgd", "rounds": 2},
        }
    )
    return Experiment.prepare(config, folder / "silos")


@pytest.mark.parametrize(("constants", "message"), [(None, False), ("public", False), ("simulation", True)])
def test_every_artefact_says_that_constants_are_outside_of_the_guarantee(tmp_path, constants, message):
    made = experiment(tmp_path, constants)
    tags = privacy_tags(made.config, made.plan)
    for text in (stamp(made.config), tags["privacy.noise"], tags["privacy.statement"]):
        assert ("OUTSIDE OF THE GUARANTEE (data.pca.constants = simulation)" in text) == message
    assert tags["privacy.statement"].startswith("With the preparation's constants given") == message
    backend = made.in_process(LedgerFolders.below(tmp_path))
    training = Training(made, backend, RunStore(tmp_path / "run.sqlite"), None)
    training.start()
    while training.phase is not None:
        training.advance()
    result = training.finish()
    assert ("OUTSIDE OF THE GUARANTEE" in result.noise) == message
    model = phase_model(made, training.model)
    raw = np.full((3, 64), 0.25)
    assert model.estimator().predict(model.example().iloc[[0] * 3] * 0 + raw).shape == (3,)


@pytest.mark.parametrize("trust", ["central", "inter-silo"])
def test_every_artefact_says_who_is_trusted(tmp_path, trust):
    """Of DIFF2, whose other trust model is one word away, with the same accounted epsilon."""
    config = ExperimentConfig.model_validate(
        {
            "data": {"source": "synthetic", "silos": 3, "records": 40, "features": 2},
            "privacy": {"epsilon": 2, "trust": trust},
            "algorithm": {"name": "diff2", "rounds": 6, "period": 3},
        }
    )
    made = Experiment.prepare(config, tmp_path / "silos")
    training = Training(made, made.in_process(LedgerFolders.below(tmp_path)), RunStore(tmp_path / "run.sqlite"), None)
    training.start()
    while training.phase is not None:
        training.advance()
    result, tags = training.finish(), privacy_tags(config, made.plan)
    assert result.trust == tags["privacy.trust"] == run_parameters(config, made.plan)["privacy.trust"] == trust
    assert result.epsilon_accounted == pytest.approx(2.0, rel=1e-9)
    whose = {"central": "for each of the silos' records", "inter-silo": "for each of their records"}[trust]
    assert whose in tags["privacy.statement"]
    for text in (result.noise, stamp(config), tags["privacy.noise"], tags["privacy.statement"]):
        assert ("SIMULATION of a trusted aggregator" in text) == (trust == "central")


def shuffled(folder) -> Experiment:
    config = ExperimentConfig.model_validate(
        {
            "data": {"source": "synthetic", "silos": 30, "records": 2, "features": 2},
            "privacy": {"epsilon": 2, "delta": 1e-3, "trust": "shuffler", "ledger": "sqlite"},
            "algorithm": {"name": "mbsgd", "rounds": 4},
            "shuffler": {"minimum": 20},
        }
    )
    return Experiment.prepare(config, folder / "silos")


def test_shuffled_batches_have_an_epsilon_of_their_own_in_statements_and_parameters(tmp_path):
    made = shuffled(tmp_path)
    epsilon, local = made.plan.epsilon_shuffled, made.plan.epsilon_accounted
    assert epsilon <= 2.0 < local
    tags = privacy_tags(made.config, made.plan)
    assert tags["privacy.trust"] == "shuffler"
    assert float(tags["privacy.epsilon_accounted"]) == pytest.approx(local, rel=1e-5)
    assert float(tags["privacy.epsilon_shuffled"]) == pytest.approx(epsilon, rel=1e-5)
    assert "only batches of at least 20 that the shuffler permuted, has (2, 0.001)" in tags["privacy.statement"]
    assert epsilon <= float(run_parameters(made.config, made.plan)["plan.epsilon_shuffled"]) <= epsilon * (1 + 1e-5)
    other = experiment(tmp_path, None)
    assert not [key for key in privacy_tags(other.config, other.plan) if "shuffle" in key]
    assert "plan.epsilon_shuffled" not in run_parameters(other.config, other.plan)


def test_shuffled_runs_have_a_line_of_their_own():
    plain = RunResult.model_validate(EMPTY)
    mixed = [plain, plain.model_copy(update={"epsilon_shuffled": 1.97, "epsilon_accounted": 5.1})]
    assert [(line.level, line.accounted, line.shuffled) for line in summarise(mixed)] == [
        ("2", 2.0, None),
        ("2 shuffled", 5.1, 1.97),
    ]
    assert "at most 1.97; accounted is without a shuffler" in str(table(summarise(mixed), "").caption)
    assert "shuffle" not in str(table(summarise([plain]), "").caption)


def test_without_a_shuffler_in_the_path_nothing_is_asked(tmp_path):
    made = shuffled(tmp_path)
    backend = made.in_process(LedgerFolders.below(tmp_path))
    with pytest.raises(InputError, match="no shuffler is between silos and driver"):
        Training(made, backend, RunStore(tmp_path / "run.sqlite"), None).start()
    backend.close()


def test_a_run_about_persons_says_so_in_its_statement_result_and_table(tmp_path):
    for name in ("north", "south"):
        rows = "".join(f"{row // 2},{row % 7},{row % 2}\n" for row in range(40))
        (tmp_path / f"{name}.csv").write_text("patient,age,ill\n" + rows)
    shown = {}
    for person in (None, "patient"):
        config = ExperimentConfig.model_validate(
            {
                "data": {
                    "source": "files",
                    "features": {"age": {"range": [0, 6]}},
                    "label": "ill",
                    "person": person,
                    "silos": [{"name": name, "path": str(tmp_path / f"{name}.csv")} for name in ("north", "south")],
                },
                "privacy": {"epsilon": 2},
                "algorithm": {"name": "mbsgd", "rounds": 2},
            }
        )
        made = Experiment.prepare(config, tmp_path / "silos")
        training = Training(
            made, made.in_process(LedgerFolders.below(tmp_path)), RunStore(tmp_path / f"{person}.sqlite"), None
        )
        training.start()
        while training.phase is not None:
            training.advance()
        result, tags = training.finish(), privacy_tags(made.config, made.plan)
        lines = summarise([result])
        caption = table(lines, "run").caption
        shown[person] = result.unit, [silo.n for silo in result.silos], tags, caption, lines[0].unit
        assert run_parameters(made.config, made.plan)["plan.unit"] == ("persons" if person else "records")
    unit, sizes, tags, caption, line = shown["patient"]
    column = "column 'patient'"
    assert unit == line == f"persons by {column}" and sizes == [20, 20]
    assert tags["privacy.adjacency"].startswith(f"replace-one person of one silo, with all rows ({column})")
    whose = f"for each of their persons with all of their rows ({column}, replace-one)"
    assert whose in tags["privacy.statement"]
    assert str(caption).startswith("epsilon is per run, for persons by column 'patient'; ")
    unit, sizes, tags, caption, line = shown[None]
    assert unit == line == "records" and sizes == [40, 40] and str(caption).startswith("epsilon is per run; ")
    assert "persons" not in json.dumps(tags) and "for each of their records (replace-one)" in tags["privacy.statement"]
    # A sweep over both has a line for each: means over two units are none.
    assert len({line.unit for line in summarise(RunResult(**EMPTY, unit=unit) for unit in ("records", "persons"))}) == 2


def test_without_noise_the_statement_is_that_there_is_none(tmp_path):
    made = experiment(tmp_path, "simulation", trust="none", epsilon=None)
    assert privacy_tags(made.config, made.plan)["privacy.statement"] == NO_NOISE
    assert "OUTSIDE" in stamp(made.config)


def test_given_noise_is_not_said_to_be_calibrated(tmp_path):
    made = experiment(tmp_path, None, epsilon=None, noise_multiplier=4.0, calibration="paper")
    tags = privacy_tags(made.config, made.plan)
    shown = [tags[f"privacy.{key}"] for key in ("epsilon_target", "noise_multiplier", "calibration")]
    assert shown == ["none", "4", "given"]
    assert f"({math.ceil(made.plan.epsilon_accounted * 1000) / 1000:.3f}, " in tags["privacy.statement"]


def test_a_run_goes_on_with_the_constants_it_began_with_only(tmp_path):
    made = experiment(tmp_path, "public")
    store = RunStore(tmp_path / "run.sqlite")
    Training(made, None, store, None).load()
    Training(made, None, store, None).load()
    others = Projection.fit([np.random.default_rng(0).standard_normal((90, 64))], 7)
    other = replace(made, dataset=replace(made.dataset, projection=others))
    with pytest.raises(InputError, match="prepares records with other constants"):
        Training(other, None, store, None).load()


def test_a_schema_is_shown_column_by_column_under_keys_that_mlflow_takes(tmp_path):
    (tmp_path / "n.csv").write_text("age,od280/od315,a b (x),y\n" + "1,2,3,0\n" * 9)
    features = {
        "age": {"range": [20, 80]},
        "od280/od315": {"centre": 2, "scale": 1, "missing": [0]},
        "a b (x)": {"categories": ["u", 1], "other": False},
    }
    config = validated(
        ExperimentConfig,
        {
            "data": {
                "source": "files",
                "silos": [{"name": "n", "path": str(tmp_path / "n.csv")}],
                "label": "y",
                "features": features,
            },
            "privacy": {"epsilon": 1},
            "algorithm": {"name": "mbsgd"},
        },
        "test",
    )
    shown = run_parameters(config, make_plan(config))
    assert "data.features" not in shown
    assert {key: json.loads(value) for key, value in shown.items() if key.startswith("data.features")} == {
        "data.features.age": {"range": [20, 80]},
        "data.features.od280/od315": {"centre": 2, "scale": 1, "missing": [0]},
        "data.features.a b _x_": {"categories": ["u", 1], "other": False},
    }


def test_what_operators_declare_of_persons_is_said_with_the_run_at_its_end(tmp_path):
    """Ten silos of twelve have declared it; a model's statement names eight."""
    made = experiment(tmp_path, None)
    silos = [SiloResult(silo=f"s{i}", n=40, releases=2, epsilon=1, delta=1e-5, disjoint=i < 10) for i in range(12)]
    message = privacy_tags(made.config, made.plan, silos=silos)["privacy.statement"]
    assert (
        "persons are disjoint" in message
        and "s0, s1, s2, s3, s4, s5, s6, s7 and 2 more" in message
        and "s11" not in message
    )
    for undeclared in ((), silos[10:]):
        tags = privacy_tags(made.config, made.plan, silos=undeclared)
        assert "disjoint" not in tags["privacy.statement"]


def test_a_silos_declaration_reaches_the_result(tmp_path, monkeypatch):
    made = experiment(tmp_path, None)
    first = made.dataset.sources[0].name
    monkeypatch.setattr(MemoryLedger, "disjoint", property(lambda ledger: ledger._silo == first))
    training = Training(made, made.in_process(LedgerFolders.below(tmp_path)), RunStore(tmp_path / "run.sqlite"), None)
    training.start()
    while training.phase is not None:
        training.advance()
    assert [silo.silo for silo in training.finish().silos if silo.disjoint] == [first]
