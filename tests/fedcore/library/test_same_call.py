"""The same call of `train` is the same run, with the same noise; other data never get the same noise."""

from __future__ import annotations

import numpy as np

import fedcore


def silos(seed: int = 0) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(seed)
    features = {name: rng.uniform(-0.5, 0.5, size=(40, 3)) for name in ("north", "south")}
    return {name: (X, (X[:, 0] > 0).astype(int)) for name, X in features.items()}


def trained(data, **changes):
    return fedcore.train(data, **{"epsilon": 1.0, "algorithm": {"name": "mbsgd", "rounds": 5, "step": 0.5}} | changes)


def test_the_same_call_has_the_same_bits_wherever_its_arrays_are_written(tmp_path, monkeypatch):
    first = trained(silos())
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.chdir(tmp_path)
    again = trained(silos())
    assert first.weights.tobytes() == again.weights.tobytes()
    assert trained(silos(), seed=1).weights.tobytes() != first.weights.tobytes()


def test_arrays_that_differ_in_one_record_get_other_noise(monkeypatch):
    """By subtraction one record would else be laid bare: only its own step may be left then, a multiple of its row."""
    one, other = silos(), silos()
    other["south"][0][7] *= -1.0
    once = {"name": "mbsgd", "rounds": 1, "step": 0.5}
    difference = trained(one, algorithm=once).weights - trained(other, algorithm=once).weights
    row = np.append(other["south"][0][7], 0.0)  # the bias does not change
    bare = np.linalg.norm(row) * 2.0 / 80.0
    assert np.linalg.norm(difference) > 5.0 * bare
