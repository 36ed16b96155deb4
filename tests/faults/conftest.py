"""One home for all fault tests: MLflow's and Prefect's databases are made once. And the table of kills."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.one_silo import One


def pytest_addoption(parser):
    parser.addoption("--fault-table", help="write the kills that were survived to this Markdown file")


@pytest.fixture(scope="session")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("faults") / "home"


class FaultTable:
    """The table of survived kills: process, step and number."""

    def __init__(self) -> None:
        self.rows: dict[tuple[str, str], dict[str, list[int]]] = {}

    def add(self, victim: str, step: str, ledger: str, count: int) -> None:
        """Adds a kill; called at the end of a test whose checks all passed."""
        self.rows.setdefault((victim, step), {}).setdefault(ledger, []).append(count)

    def text(self) -> str:
        lines = [
            "| killed by SIGKILL | at this step | occurrences, ledger in memory | sqlite | sqlite and secret keys |",
            "|---|---|---|---|---|",
        ]
        for (victim, step), ledgers in self.rows.items():
            counts = [", ".join(map(str, ledgers.get(name, []))) or "-" for name in ("memory", "sqlite", "guarded")]
            lines.append(f"| {victim} | {step} | {' | '.join(counts)} |")
        return "\n".join(lines) + "\n"


@pytest.fixture(scope="session")
def fault_table(request):
    table = FaultTable()
    yield table
    path = request.config.getoption("--fault-table")
    if path and table.rows:
        Path(path).write_text(
            "<!-- Written by `make faults`; do not edit. -->\n\n"
            "# Kills that were survived\n\nEach row is a SIGKILL inside its step, followed by a resume. Workers, "
            "shufflers and Prefect\nservers come back by themselves.\n\nThe tests then check four things. The reported "
            "epsilon is at least the true one. Each address\nhas one payload, and nothing is charged twice. The final "
            "model has the bits of an undisturbed run,\nor with secret keys those that the ledgers give.\n\n"
            + table.text()
        )


@pytest.fixture
def one(tmp_path):
    """Makes sites of one silo, each in a folder of its own, and closes them at the end."""
    made: list[One] = []

    def build(kind, X, y, **options) -> One:
        folder = tmp_path / f"site-{len(made)}"
        made.append(One(folder, kind, X, y, **options))
        return made[-1]

    yield build
    for site in made:
        site.close()
