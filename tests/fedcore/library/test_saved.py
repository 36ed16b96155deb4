"""A training's file reads back as it was saved, and every other file is refused."""

from __future__ import annotations

import json
import tempfile
from dataclasses import fields
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import fedcore
from fedcore.errors import InputError

DIGITS = Path(__file__).parents[3] / "conf" / "experiment" / "digits.yaml"
METHOD = {"name": "mbsgd", "rounds": 4, "step": 1.0}
X = np.random.default_rng(8).standard_normal((120, 2))
Y = (X[:, 0] > X[:, 1]).astype(int)
TABLE = pd.DataFrame(X, columns=["age", "dose"])
SILOS = {"north": (TABLE[:50], Y[:50]), "south": (TABLE[50:80], Y[50:80])}
TEST = TABLE[80:], Y[80:]
KEYS = {
    "arrays": {},
    "no privacy": {"epsilon": None, "privacy": {"trust": "none"}},
    "words": {"classes": ("no", "yes")},
    "a scale": {"scale": "test"},
    "a released scale": {"scale": "released"},
    "whitened": {"scale": {"constants": "released", "epsilon": 1.0, "whiten": True}},
    "a network": {"model": {"loss": {"name": "softmax"}, "hidden": 3, "clip": 1.0}},
    "numbers": {"classes": None, "model": {"loss": {"name": "huber"}}},
    "a seed": {"seed": 3},
    "many phases": {"algorithm": {"name": "localized-mbsgd"}},
    "evaluated seldom": {"tracking": {"evaluate_every": 3}},
}


def train(**keys):
    words = np.array(keys.get("classes") or (0, 1))
    silos = {name: (table, words[y]) for name, (table, y) in SILOS.items()}
    test = TEST[0], words[TEST[1]]
    return fedcore.train(silos, test=test, **({"epsilon": 3.0, "algorithm": METHOD} | keys))


@pytest.mark.parametrize("case", KEYS)
def test_what_is_loaded_is_what_was_saved(case, tmp_path):
    saved = train(**KEYS[case])
    saved.save(tmp_path / "model.json")
    loaded = fedcore.Trained.load(str(tmp_path / "model.json"))
    pd.testing.assert_frame_equal(loaded.rounds, saved.rounds)
    for field in fields(saved):
        if field.name not in ("rounds", "model"):
            assert getattr(loaded, field.name) == getattr(saved, field.name), field.name
    np.testing.assert_array_equal(loaded.weights, saved.weights)
    np.testing.assert_array_equal(loaded.predict(TABLE), saved.predict(TABLE))
    assert repr(loaded) == repr(saved) and loaded._repr_html_() == saved._repr_html_()
    assert [each.name for each in tmp_path.iterdir()] == ["model.json"]


def test_a_projected_model_of_a_config_file_is_saved_too(tmp_path):
    saved = fedcore.train(
        DIGITS, "algorithm={name: mbsgd, rounds: 3}", "data.pca={dimension: 5, constants: public, fraction: 0.1}"
    )
    saved.save(tmp_path / "model.json")
    images = np.random.default_rng(0).uniform(0, 1, (20, 64))
    loaded = fedcore.Trained.load(tmp_path / "model.json")
    np.testing.assert_array_equal(loaded.predict(images), saved.predict(images))


def test_the_file_names_no_folder_of_the_call_and_no_record(tmp_path):
    train().save(tmp_path / "model.json")
    text = (tmp_path / "model.json").read_text()
    assert json.loads(text)["config"]["data"]["silos"][0]["path"].startswith("/array of ")
    assert tempfile.gettempdir() not in text
    assert not any(repr(float(cell)) in text for cell in X.ravel())


def damaged(data, case):
    saved = json.loads(data)
    if case == "cut":
        return data[:-20]
    if case == "no object":
        return b"[1, 2]"
    if case == "nested":
        return b"[" * 100_000
    if case == "no text":
        return b"\x80\x04\x95 pickle"
    change = {
        "another form": lambda: saved.update(format=1),
        "a key more": lambda: saved.update(more=1),
        "weights less": lambda: saved["model"]["w"].pop(),
        "weights of no number": lambda: saved["model"]["w"].__setitem__(0, float("nan")),
        "another method": lambda: saved["config"]["algorithm"].update(name="mbsdg"),
        "rounds of two lengths": lambda: saved["rounds"]["phase"].pop(),
        "no rounds": lambda: saved["rounds"].pop("round"),
        "a newer version": lambda: (saved.update(fedcore="9.9"), saved["plan"].pop("phases")),
    }
    change[case]()
    return json.dumps(saved).encode()


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("cut", "is no file of a model that fedcore saved"),
        ("no object", "is no file of a model that fedcore saved"),
        ("nested", "is no file of a model that fedcore saved"),
        ("no text", "is no file of a model that fedcore saved"),
        ("another form", "was saved by fedcore '0.2.0' in another form; load it with that version"),
        ("a key more", "holds values that fedcore 0.2.0 does not know"),
        ("weights less", "its model is not whole"),
        ("weights of no number", "its model is not whole"),
        ("another method", "holds values that fedcore 0.2.0 does not know"),
        ("rounds of two lengths", "its model is not whole"),
        ("no rounds", "its model is not whole"),
        ("a newer version", "holds values that fedcore 0.2.0 does not know, which version '9.9' has saved"),
    ],
)
def test_any_other_file_is_refused_in_a_sentence(case, message, tmp_path):
    path = tmp_path / "model.json"
    train().save(path)
    path.write_bytes(damaged(path.read_bytes(), case))
    with pytest.raises(InputError) as raised:
        fedcore.Trained.load(path)
    assert str(path) in str(raised.value) and message in str(raised.value) and "\n" not in str(raised.value)


def test_places_that_cannot_be_written_or_read_are_named(tmp_path):
    model = train()
    with pytest.raises(InputError, match=r"gone/model.json cannot be written \(No such file or directory\)"):
        model.save(tmp_path / "gone" / "model.json")
    with pytest.raises(InputError, match=r"cannot be written \(Is a directory\)"):
        model.save(tmp_path)
    with pytest.raises(InputError, match=r"gone.json cannot be read \(No such file or directory\)"):
        fedcore.Trained.load(tmp_path / "gone.json")
    (tmp_path / "old.json").write_text("old")
    model.save(tmp_path / "old.json")
    assert fedcore.Trained.load(tmp_path / "old.json").config == model.config
    assert [each.name for each in tmp_path.iterdir()] == ["old.json"]
