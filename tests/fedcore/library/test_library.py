"""`fedcore.train` and `fedcore.plan`: against arithmetic by hand, the command line's parts, and a person's mistakes."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

import fedcore
from fedcore.errors import InputError
from fedcore.experiment.experiment import Experiment
from fedcore.experiment.loading import load_experiment
from fedcore.federation.rounds import rounds
from fedcore.home import LedgerFolders

DIGITS = Path(__file__).parents[3] / "conf" / "experiment" / "digits.yaml"
TRUTH = np.array([2.0, -1.0, 0.5])


def drawn(seed: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    X = np.random.default_rng(seed).standard_normal((n, 3))
    return X, X @ TRUTH > 0


SILOS = {"north": drawn(1, 120), "south": drawn(2, 80)}
TEST = drawn(3, 500)
METHOD = {"name": "mbsgd", "rounds": 6, "step": 0.5, "average": "last"}


def prepared(X: np.ndarray) -> np.ndarray:
    """A bias of 1, then each record brought to norm at most 1: the default preparation, written once more."""
    longer = np.hstack([X, np.ones((len(X), 1))])
    return longer / np.maximum(1.0, np.linalg.norm(longer, axis=1, keepdims=True))


def gradient_descent() -> tuple[np.ndarray, list[float]]:
    """Full-batch gradient descent on the mean over silos of their mean logistic losses; test errors on the way."""
    w, errors = np.zeros(4), []
    for _ in range(6):
        gradients = []
        for X, y in SILOS.values():
            A, sign = prepared(X), np.where(y, 1.0, -1.0)
            gradients.append(-(A * (sign / (1 + np.exp(sign * (A @ w))))[:, None]).mean(axis=0))
        w = w - 0.5 * np.mean(gradients, axis=0)
        errors.append(float(np.mean((prepared(TEST[0]) @ w > 0) != TEST[1])))
    return w, errors


def test_without_noise_it_is_gradient_descent_by_hand():
    trained = fedcore.train(SILOS, test=TEST, algorithm=METHOD, privacy={"trust": "none"}, model={"diameter": 100})
    w, errors = gradient_descent()
    np.testing.assert_allclose(trained.weights, w, atol=1e-12)
    assert trained.rounds["test_error"].tolist() == pytest.approx(errors, abs=1e-12)
    assert trained.epsilon is None and "no privacy" in str(trained) and "epsilon" not in trained.rounds


def test_with_noise_the_rounds_add_up_to_the_target_and_ledgers_agree():
    trained = fedcore.train(SILOS, test=TEST, epsilon=2.0, algorithm=METHOD, seed=0)
    assert trained.epsilon == pytest.approx(2.0, rel=1e-9)
    spent = trained.rounds["epsilon"]
    assert spent.iloc[-1] == pytest.approx(2.0, rel=1e-6) and (np.diff(spent) > 0).all()
    assert trained.rounds["floats_up"].tolist() == [2 * 4 * (r + 1) for r in range(6)]  # two silos, four weights
    assert [account.releases for account in trained.accounts] == [6, 6]
    assert trained.delta == 1 / 80**2
    assert trained.rounds.index.name == "round" and trained.rounds.index.tolist() == list(range(1, 7))
    assert "simulation" in trained.noise and f"test error {trained.test_error:.3f}" in str(trained)


def test_the_plan_is_that_of_the_training_and_reads_no_record():
    plan = fedcore.plan(SILOS, epsilon=2.0, algorithm=METHOD)
    trained = fedcore.train(SILOS, test=TEST, epsilon=2.0, algorithm=METHOD)
    assert plan.digest == trained.plan.digest
    blank = {name: (np.full_like(X, np.nan), y) for name, (X, y) in SILOS.items()}
    assert fedcore.plan(blank, epsilon=2.0, algorithm=METHOD).digest == plan.digest


def test_a_config_file_gives_the_weights_of_its_experiment(tmp_path):
    overrides = ["algorithm={name: mbsgd, rounds: 5}", "privacy.epsilon=4"]
    trained = fedcore.train(DIGITS, *overrides)
    experiment = Experiment.prepare(load_experiment(DIGITS, overrides), tmp_path / "silos")
    backend = experiment.in_process(LedgerFolders.below(tmp_path))
    backend.open()
    *_, (_, _, last) = rounds(experiment.context, experiment.method.init(experiment.start()), backend.ask)
    np.testing.assert_array_equal(trained.weights, experiment.method.output(last))


def test_files_are_trained_on_like_the_arrays_in_them(tmp_path):
    for name, (X, y) in (SILOS | {"test": TEST}).items():
        rows = [f"{a!r},{b!r},{c!r},{int(label)}" for (a, b, c), label in zip(X.tolist(), y, strict=True)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["a,b,c,sick", *rows]) + "\n")
    files = {name: tmp_path / f"{name}.csv" for name in SILOS}
    kept = {"privacy": {"trust": "none"}, "algorithm": METHOD}
    of_files = fedcore.train(files, test=tmp_path / "test.csv", label="sick", features=["a", "b", "c"], **kept)
    of_arrays = fedcore.train(SILOS, test=TEST, **kept)
    np.testing.assert_allclose(of_files.weights, of_arrays.weights, atol=1e-12)
    assert of_files.measures == of_arrays.measures


def test_a_real_label_has_no_error_of_classes():
    silos = {name: (X, np.tanh(X @ TRUTH)) for name, (X, _) in SILOS.items()}
    test = TEST[0], np.tanh(TEST[0] @ TRUTH)
    trained = fedcore.train(
        silos,
        test=test,
        epsilon=4.0,
        classes=None,
        algorithm={"name": "mbsgd", "rounds": 10, "step": 0.5},
        model={"loss": {"name": "squared"}, "clip": 1.0, "diameter": 10},
    )
    assert trained.test_error is None and trained.measures["test_rmse"] > 0
    assert trained.plot().axes[0].get_ylabel() == "test loss"


def test_the_plot_is_of_the_table():
    trained = fedcore.train(SILOS, test=TEST, epsilon=2.0, algorithm=METHOD)
    (axes,) = trained.plot().axes
    x, y = axes.lines[0].get_data()
    assert x.tolist() == list(range(1, 7)) and y.tolist() == trained.rounds["test_error"].tolist()
    (axes,) = trained.plot("test_loss", against="epsilon").axes
    assert axes.lines[0].get_xdata().tolist() == trained.rounds["epsilon"].tolist()
    with pytest.raises(KeyError):
        trained.plot("accuracy")


def test_nothing_is_left_on_disk(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    fedcore.train(SILOS, epsilon=2.0, algorithm=METHOD)
    with pytest.raises(InputError):
        fedcore.train(SILOS, epsilon=-1.0, algorithm=METHOD)
    assert list(tmp_path.iterdir()) == []


X, Y = SILOS["north"]


@pytest.mark.parametrize(
    ("silos", "keys", "message"),
    [
        ({}, {}, "silos must be a mapping of names"),
        ([(X, Y)], {}, "silos must be a mapping of names"),
        ({"a": X}, {}, "silo a: records are a pair"),
        ({"a": (X, Y[:-1])}, {}, "silo a: features have 120 records and labels 119"),
        ({"a": (X, Y), "b": (X[:, :2], Y)}, {}, "silo b: 2 features where the first silo has 3"),
        ({"a": ([["x", "y"]], [1])}, {}, "silo a: features are texts; make numbers of them first"),
        ({"a b": (X, Y)}, {}, "name"),
        ({"a": (X, Y)}, {"epsilon": None}, "privacy.epsilon is missing"),
        ({"a": (X, Y)}, {"epsilon": -1}, "privacy.epsilon = -1"),
        ({"a": (X, Y)}, {"algorithm": "mbsdg"}, "did you mean mbsgd"),
        ({"a": (X, Y)}, {"algorithm": {"name": "mbsgd", "stepp": 1}}, "did you mean step"),
        ({"a": (X, Y)}, {"label": "y"}, "label= names a column of files; of arrays labels are the second of each pair"),
        ({"a": (X, Y)}, {"data": {}}, "data= follows from silos"),
        ({"a": (X, Y)}, {"modl": {}}, "modl is not a known key; did you mean model"),
        ({"a": (X, Y)}, {"classes": (2, 3)}, "label"),
        ({"a": (X, Y)}, {"privacy": {"ledger": "sqlite"}}, "privacy.ledger = sqlite needs the command line"),
        ({"a": "a.csv"}, {}, "silos in files need label=, the label's column, and features="),
        ({"a": "gone.csv"}, {"label": "y", "features": ["x"]}, "gone.csv"),
        (DIGITS, {}, "leave out epsilon"),
        ("gone.yaml", {"epsilon": None}, "gone.yaml does not exist"),
    ],
)
def test_a_mistake_is_one_sentence(silos, keys, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=message):
        fedcore.train(silos, **{"epsilon": 2.0, **keys})
    assert list(tmp_path.iterdir()) == []


def test_overrides_are_for_a_config_file():
    with pytest.raises(InputError, match="overrides are for a config file"):
        fedcore.train(SILOS, "privacy.epsilon=2")


def test_importing_the_package_imports_nothing_slow():
    """Every module imports it first, and still finds its public names."""
    import subprocess
    import sys

    code = "import fedcore, sys; print([n for n in ('numpy', 'pydantic') if n in sys.modules], fedcore.train)"
    message = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert message.startswith("[] <function train")
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        fedcore.trian  # noqa: B018
    assert math.isfinite(float(fedcore.__version__.split(".")[0]))
