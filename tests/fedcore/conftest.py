"""An experiment's file that tests of configs start from."""

import pytest

BASE = """
privacy: {epsilon: 1}
algorithm: {name: localized-mbsgd, step: 2, rounds: [5, 3], lam: 0.1}
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(BASE)
    return path
