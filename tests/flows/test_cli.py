"""The command line: plans without data, one sentence per mistake, and no files left behind."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from fedcore.algorithms import ALGORITHMS
from fedcore.errors import InputError

DIGITS = "conf/experiment/digits.yaml"


def test_a_plan_shows_every_phase_and_touches_nothing(fedcore, tmp_path):
    code, out, _ = fedcore("plan", DIGITS, "--json")
    assert code == 0
    plan = json.loads(out)
    wanted = {"n", "rounds", "batch", "lam", "radius", "clip", "sigma"}
    wanted |= {"epsilon_target", "epsilon_accounted", "epsilon_paper"}
    assert all(wanted <= set(phase) for phase in plan["phases"])
    assert plan["totals"]["rounds"] == sum(phase["rounds"] for phase in plan["phases"]) == 40
    # Smallest silo: 1,437 training images; the rarest digit has 139 of them, split in five, and 27 + 28 = 55.
    sizes = [silo["n"] for silo in plan["problem"]["silos"]]
    assert sum(sizes) == 1797 - round(0.2 * 1797) and len(sizes) == 25
    n = min(sizes)
    assert [phase["n"] for phase in plan["phases"]] == [n // 2**i for i in range(1, int(math.log2(n)) + 1)]
    for phase in plan["phases"]:
        assert phase["radius"] == pytest.approx(2 / phase["lam"])
        assert phase["epsilon_accounted"] == pytest.approx(phase["epsilon_target"], rel=1e-9)
    assert not (tmp_path / "home").exists()


def test_a_plan_shows_the_law_of_the_number_of_participants_in_one_line(fedcore):
    def planned(*overrides):
        code, out, _ = fedcore("plan", DIGITS, *overrides)
        assert code == 0
        return " ".join(out.split())

    drawn = planned("participation.silos_per_round=[5, 10, 20]")
    assert "25 silos, 5 to 20 of them in a round, 40 rounds;" in drawn
    assert "11.667 are expected; theorems take its harmonic mean M = 8.5714 (M' = 7.5593)" in drawn
    fixed = planned("participation.silos_per_round=5")
    assert "25 silos, 5 of them in a round" in fixed and "participation:" not in fixed
    _, out, _ = fedcore("plan", DIGITS, "participation.silos_per_round.binomial=0.5", "--json")
    values = json.loads(out)
    assert values["totals"]["participants"]["law"] == values["problem"]["participants"] == {"binomial": 0.5}


SHUFFLED = """
data: {source: synthetic, silos: 60, records: %d, features: 5}
privacy: {trust: shuffler, epsilon: 1.0, delta: 1.0e-5, ledger: sqlite}
algorithm: {name: mbsgd, step: 1.0, rounds: 20}
"""


@pytest.mark.parametrize(
    "records, sentence", [(3, "takes 2.37 times the noise"), (400, "with one the accountant finds no smaller")]
)
def test_a_plan_with_a_shuffler_has_a_second_epsilon_and_names_the_source_of_noise(
    fedcore, tmp_path, records, sentence
):
    (tmp_path / "few.yaml").write_text(SHUFFLED % records)
    code, out, _ = fedcore("plan", str(tmp_path / "few.yaml"))
    assert code == 0
    text = " ".join(out.split())
    assert sentence in text and "epsilon of shuffled batches 1: " in text and "at least 60" in text
    assert "paper's formula asks for too little" not in text
    code, out, _ = fedcore("plan", str(tmp_path / "few.yaml"), "shuffler.minimum=61")
    assert code != 0 and not out


@pytest.mark.parametrize("error", [KeyboardInterrupt(), InputError("the checkpoint cannot be read"), OSError("cut")])
def test_a_stopped_command_names_the_way_to_resume(fedcore, monkeypatch, error):
    """Also if the interrupted code turned the signal into an error."""

    def stop(*_: object) -> None:
        raise error

    monkeypatch.setattr("flows.driver.signals._signal", "SIGTERM")
    monkeypatch.setattr("fedcore.experiment.experiment.make_plan", stop)
    code, _, err = fedcore("plan", DIGITS)
    assert code == 130 and err == "stopped; `fedcore runs` lists what can be resumed\n"


@pytest.mark.parametrize(
    ("arguments", "sentences"),
    [
        (["run", "nowhere.yaml"], ["config file nowhere.yaml does not exist"]),
        (["run", DIGITS, "algorithm.stepp=1"], [f"{DIGITS}: algorithm.stepp", "did you mean step"]),
        (["run", DIGITS, "algorithm.name=sgd"], ["algorithm.name = 'sgd' is not known", "'localized-mbsgd'"]),
        (["run", DIGITS, "privcy.epsilon=1"], ["privcy is not a known key; did you mean privacy?"]),
        (["run", DIGITS, "privacy.epsilon=0"], ["privacy.epsilon = 0", "greater than 0"]),
        (["run", DIGITS, "privacy.epsilon=null"], ["privacy.epsilon is missing"]),
        (["run", DIGITS, "privacy.delta=1.5"], ["privacy.delta = 1.5", "between 0 and 1"]),
        (["run", DIGITS, "privacy.delta=0.5"], ["privacy.delta = 0.5 must be below 1/n", "silo o1e0"]),
        (
            ["run", DIGITS, "privacy.calibration=paper", "privacy.epsilon=40"],
            ["privacy.epsilon = 40 is outside", "Gao et al. 2024"],
        ),
        (["run", DIGITS, "privacy.trust=none"], ["privacy.epsilon has no meaning with privacy.trust = none"]),
        (
            ["run", DIGITS, "algorithm.name=one-pass-mbsgd", "algorithm.rounds=60"],
            ["records cannot feed algorithm.rounds = 60", "lower algorithm.rounds to at most 55"],
        ),
        (
            ["run", DIGITS, "privacy={trust: shuffler, epsilon: 1, ledger: sqlite}", "shuffler.deadline=1e9"],
            ["shuffler.deadline = 1000000000.0", "less than or equal to 604800"],
        ),
        (["run", DIGITS, "participation.silos_per_round=26"], ["participation.silos_per_round = 26", "25 silos"]),
        (["run", DIGITS, "participation.silos_per_round=[3, 26]"], ["silos_per_round lists 26", "25 silos"]),
        (["run", DIGITS, "participation.silos_per_round={binomial: 0}"], ["per_round.binomial = 0", "greater than"]),
        (["run", DIGITS, "model.loss.name=squared"], ["'squared' has no Lipschitz constant: set model.clip"]),
        (
            ["run", DIGITS, "cluster.address=tcp://127.0.0.1:9", "cluster.deadline=2", "cluster.insecure=true"],
            ["cluster.address = tcp://127.0.0.1:9", "within 2 s", "fedcore up"],
        ),
        (["run", DIGITS, "cluster.address=tcp://127.0.0.1:9"], ["without TLS", "cluster.tls", "cluster.insecure=true"]),
        (["run", DIGITS, "cluster.address=tls://127.0.0.1:9"], ["tls://127.0.0.1:9 needs keys", "cluster.tls"]),
        (
            [
                "run",
                DIGITS,
                "cluster={address: 'tls://127.0.0.1:9', tls: {ca: no.pem, certificate: no.pem, key: no.pem}}",
            ],
            ["cluster.tls.ca = ", "/no.pem: cannot be read"],
        ),
        (["run", DIGITS, "epsilon"], ["'epsilon' is not an override", "privacy.epsilon=2"]),
        (["run", "conf/sweep/digits.yaml"], ["this is a sweep", "fedcore sweep"]),
        (["sweep", DIGITS], ["this is one experiment", "fedcore run"]),
        (["sweep", "conf/sweep/digits.yaml", "grid.privacy.epsilon=[1,-2]"], ["privacy.epsilon=-2", "greater than 0"]),
        (["resume", "nothing"], ["there is no run or sweep 'nothing'", "fedcore runs"]),
        (["report", "nothing"], ["there is no run or sweep 'nothing'"]),
    ],
)
def test_a_mistake_gets_a_sentence_and_leaves_nothing(fedcore, tmp_path, arguments, sentences):
    code, out, err = fedcore(*arguments)
    assert code == 2
    assert out == ""
    for sentence in sentences:
        assert sentence in err
    assert "Traceback" not in err and "pydantic" not in err
    home = tmp_path / "home"
    # Generated silos are complete data sets and may stay; the run must leave no file.
    assert not home.exists() or {path.name for path in home.iterdir()} <= {"silos"}


def write_silos(folder: Path, **columns: list) -> str:
    """Writes a config of two silos; `columns`: of the second one."""
    good = {"age": [1.0, 2.0, 3.0, 4.0], "dose": [0.1, 0.2, 0.3, 0.4], "ill": [0, 1, 0, 1]}
    for name, table in (("north", good), ("south", {**good, **columns})):
        table = {key: values for key, values in table.items() if values is not None}
        rows = [",".join(table), *(",".join(map(str, row)) for row in zip(*table.values(), strict=True))]
        (folder / f"{name}.csv").write_text("\n".join(rows) + "\n")
    config = folder / "own.yaml"
    silos = [{"name": name, "path": str(folder / f"{name}.csv")} for name in ("north", "south")]
    config.write_text(
        json.dumps(
            {
                "name": "own",
                "data": {"source": "files", "silos": silos, "features": ["age", "dose"], "label": "ill"},
                "privacy": {"epsilon": 1, "delta": 1e-4},
                "algorithm": {"name": "mbsgd", "rounds": 2},
            }
        )
    )
    return str(config)


@pytest.mark.parametrize(
    ("columns", "sentences"),
    [
        ({"dose": None}, ["silo south", "dose"]),
        ({"dose": [0.1, "nan", 0.3, 0.4]}, ["silo south", "dose"]),
        ({"dose": [0.1, "SECRET-4711", 0.3, 0.4]}, ["silo south", "dose"]),
        ({"ill": [0, 1, 4711, 1]}, ["silo south", "ill"]),
    ],
)
def test_a_silo_that_cannot_be_used_is_named_and_not_quoted(fedcore, tmp_path, columns, sentences):
    code, _, err = fedcore("run", write_silos(tmp_path, **columns))
    assert code == 2
    for sentence in sentences:
        assert sentence in err
    assert "4711" not in err and "Traceback" not in err
    assert not (tmp_path / "home" / "runs").exists()


def test_a_missing_silo_file_is_named(fedcore, tmp_path):
    config = write_silos(tmp_path)
    (tmp_path / "south.csv").unlink()
    for command in ("plan", "run"):
        code, _, err = fedcore(command, config)
        assert code == 2 and "silo south" in err and "south.csv" in err


def test_an_unwritable_home_is_named(fedcore, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FEDCORE_HOME", str(tmp_path / "file" / "home"))
    code, _, err = fedcore("run", DIGITS)
    assert code == 2 and f"run folder {tmp_path / 'file' / 'home'}: {tmp_path / 'file'} is a file" in err


def test_methods_are_listed_with_their_sources(fedcore):
    code, out, _ = fedcore("algorithms", "--json")
    listed = {method["name"]: method for method in json.loads(out)}
    assert code == 0
    assert {"localized-mbsgd", "localized-accelerated", "one-pass-mbsgd", "mbsgd"} <= set(listed)
    assert all(method["source"] and method["title"] for method in listed.values())


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_key_of_a_method_has_its_meaning_and_default(fedcore, name):
    code, out, _ = fedcore("algorithms", name, "--json")
    (shown,) = json.loads(out)
    assert code == 0 and shown["name"] == name
    assert set(shown["defaults"]) == set(shown["keys"]) and all(len(text) > 15 for text in shown["keys"].values())
    code, out, _ = fedcore("algorithms", name)
    text = " ".join(out.split())
    assert text.startswith(f"{name}: ") and "[" not in out.partition("algorithm.")[0], "markup is printed"
    for key, meaning in shown["keys"].items():
        assert f"algorithm.{key} = " in text and meaning in text


def test_a_method_that_is_not_there_is_not_shown(fedcore):
    code, _, err = fedcore("algorithms", "mbsdg")
    assert code == 2 and "'mbsdg' is no method; did you mean mbsgd?" in err


@pytest.mark.parametrize("key", ["title", "source", "state", "asks", "takes_nonconvex"])
def test_facts_of_a_method_are_no_keys(fedcore, key):
    code, _, err = fedcore("plan", DIGITS, f"algorithm.{key}x=1")
    assert code == 2 and f"algorithm.{key}x is not a known key" in err and f"did you mean {key}?" not in err


def test_help_teaches(fedcore):
    code, out, _ = fedcore("--help")
    assert code == 0
    for command in ("run", "sweep", "plan", "resume", "runs", "report", "algorithms", "up", "down"):
        assert command in out
    assert "fedcore plan conf/experiment/digits.yaml" in " ".join(out.split())
