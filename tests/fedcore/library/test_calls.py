"""Wrong calls of new users of the library: each raises a message that names the remedy and shows no data."""

from __future__ import annotations

import asyncio
import doctest
import subprocess
import sys
import threading

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression

import fedcore
import fedcore.library.training

SEEN = 7131.0625
"""A value in many records, which no message may contain."""
WORD = "qzx"
METHOD = {"name": "mbsgd", "rounds": 3, "step": 1.0}
X = SEEN * np.where(np.random.default_rng(5).random((40, 3)) > 0.5, 1.0, -1.0)
Y = (X[:, 0] > 0).astype(int)
TABLE = pd.DataFrame(X, columns=["age", "dose", "pulse"])
WORDS = np.where(Y == 1, f"{WORD}-yes", f"{WORD}-no")
SILOS = {"north": (X[:25], Y[:25]), "south": (X[25:], Y[25:])}


def both(y):
    return {"north": (X[:25], y[:25]), "south": (X[25:], y[25:])}


PAIRS = r"write \{'north': \(X, y\), 'south': \(X, y\), ..\}"
FIRST = r"write fedcore.train\(\{'north': \(X, y\), 'south': \(X, y\), ..\}, epsilon=1\)"
LABEL = r"of a DataFrame for instance \(table.drop\(columns='outcome'\), table\['outcome'\]\)"
CALLS = {
    "train(X, y)": (lambda: fedcore.train(X, Y, epsilon=1), f"nothing of type ndarray after them; {FIRST}"),
    "train(frame, series)": (lambda: fedcore.train(TABLE, pd.Series(Y), epsilon=1), f"nothing of type Series.*{FIRST}"),
    "train(silos, y)": (lambda: fedcore.train(SILOS, Y, epsilon=1), f"nothing of type ndarray after them; {FIRST}"),
    "plan(X, y)": (lambda: fedcore.plan(X, Y, epsilon=1), f"nothing of type ndarray after them; {FIRST}"),
    "train(X)": (lambda: fedcore.train(X, epsilon=1), PAIRS),
    "train([(X, y)])": (lambda: fedcore.train([(X, Y)], epsilon=1), PAIRS),
    "train(X=, y=)": (lambda: fedcore.train(SILOS, X=X, y=Y, epsilon=1), r"X= is no argument of its own; write silos="),
    "frames with label=": (lambda: fedcore.train({"a": TABLE}, label="age", epsilon=1), LABEL),
    "frames alone": (lambda: fedcore.train({"a": TABLE}, epsilon=1), r"silo a: records are a pair, .*: \(X, y\)"),
    "label= with arrays": (lambda: fedcore.train(SILOS, label="y", epsilon=1), LABEL),
    "label=y": (lambda: fedcore.train(SILOS, label=Y, epsilon=1), LABEL),
    "features= with arrays": (lambda: fedcore.train(SILOS, features=["a"], epsilon=1), "of arrays leave it out"),
    "text labels": (
        lambda: fedcore.train(both(WORDS), epsilon=1),
        r"silo north: labels are texts, and classes= has 0 and 1; .* classes=\('no', 'yes'\)",
    ),
    "text labels of other classes": (
        lambda: fedcore.train(both(WORDS), classes=("no", "yes"), epsilon=1),
        "some labels are none of classes=, which has 'no' and 'yes'; name all values",
    ),
    "labels -1 and 1": (lambda: fedcore.train(both(2 * Y - 1), epsilon=1), "some labels are none of classes=, which"),
    "labels of each silo": (
        lambda: fedcore.train({"a": (X[:25], Y[:25]), "b": (X[25:], Y[25:] + 1)}, epsilon=1),
        "silo b: some labels are none of classes=, which has 0 and 1",
    ),
    "real labels": (
        lambda: fedcore.train(both(X[:, 0]), epsilon=1),
        r"classes=None and model=\{'loss': \{'name': 'squared'\}",
    ),
    "real labels, no loss": (
        lambda: fedcore.train(both(X[:, 0]), classes=None, epsilon=1),
        "needs a loss of numbers: model=.*'squared'",
    ),
    "three classes, no loss": (
        lambda: fedcore.train(both(Y), classes=(0, 1, 2), epsilon=1),
        "a loss of several classes: model=.*'softmax'",
    ),
    "real labels that are texts": (
        lambda: fedcore.train(both(WORDS), classes=None, model={"loss": {"name": "huber"}}, epsilon=1),
        "labels are no finite numbers; name their values as classes=",
    ),
    "classes=2": (lambda: fedcore.train(SILOS, classes=2, epsilon=1), "classes= lists the label's values in order"),
    "classes={0, 1}": (lambda: fedcore.train(SILOS, classes={0, 1}, epsilon=1), "classes= lists the label's values in"),
    "classes='01'": (lambda: fedcore.train(SILOS, classes="01", epsilon=1), "classes= lists the label's values in"),
    "classes=[0]": (lambda: fedcore.train(SILOS, classes=[0], epsilon=1), "classes= lists two different values at"),
    "classes=(1, True)": (lambda: fedcore.train(SILOS, classes=(1, True), epsilon=1), "two different values at least"),
    "test=0.2": (lambda: fedcore.train(SILOS, test=0.2, epsilon=1), "test: records are a pair"),
    "test=X": (lambda: fedcore.train(SILOS, test=X, epsilon=1), "test: records are a pair"),
    "test of other columns": (
        lambda: fedcore.train({"a": (TABLE, Y)}, test=(TABLE.rename(columns={"age": "AGE"}), Y), epsilon=1),
        "test: column 'age' of the first silo is not there",
    ),
    "test of other labels": (
        lambda: fedcore.train(SILOS, test=(X, WORDS), epsilon=1),
        "test: labels are texts, and classes= has 0 and 1",
    ),
    "one record": (
        lambda: fedcore.train({"a": (X, Y), "b": (X[:1], Y[:1])}, epsilon=1),
        r"silo b: its array has 1 record\(s\); a silo needs at least 2",
    ),
    "files beside arrays": (
        lambda: fedcore.train({"a": (X, Y), "b": "b.csv"}, epsilon=1),
        "silo b is a file and others are arrays",
    ),
    "silos of numbers": (lambda: fedcore.train({0: (X, Y)}, epsilon=1), "silos: the name 0 is no text; write '0'"),
    "epsilon=0": (lambda: fedcore.train(SILOS, epsilon=0), "privacy.epsilon = 0: it should be greater than 0"),
    "epsilon=[1, 2]": (lambda: fedcore.train(SILOS, epsilon=[1, 2]), "privacy.epsilon = .*: it should be a number"),
    "epsilon twice": (lambda: fedcore.train(SILOS, epsilon=1, privacy={"epsilon": 2}), "epsilon= is given twice"),
    "delta=1": (lambda: fedcore.train(SILOS, epsilon=1, delta=1), r"delta= is no argument .* privacy=\{'delta': ..\}"),
    "delta of 1": (
        lambda: fedcore.train(SILOS, epsilon=1, privacy={"delta": 1}),
        "privacy.delta = 1.0 must lie strictly between",
    ),
    "rounds=5": (lambda: fedcore.train(SILOS, epsilon=1, rounds=5), r"write algorithm=\{'name': .., 'rounds': ..\}"),
    "clip=1": (lambda: fedcore.train(SILOS, epsilon=1, clip=1.0), r"clip= is no argument .* model=\{'clip': ..\}"),
    "random_state=0": (lambda: fedcore.train(SILOS, epsilon=1, random_state=0), "write seed=0"),
    "learning_rate=1": (lambda: fedcore.train(SILOS, epsilon=1, learning_rate=1), r"write algorithm=\{'step': ..\}"),
    "privacy=2": (lambda: fedcore.train(SILOS, privacy=2), "privacy= is a section"),
    "algorithm=None": (lambda: fedcore.train(SILOS, epsilon=1, algorithm=None), "algorithm is of type NoneType"),
    "algorithm=an estimator": (
        lambda: fedcore.train(SILOS, epsilon=1, algorithm=LogisticRegression()),
        "of type LogisticRegression; write a m",
    ),
    "yes='no'": (lambda: fedcore.train(SILOS, epsilon=1, yes="no"), "yes= is True or False"),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_first_call_is_answered_by_what_to_write(call):
    train, message = CALLS[call]
    with pytest.raises(fedcore.InputError, match=message) as raised:
        train()
    sentence = str(raised.value)
    assert "\n" not in sentence and len(sentence) < 300
    assert "7131" not in sentence and WORD not in sentence and "fedcore-" not in sentence


def test_the_names_of_the_page_are_there():
    """`import fedcore` alone, in a fresh interpreter."""
    code = (
        "import fedcore, warnings\n"
        "try:\n    fedcore.train({}, epsilon=1)\n"
        "except fedcore.InputError as error:\n    print('said', error)\n"
        "assert issubclass(fedcore.SiloError, RuntimeError) and issubclass(fedcore.ModelWarning, UserWarning)\n"
        "assert all(hasattr(fedcore, name) for name in fedcore.__all__)"
    )
    message = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert message.startswith("said silos must be a mapping of names to records")


def test_examples_of_the_docstrings_are_what_comes_out():
    found = doctest.testmod(fedcore.library.training, optionflags=doctest.ELLIPSIS)
    assert found.attempted >= 7 and found.failed == 0


def train():
    return fedcore.train(SILOS, epsilon=1.0, algorithm=METHOD, seed=0).weights


def test_it_is_called_from_a_loop_from_threads_and_from_a_script_without_a_main(tmp_path):
    expected = train()

    async def main():
        return train()

    np.testing.assert_array_equal(asyncio.run(main()), expected)
    found = []
    threads = [threading.Thread(target=lambda: found.append(train())) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 3 and all(np.array_equal(each, expected) for each in found)
    script = tmp_path / "script.py"
    script.write_text(
        "import fedcore\nX = [[1.0, 2.0], [2.0, 1.0], [0.5, 1.5]] * 20\n"
        "print(fedcore.train({'a': (X, [0, 1, 0] * 20)}, epsilon=1, algorithm={'name': 'mbsgd', 'rounds': 2}))\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, cwd=tmp_path, check=True)
    assert done.stdout.startswith("mbsgd on 1 silos: accounted epsilon 1") and done.stderr == ""


def test_a_large_delta_of_small_silos_is_told():
    X = np.arange(40.0).reshape(20, 2) / 40
    with pytest.warns(fedcore.ModelWarning, match=r"up to 0\.0025 \(1/n\^2 at a, of 20 records\)"):
        fedcore.train({"a": (X, [0, 1] * 10)}, epsilon=1, algorithm={"name": "mbsgd", "rounds": 2})


def test_the_home_may_be_relative_and_is_no_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    expected = train()
    monkeypatch.setenv("FEDCORE_HOME", "below/home")
    np.testing.assert_array_equal(train(), expected)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FEDCORE_HOME", "file")
    with pytest.raises(fedcore.InputError, match=r"FEDCORE_HOME = .*/file is no folder; name one"):
        train()
    assert [each.name for each in tmp_path.iterdir()] == ["file"]
