"""One home for all fault tests: MLflow's and Prefect's databases are made once."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("faults") / "home"
