"""The split of a full-stack round, with few rounds: a change of the product may move what its clocks are on."""

import os

import pytest

from benchmarks.rounds import _server
from benchmarks.split import PARTS, split_round


@pytest.mark.minutes
def test_the_parts_of_a_round_are_found(tmp_path, monkeypatch):
    for name, value in os.environ.items():
        monkeypatch.setenv(name, value)  # what the server's environment changes is undone
    with _server(tmp_path) as url:
        split = split_round(25, 20, 5, tmp_path / "split", url, "behind")
    parts = split["mean_ms"]
    assert all(parts[part] > 0 for part in PARTS)
    assert abs(split["remainder_share"]) < 0.5  # the clocks are on nearly all of a round
