"""The demo as plain processes at one epsilon, and the rules of its network, where this machine allows them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedcore.errors import InputError
from studies.federation_demo.code_view import ROOT
from studies.federation_demo.isolation import isolate
from studies.federation_demo.network import TOOLS, Network
from studies.federation_demo.parties import Party, Processes
from studies.federation_demo.proofs import check_folders, check_reach, check_silence
from tests.patience import HANGS

pytestmark = [pytest.mark.slow, pytest.mark.minutes]
ROOT_WITH_TOOLS = sys.platform == "linux" and os.geteuid() == 0 and all(map(shutil.which, (*TOOLS, "setpriv")))


def test_silos_apart_and_in_one_process_train_the_same_model(tmp_path):
    folder = tmp_path / "demo"
    command = [sys.executable, "-m", "studies.federation_demo", "--isolation", "processes", "--epsilon", "1"]
    done = subprocess.run(
        [*command, "--folder", str(folder)], cwd=ROOT, capture_output=True, text=True, timeout=6 * HANGS
    )
    assert done.returncode == 0, done.stdout + done.stderr
    apart, together = re.findall(
        r"epsilon 1: model of silos apart (\w{16}), of 4 silos in one process (\w{16})", done.stdout
    )[0]
    assert apart == together and "equal to the last bit" in done.stdout and "NOT EQUAL" not in done.stdout
    assert "has a listening socket" in done.stdout
    row = re.search(r"mbsgd +1 +1 +(0\.\d+)", done.stdout)
    assert row is not None and 0.0 < float(row[1]) < 0.484
    assert sorted(path.name for path in folder.iterdir()) == ["driver", "fedcore-demo"]
    assert [path.name for path in (folder / "driver").iterdir()] == ["home"]
    assert len(list((folder / "driver" / "home" / "runs").glob("*/model.json"))) == 1


class Open(Network):
    """A network whose rules forget one hospital."""

    def rules(self, party: str) -> str:
        return "" if party == "budapest" else super().rules(party)


@pytest.fixture
def passed() -> Iterator[Path]:
    """A folder that other users can pass, as they cannot pass pytest's own."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o711)
        yield Path(folder)


@pytest.mark.skipif(not ROOT_WITH_TOOLS, reason="namespaces need root, ip, nft, ss and setpriv")
@pytest.mark.parametrize("kind", [Network, Open])
def test_hospitals_reach_the_relay_alone_and_a_missing_rule_is_found(kind, passed):
    network = kind(f"fedcore-test-{os.getpid() % 10_000}", "relay", "driver", ("cleveland", "budapest"))
    processes = Processes(passed / "processes")
    made = isolate(network, "namespaces")
    try:
        assert made.degree == "namespaces", made.reasons
        parties = {name: Party(name, passed / name, made, processes) for name in network.parties}
        for party in parties.values():
            party.make()
        assert "none of the other 3" in check_folders(parties)
        if kind is Open:
            with pytest.raises(InputError, match=r"with the hospitals' rules, .*budapest"):
                check_reach(network, parties)
            return
        lines = check_reach(network, parties)
        assert lines[0] == "without rules: 24 of 24 connections between the parties are made" and len(lines) == 4
        assert "nothing listens" in check_silence(network, network.silos)
        (passed / "cleveland").chmod(0o755)
        with pytest.raises(InputError, match="wrong access to the folder of cleveland"):
            check_folders(parties)
    finally:
        processes.end()
        made.remove()
    assert network.left() == []
