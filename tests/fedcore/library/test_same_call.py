"""Calls of `train` have secret noise, which never repeats; with a seed the same call is the same run."""

from __future__ import annotations

import numpy as np
import pytest

import fedcore


def silos(seed: int = 0) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(seed)
    features = {name: rng.uniform(-0.5, 0.5, size=(40, 3)) for name in ("north", "south")}
    return {name: (X, (X[:, 0] > 0).astype(int)) for name, X in features.items()}


def trained(data, **changes):
    return fedcore.train(data, **{"epsilon": 1.0, "algorithm": {"name": "mbsgd", "rounds": 5, "step": 0.5}} | changes)


def test_the_same_call_has_the_same_bits_wherever_its_arrays_are_written(tmp_path, monkeypatch):
    first = trained(silos(), seed=0)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.chdir(tmp_path)
    again = trained(silos(), seed=0)
    assert first.weights.tobytes() == again.weights.tobytes()
    assert trained(silos(), seed=1).weights.tobytes() != first.weights.tobytes()
    assert "seeded simulation" in first.noise


@pytest.mark.parametrize("trust", ["inter-silo", "central"])
def test_without_a_seed_no_call_repeats_another_and_the_model_says_so(trust):
    first, again = (trained(silos(), privacy={"trust": trust}) for _ in range(2))
    assert first.weights.tobytes() != again.weights.tobytes()
    assert "no other call repeats it" in first.noise and "public seed" not in first.noise


def test_released_scales_of_a_call_without_a_seed_are_secret_too():
    calls = [
        trained(silos(), test=silos(1)["north"], scale="released", **changes)
        for changes in ({}, {}, {"seed": 0}, {"seed": 0})
    ]
    first, again, seeded, repeated = (call.weights.tobytes() for call in calls)
    assert first != again and seeded == repeated != first


def test_arrays_that_differ_in_one_record_get_other_noise():
    """By subtraction one record would else be laid bare: only its own step may be left then, a multiple of its row."""
    one, other = silos(), silos()
    other["south"][0][7] *= -1.0
    once = {"name": "mbsgd", "rounds": 1, "step": 0.5}
    difference = trained(one, algorithm=once).weights - trained(other, algorithm=once).weights
    row = np.append(other["south"][0][7], 0.0)  # the bias does not change
    row /= np.linalg.norm(row)
    across = difference - (difference @ row) * row
    assert np.linalg.norm(across) > 1e-3  # equal noise leaves rounding alone; other noise has about 0.05
