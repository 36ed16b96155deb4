"""Ledgers of many silos under a low limit of open files: the limit is raised first, or a message names the number."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from fedcore.errors import SiloError
from fedcore.ledger.file_lock import hold
from fedcore.ledger.sqlite import SqliteLedger
from fedcore.process import open_files
from fedcore.silo.durable_ledger import OPEN_FILES
from tests.selection import some_in_make_test

ROOM = """
import os, resource
resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))
from fedcore.process.open_files import RESERVE, make_room
now = len(os.listdir("/proc/self/fd"))
print(make_room({more}), resource.getrlimit(resource.RLIMIT_NOFILE)[0], now + {more} + RESERVE)
"""


def room(soft: int, hard: int, more: int) -> tuple[str, int, int]:
    code = ROOM.format(soft=soft, hard=hard, more=more)
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    message, limit, needed = out.rsplit(" ", 2)
    return message, int(limit), int(needed)


def test_the_soft_limit_is_raised_to_what_is_needed_and_no_further():
    message, limit, needed = room(256, 4000, 500 * OPEN_FILES)
    assert message == "None" and limit == pytest.approx(needed, abs=3) and limit > 3000
    assert room(256, 4000, 10)[:2] == ("None", 256)


def test_a_hard_limit_that_is_too_low_is_told_with_what_is_needed_and_left():
    message, limit, needed = room(256, 1024, 500 * OPEN_FILES)
    most, hard = eval(message)
    assert hard == 1024 and most == pytest.approx(needed, abs=3) and limit == 256


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="counts the files of this process")
def test_a_ledger_takes_no_more_files_than_are_counted(tmp_path):
    before = len(os.listdir("/proc/self/fd"))
    ledgers = [SqliteLedger(f"s{k}", tmp_path / f"{k}.sqlite", tmp_path / f"{k}.anchor") for k in range(3)]
    for k, ledger in enumerate(ledgers):
        ledger.record_policy("digest", "{}")
        assert ledger.silo == f"s{k}"
    taken = len(os.listdir("/proc/self/fd")) - before
    for ledger in ledgers:
        ledger.close()
    assert len(os.listdir("/proc/self/fd")) == before
    assert taken == 3 * (OPEN_FILES - 1), "one more is the lock of a registered silo's account"


def test_no_silo_s_file_is_blamed_for_a_process_that_has_none_left(tmp_path, monkeypatch):
    monkeypatch.setattr("fedcore.ledger.file_lock.none_left", lambda: True)
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(SiloError, match="this process has as many files open as it may"):
        hold("ash", tmp_path / "a.sqlite", tmp_path / "file" / "a.anchor")
    assert not open_files.none_left()


MANY = """
import os, resource, sys
from pathlib import Path
resource.setrlimit(resource.RLIMIT_NOFILE, (256, {hard}))
from fedcore.errors import SiloError
from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.experiment import Experiment
from fedcore.home import LedgerFolders
config = ExperimentConfig.model_validate({{
    "data": {{"source": "synthetic", "silos": 80, "records": 40, "features": 2}},
    "privacy": {{"epsilon": 1, "ledger": "sqlite"}}, "algorithm": {{"name": "mbsgd", "rounds": 1}},
}})
here = Path(sys.argv[1])
experiment = Experiment.prepare(config, here / "silos")
try:
    backend = experiment.in_process(LedgerFolders.below(here))
    backend.open()
    backend.close()
    print("opened", len(list(here.rglob("*.sqlite"))))
except SiloError as error:
    print(error, len(list(here.rglob("*.sqlite"))))
"""


LIMITS = [(300, "it and 79 other silos with durable ledgers take "), (4096, "opened 80")]


@pytest.mark.slow
@pytest.mark.parametrize(("hard", "words"), some_in_make_test(LIMITS, LIMITS[:1]))
def test_eighty_ledgers_open_under_a_limit_of_256_or_none_does(tmp_path, hard, words):
    done = subprocess.run(
        [sys.executable, "-c", MANY.format(hard=hard), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "FEDCORE_HOME": str(tmp_path / "home")},
    )
    assert words in done.stdout, done.stdout + done.stderr
    if hard == 300:
        assert "nothing was opened" in done.stdout and done.stdout.strip().endswith(" 0")
