"""The split of a full-stack round, with few rounds: a change of the product may move what its clocks are on."""

import os
from unittest.mock import patch

import pytest

from benchmarks.rounds import _server
from benchmarks.split import PARTS, split_round


@pytest.mark.minutes
def test_the_parts_of_a_round_are_found(tmp_path):
    with patch.dict(os.environ), _server(tmp_path) as url:
        split = split_round(25, 20, 5, tmp_path / "split", url, "behind")
    parts = split["mean_ms"]
    # The last site to answer may have been busy for less than the mean: waiting has either sign.
    assert not [(part, parts[part]) for part in PARTS if part != "waiting" and parts[part] <= 0]
    assert abs(split["remainder_share"]) < 0.5  # the clocks are on nearly all of a round
