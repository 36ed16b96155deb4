"""`fedcore advise`: a method that can be planned for the config, the reason with its rows, and a config."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from fedcore.advice.advice import applied
from fedcore.advice.shipped import advice_rows, as_bytes
from fedcore.advice.table import Facts, Row
from fedcore.errors import InputError
from fedcore.experiment.config import ExperimentConfig

CONFIG = {
    "name": "mine",
    "data": {"source": "synthetic", "silos": 10, "records": 40, "features": 5},
    "privacy": {"epsilon": 2, "delta": 1e-4},
    "algorithm": {"name": "mbsgd"},
}
SETTINGS = {
    "mbsgd": {"algorithm": {"name": "mbsgd", "rounds": 12, "step": 8.0}, "model": {"clip": 0.5}},
    "one-pass-mbsgd": {"algorithm": {"name": "one-pass-mbsgd", "rounds": 100, "step": 8.0}, "model": {"clip": 0.5}},
    "fedavg": {"algorithm": {"name": "fedavg", "rounds": 20, "step": 8.0}, "model": {"clip": 1.0}},
    "diff2": {"algorithm": {"name": "diff2", "rounds": 20, "step": 8.0, "slope": 0.25}, "model": {"clip": 1.0}},
}


def row(**errors: float) -> Row:
    named = {name.replace("_", "-"): error for name, error in errors.items()}
    return Row(
        figure="digits",
        facts=Facts.of(ExperimentConfig.model_validate(CONFIG)),
        measure="test error",
        errors=named,
        tied=(min(named, key=named.__getitem__),),
        settings={name: SETTINGS[name] for name in named},
        rounds={name: SETTINGS[name]["algorithm"]["rounds"] for name in named},
        floats=dict.fromkeys(named, 600.0),
    )


@pytest.fixture
def call(fedcore, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text(yaml.safe_dump(CONFIG))
    Path("table.json").write_bytes(as_bytes((row(mbsgd=0.2, one_pass_mbsgd=0.1, fedavg=0.15),)))
    monkeypatch.setattr(advice_rows, "__defaults__", (Path("table.json"),))
    return fedcore


def test_the_best_that_can_be_planned_is_advised_with_its_row(call):
    """40 records are too few for 100 rounds of fresh blocks: one-pass-mbsgd, the best of the row, is left out."""
    code, out, _ = call("advise", "mine.yaml")
    text = " ".join(out.split())
    assert code == 0 and "10 silos, all in every round, effectively 40 records in each, 6 weights, convex" in text
    assert "start with fedavg: no method was lowest, or tied" in text
    assert "mean error above the lowest of each row: fedavg 0.05; others: mbsgd 0.1" in text
    assert "digits at epsilon 2 (noise 0.0294, weight 1.00): test error 0.15 in 20 rounds, significantly " in text
    assert "significantly above the lowest, 0.1 in 100 (one-pass-mbsgd, does not go with this config)" in text


def test_lower_means_without_a_significant_difference_are_marked(call):
    tied = row(mbsgd=0.2, fedavg=0.15).model_copy(update={"tied": ("fedavg", "mbsgd")})
    Path("table.json").write_bytes(as_bytes((tied,)))
    text = " ".join(call("advise", "mine.yaml")[1].split())
    assert "start with mbsgd: the simplest method that was lowest, or tied with the lowest (no significant " in text
    assert "mbsgd 0.05; others: fedavg 0; fedavg lower in the mean, but seldom significantly" in text
    assert "test error 0.2 in 12 rounds, tied with the lowest, 0.15 in 20 (fedavg)" in text
    excess = tied.model_copy(update={"measure": "excess loss"})
    Path("table.json").write_bytes(as_bytes((tied, excess)))
    text = " ".join(call("advise", "mine.yaml")[1].split())
    assert "of each row (of test error and excess loss together, each in its own units): mbsgd" in text


def test_the_config_that_is_written_can_be_run_as_it_is(call):
    code, out, _ = call("advise", "mine.yaml", "--output", "start.yaml")
    assert code == 0 and "next: `fedcore tune start.yaml -o tuned.yaml`" in out
    text = Path("start.yaml").read_text()
    made = ExperimentConfig.model_validate(yaml.safe_load(text))
    assert (made.algorithm.name, made.algorithm.rounds, made.model.clip) == ("fedavg", 20, 1.0)
    assert made.data == ExperimentConfig.model_validate(CONFIG).data and text.startswith("# 10 silos")
    assert yaml.safe_load(text)["data"] == CONFIG["data"]  # the file's keys, not all keys with their defaults
    assert call("plan", "start.yaml")[0] == 0


def test_tuning_is_held_to_the_rounds_that_one_can_afford(call):
    code, out, _ = call("advise", "mine.yaml", "--rounds", "15", "--output", "start.yaml")
    assert code == 0 and "next: `fedcore tune start.yaml --grid 'algorithm.rounds=[12]' -o tuned.yaml`" in out


def test_noise_beyond_the_rows_is_marked(call):
    assert "has noise near" not in call("advise", "mine.yaml")[1]
    code, out, _ = call("advise", "mine.yaml", "privacy.epsilon=4")  # half of the noise of the only row
    text = " ".join(out.split())
    assert code == 0 and "no row behind it has noise near 0.0147; the nearest has 0.0294" in text


def test_json_has_the_facts_the_rows_and_the_config(call):
    code, out, _ = call("advise", "mine.yaml", "--rounds", "15", "--json")
    values = json.loads(out)
    assert code == 0 and values["method"] == "mbsgd" and values["config"]["algorithm"]["rounds"] == 12
    assert values["facts"]["records"] == 40 and values["rows"][0]["figure"] == "digits"


def test_mistakes_are_sentences(call):
    code, out, err = call("advise", "mine.yaml", "--rounds", "3")
    assert (code, out) == (2, "") and "afford at least 12 rounds" in err
    code, _, err = call("advise", "mine.yaml", "privacy.epsilon=1")  # twice the noise of the only row
    assert code == 2 and "the table has no row of convex losses with as much noise as here (0.0588; at most" in err
    code, _, err = call("advise", "mine.yaml", "model.hidden=3", "model.clip=1", "model.loss.name=softmax")
    assert code == 2 and "no row of networks" in err and "or a linear model (model.hidden: null)" in err
    code, out, err = call("advise", "mine.yaml", "privacy.epsilon=null", "privacy.trust=none")
    assert (code, out) == (2, "") and "methods are compared at a target" in err
    code, _, err = call("advise", "mine.yaml", "model.loss.name=hinge", "algorithm.name=mb-subgradient")
    assert code == 2 and "no method of the table applies; " in err and "does not go with this config" in err
    code, _, err = call("advise", "mine.yaml", "-o", "mine.yaml")
    assert code == 2 and "mine.yaml is the config itself; name another file with --output" in err
    Path("soft.yaml").symlink_to("mine.yaml")
    Path("hard.yaml").hardlink_to("mine.yaml")
    for other in ("soft.yaml", "hard.yaml"):
        assert f"{other} is the config itself" in call("advise", "mine.yaml", "-o", other)[2]
    assert Path("mine.yaml").read_text() == yaml.safe_dump(CONFIG)
    Path("table.json").write_text("[{}]")
    assert "cannot be read" in call("advise", "mine.yaml")[2]
    Path("table.json").unlink()
    assert "does not exist" in call("advise", "mine.yaml")[2]


def test_nothing_is_advised_that_no_config_takes():
    config = ExperimentConfig.model_validate({**CONFIG, "participation": {"silos_per_round": 5}})
    with pytest.raises(InputError):  # diff2 takes all silos, and one-pass-mbsgd more records
        applied(config, (row(one_pass_mbsgd=0.1, diff2=0.2),))


def test_diff2_is_advised_only_where_it_is_not_minibatch_sgd():
    """With steps of 8, noise allows no differences, and DIFF2's plan restarts in every round; with short ones it does
    not."""
    config, of = ExperimentConfig.model_validate(CONFIG), row(diff2=0.1, mbsgd=0.2)
    assert applied(config, (of,))[0].method == "mbsgd"
    short = {"algorithm": {**SETTINGS["diff2"]["algorithm"], "step": 0.1}, "model": {"clip": 1.0}}
    advice, made = applied(config, (of.model_copy(update={"settings": {**of.settings, "diff2": short}}),))
    assert advice.method == made.algorithm.name == "diff2"


def test_noise_that_leaves_hardly_anything_to_learn_is_marked(call):
    noisy = row(mbsgd=0.4)
    noisy = noisy.model_copy(update={"facts": noisy.facts.model_copy(update={"epsilon": 0.1})})  # noise 0.588
    Path("table.json").write_bytes(as_bytes((noisy,)))
    text = " ".join(call("advise", "mine.yaml", "privacy.epsilon=0.1")[1].split())
    assert "above 0.3 no method does much better than answering the most frequent class" in text
    assert "does much better" not in call("advise", "mine.yaml", "privacy.epsilon=1")[1]


def test_what_is_lower_beyond_the_limits_is_marked(call):
    text = " ".join(call("advise", "mine.yaml", "--rounds", "15")[1].split())
    assert "(one-pass-mbsgd, beyond the limits)" in text


def test_rows_of_another_loss_are_marked(call):
    assert "rows are of the logistic loss" not in call("advise", "mine.yaml")[1]
    Path("mine.yaml").write_text(
        yaml.safe_dump(
            CONFIG
            | {"data": {"source": "simulated", "silos": 10, "records": 40, "features": list("abcde"), "classes": None}}
        )
    )
    code, out, _ = call("advise", "mine.yaml", "model.loss.name=squared", "model.clip=7", "-o", "start.yaml")
    text = " ".join(out.split())
    # fedavg's row has bound 1 on gradients of the logistic loss, which does not bound those of the squared loss.
    assert ExperimentConfig.model_validate(yaml.safe_load(Path("start.yaml").read_text())).model.clip == 7
    assert code == 0 and "rows are of the logistic loss: for squared choose steps, clipping bounds" in text
