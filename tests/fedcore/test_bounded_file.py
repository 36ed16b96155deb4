"""Files are bounded before they are parsed: by bytes, and by the values that aliases of YAML stand for."""

import errno
import json
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from fedcore.bounded_file import read_within
from fedcore.configfile.reading import read_yaml, value_of
from fedcore.errors import InputError
from fedcore.limits import LARGEST_TEXT, MOST_VALUES
from fedcore.noise_cache import NoiseFolder
from flows.services.leases import read_json

TENS = ", ".join(["1"] * 10)
SOME = "".join(f", &a{at} [{', '.join([f'*a{at - 1}'] * 10)}]" for at in range(1, 12))
BOMB = f"[&a0 [{TENS}]{SOME}]"
"""About 10^12 ones in 600 bytes."""


def endless(path: Path) -> Path:
    """A file that is far longer than the reading limit, and takes no space on the disk."""
    with open(path, "wb") as file:
        file.truncate(2**40)
    return path


def test_a_file_is_read_up_to_its_bound(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"123")
    assert read_within(path, 3) == b"123"
    with pytest.raises(OSError) as refused:
        read_within(path, 2)
    assert refused.value.errno == errno.EFBIG and refused.value.strerror == "more than 2 bytes"


def test_endless_files_are_refused_wherever_text_is_read(tmp_path):
    with pytest.raises(InputError, match=rf"config file .*long\.yaml cannot be read \(more than {LARGEST_TEXT} bytes"):
        read_yaml(endless(tmp_path / "long.yaml"), ())
    assert read_json(endless(tmp_path / "long.json")) is None
    folder = NoiseFolder(tmp_path / "noise")
    folder.put({"a": 1}, 2.0)
    assert folder.get({"a": 1}) == 2.0
    endless(next((tmp_path / "noise").iterdir()))
    assert folder.get({"a": 1}) is None


@pytest.mark.parametrize("text", [BOMB, f"{{a: {BOMB}}}", "&a [*a]", "&a {b: *a}"])
def test_aliases_count_as_what_they_stand_for(tmp_path, text):
    with pytest.raises(InputError, match=f"more than {MOST_VALUES} values"):
        value_of(text, "'a'")
    (tmp_path / "bomb.yaml").write_text(f"privacy: {{epsilon: {text}}}\n")
    with pytest.raises(InputError, match=rf"bomb\.yaml, line 1: not valid YAML \(more than {MOST_VALUES} values"):
        read_yaml(tmp_path / "bomb.yaml", ())


def test_a_few_aliases_are_read():
    assert value_of("[&a {x: 1}, *a, {y: *a}]", "'a'") == [{"x": 1}, {"x": 1}, {"y": {"x": 1}}]


@pytest.mark.slow
def test_a_config_of_aliases_costs_the_command_little(tmp_path):
    """The whole command, in a minute of a core; before, it wrote out a value of 10^12 numbers."""
    config = tmp_path / "bomb.yaml"
    config.write_text(
        f"name: x\nalgorithm: {{name: mbsgd, rounds: 3}}\nprivacy: {{epsilon: {BOMB}}}\n"
        f"data: {json.dumps({'source': 'synthetic', 'silos': 2, 'records': 60, 'features': 3})}\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "flows.commands.entry", "check", str(config)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (60, 60)),
    )
    assert done.returncode == 2 and "more than 1048576 values" in done.stdout + done.stderr, done
