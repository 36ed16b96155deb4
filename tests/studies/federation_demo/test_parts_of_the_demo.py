"""Parts of the demo: files of the parties, rules, mounts, degrees of isolation, and the folder that is cleared."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fedcore.configfile.reading import read_yaml
from fedcore.data.sources.hospitals import HOSPITALS, rows
from fedcore.errors import BusyError, InputError
from fedcore.experiment.sweep import load_sweep
from fedcore.silo.policies.policy_file import read_policy
from studies.federation_demo import isolation
from studies.federation_demo.code_view import ROOT, closed_above, installation, mounts
from studies.federation_demo.comparison import Compared
from studies.federation_demo.hospital_files import SWEEP, HospitalFiles
from studies.federation_demo.isolation import isolate, network_of
from studies.federation_demo.network import Network
from studies.federation_demo.parties import Party, Processes, fingerprint
from studies.federation_demo.workplace import MARK, Workplace

NETWORK = Network("fedcore-demo-test", "relay", "driver", ("cleveland", "budapest"))


def test_each_hospital_gets_the_rows_that_the_simulation_gives_it(tmp_path):
    files = HospitalFiles()
    for name, (trained, _) in rows("flamby").items():
        assert files.write_records(tmp_path / f"{name}.csv", name) == len(trained)
    assert files.write_test(tmp_path / "test.csv") == sum(len(test) for _, test in rows("flamby").values())
    source = ROOT / "fedcore" / "data" / "sources" / "heart_disease" / "cleveland.csv"
    lines = [line.split(",") for line in source.read_text().splitlines()]
    written = [line.split(",") for line in (tmp_path / "cleveland.csv").read_text().splitlines()]
    chosen = [lines[0], *(lines[1 + row] for row in rows("flamby")["cleveland"][0])]
    assert [[each and _number(each) for each in line] for line in written] == [
        [each and _number(each) for each in line] for line in chosen
    ]


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def test_the_sweep_is_that_of_the_package_with_guarded_silos_elsewhere(tmp_path):
    (tmp_path / "sweep.yaml").write_text(HospitalFiles().sweep(tmp_path / "test.csv"))
    cells = load_sweep(tmp_path / "sweep.yaml").cells()
    simulated = {
        (cell.algorithm.name, cell.privacy.epsilon): cell for cell in load_sweep(SWEEP).cells() if cell.seed == 0
    }
    assert [cell.privacy.epsilon for cell in cells] == [1, 2, 5]
    for cell in cells:
        other = simulated[cell.algorithm.name, cell.privacy.epsilon]
        assert (cell.algorithm, cell.model, cell.participation) == (other.algorithm, other.model, other.participation)
        assert (cell.privacy.delta, cell.data.features) == (other.privacy.delta, other.data.features)
        assert (cell.privacy.noise, cell.privacy.ledger, cell.cluster.backend) == ("guarded", "sqlite", "federation")


def test_the_policy_allows_the_sweep_and_one_run_more_is_refused(tmp_path):
    (tmp_path / "policy.yaml").write_text(HospitalFiles((1.0, 5.0)).policy)
    policy = read_policy(tmp_path / "policy.yaml")
    assert (policy.runs, policy.cap.epsilon, policy.one_run.epsilon) == (2, 6.0, 5.0)
    assert policy.methods == ("mbsgd",)


def test_an_epsilon_without_settings_is_refused():
    with pytest.raises(InputError, match=r"--epsilon 3: hospitals.yaml has no mbsgd at it; it has 1, 2, 5"):
        HospitalFiles((3.0,)).sweep(Path("test.csv"))


def test_a_hospital_may_dial_one_address_and_port_and_accepts_no_new_connection():
    rules = NETWORK.rules("budapest").splitlines()
    accepted = [line for line in rules if line.endswith("accept")]
    assert accepted == ["ct state established accept", "ip daddr 10.77.0.1 tcp dport 8500 accept"]
    assert rules.index(accepted[0]) > rules.index("chain input {")
    assert rules.index(accepted[1]) > rules.index("chain output {")
    assert sum("policy drop" in line for line in rules) == 3
    assert "lo" not in NETWORK.rules("budapest").split('"') and "lo" in NETWORK.rules("driver").split('"')


def test_folders_below_a_closed_one_are_mounted_at_their_own_paths(tmp_path):
    inner = tmp_path / "closed" / "clone"
    inner.mkdir(parents=True)
    (tmp_path / "closed").chmod(0o700)
    script = mounts([inner], tmp_path / "stash")
    assert f"mount --rbind {inner} {tmp_path / 'stash' / '0'}" in script
    assert script.index(f"tmpfs {closed_above(inner)}") < script.index(
        f"mount --rbind {tmp_path / 'stash' / '0'} {inner}"
    )
    assert mounts([Path("/usr/bin")], tmp_path / "stash") is None
    assert any(ROOT.is_relative_to(place) for place in installation())


@pytest.mark.parametrize("wanted", ["namespaces", "users"])
def test_without_root_the_parties_are_processes_and_the_reason_is_named_once(monkeypatch, wanted, tmp_path):
    monkeypatch.setattr(isolation.os, "geteuid", lambda: 1000)
    found = isolate(network_of(tmp_path, "relay", "driver", ("a",)), wanted)
    assert found.degree == "processes" and found.users == {} and found.network is None
    (reason,) = found.reasons
    assert reason.startswith("no namespaces and no users: " if wanted == "namespaces" else "no users: ")
    assert "`sudo make demo`" in reason and found.command("a", ["true"]) == ["true"]


def test_a_party_has_neither_the_home_nor_the_secrets_of_the_person(tmp_path, monkeypatch):
    for name in ("FEDCORE_POLICIES", "FEDCORE_ANCHORS", "HTTPS_PROXY", "SECRET"):
        monkeypatch.setenv(name, "x")
    party = Party("a", tmp_path, isolation.Isolation("processes", ""), Processes(tmp_path / "file"))
    assert not {"FEDCORE_POLICIES", "FEDCORE_ANCHORS", "HTTPS_PROXY", "SECRET"} & party.environment.keys()
    assert party.environment["FEDCORE_REGISTER"] == str(tmp_path / "register")
    assert party.python("import os; print(os.environ['HOME'])").strip() == str(tmp_path)
    with pytest.raises(InputError, match="a: `python` ended with code 3: a word"):
        party.python("import sys; print('a word'); sys.exit(3)")


def test_one_fingerprint_is_found_and_two_are_refused():
    text = "AAAAA-BBBBB-CCCCC-DDDDD-EEEEE"
    assert fingerprint(f"it is {text}.") == text
    with pytest.raises(InputError, match="printed 2 fingerprints"):
        fingerprint(f"{text} {text}")


def workplace(folder: Path) -> Workplace:
    return Workplace(folder, network_of(folder, "relay", "driver", ()), folder / "driver" / "home")


def test_a_finished_demo_leaves_the_drivers_home_and_a_stopped_one_nothing(tmp_path):
    folder = tmp_path / "demo"
    for finished in (True, False):
        with workplace(folder).open() as place:
            for name in ("driver/home/runs", "driver/other", "cleveland/home"):
                (folder / name).mkdir(parents=True)
            place.finished = finished
        left = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))
        assert left == (["driver", "driver/home", "driver/home/runs", MARK] if finished else [])


def test_a_folder_of_other_files_is_not_cleared(tmp_path):
    (tmp_path / "mine").touch()
    with pytest.raises(InputError, match="holds files of another kind"), workplace(tmp_path).open():
        pass
    assert (tmp_path / "mine").exists()


def test_two_demos_in_one_folder_are_refused(tmp_path):
    with workplace(tmp_path).open(), pytest.raises(BusyError, match="another demo runs"), workplace(tmp_path).open():
        pass


def test_sigterm_ends_the_parties_and_clears(tmp_path):
    held: list[subprocess.Popen[str]] = []
    with pytest.raises(KeyboardInterrupt), workplace(tmp_path).open() as place:
        party = Party("a", tmp_path / "a", isolation.Isolation("processes", ""), place.processes)
        party.make()
        held.append(party.start([sys.executable, "-c", "import time; time.sleep(600)"], "log"))
        os.kill(os.getpid(), signal.SIGTERM)
        held[0].wait(timeout=60)
    assert held[0].returncode == -signal.SIGTERM and not (tmp_path / "a").exists()


def test_processes_of_a_killed_demo_are_ended_by_the_next_one(tmp_path):
    (tmp_path / MARK).touch()
    left = Processes(tmp_path / "processes.jsonl")
    living = left.add(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], text=True))
    try:
        with workplace(tmp_path).open():
            assert living.wait(timeout=60) == -signal.SIGKILL
    finally:
        living.kill()
        living.wait()


def test_models_that_differ_in_one_bit_are_not_equal():
    import numpy as np

    w = np.array([0.5, -1.0])
    assert Compared("run", 1.0, w, w.copy()).equal
    other = Compared("run", 1.0, w, np.nextafter(w, 1.0))
    assert not other.equal and len(set(other.digests)) == 2


def test_names_of_the_hospitals_are_those_of_the_package():
    assert HospitalFiles().names == tuple(HOSPITALS) and read_yaml(SWEEP, ())["base"]
