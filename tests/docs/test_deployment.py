"""Recipes of docs/deployment: their commands exist with all options, and systemd, nginx and haproxy accept them."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from typer.core import TyperGroup
from typer.main import get_command

from flows.carriers.relay import WAIT
from flows.commands.app import app
from tasks.relay.client import LARGEST_SIZES

ROOT = Path(__file__).parents[2]
RECIPES = ROOT / "docs" / "deployment"
PAGE = ROOT / "docs" / "deployment.md"
UNITS = sorted(RECIPES.glob("*.service"))
PROGRAM = "/opt/fedcore/bin/fedcore"
LATER = ("RestartSteps", "RestartMaxDelaySec")
"""Keys that systemd knows from version 254 on."""


def unit_lines(path: Path) -> list[tuple[str, str]]:
    """Keys and values of a unit, in order."""
    text = path.read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line and line[0] not in "#["]
    return [(key, value) for key, _, value in (line.partition("=") for line in lines)]


def commands() -> Iterator[tuple[str, list[str]]]:
    """Each command of a recipe or of the page, with its place: the words after the program's name."""
    for path in [*UNITS, *RECIPES.glob("*.conf")]:
        for key, value in unit_lines(path):
            if key == "ExecStart" and value:
                words = shlex.split(value)
                assert words[0] == PROGRAM, path
                yield path.name, words[1:]
    for name, service in compose()["services"].items():
        yield f"compose.yaml {name}", service["command"]
    (command,) = re.findall(r"^CMD (\[.*\])$", (RECIPES / "Containerfile").read_text(), re.MULTILINE)
    yield "Containerfile", yaml.safe_load(command)
    text = PAGE.read_text().replace("\\\n", " ")
    for line in re.findall(r"(?:^|[$`] ?|fedcore\$ )fedcore ([^`\n#]*)", text, re.MULTILINE):
        yield "deployment.md", shlex.split(line.partition(" |")[0])


def compose() -> dict:
    return yaml.safe_load((RECIPES / "compose.yaml").read_text())


def test_every_command_of_a_recipe_exists_with_its_options():
    found = list(commands())
    assert {place.partition(" ")[0] for place, _ in found} == {
        "fedcore-silo.service", "fedcore-relay.service", "fedcore-relay-tls.conf", "compose.yaml", "Containerfile",
        "deployment.md",
    }  # fmt: skip
    for place, words in found:
        check(place, words)


def test_every_command_that_a_federations_message_names_exists_with_its_options():
    found = 0
    for path in [*(ROOT / "flows" / "commands" / "federations").glob("*.py"), *(ROOT / "tasks" / "relay").glob("*.py")]:
        for line in re.findall(r"`fedcore ([^`\"]*)`", path.read_text()):
            words = shlex.split(re.sub(r"\{[^}]*\}", "X", line))
            check(path.name, words, named=True)
            found += 1
    assert found > 10


def check(place: str, words: list[str], named: bool = False) -> None:
    """Fails unless the words are a command with options that it has, each with a value if it takes one.

    `named`: the command may stand without its arguments.
    """
    command = get_command(app)
    rest = list(words)
    while isinstance(command, TyperGroup) and rest and not rest[0].startswith("-"):
        assert rest[0] in command.commands, (place, words)
        command = command.commands[rest.pop(0)]
    options = {name: each for each in command.params if each.param_type_name == "option" for name in each.opts}
    arguments = 0
    while rest:
        word = rest.pop(0)
        if not word.startswith("-"):
            arguments += 1
            continue
        name, _, value = word.partition("=")
        assert name in options or name == "--help", (place, words, name)
        if name in options and not options[name].is_flag and not value:
            assert rest and not rest[0].startswith("-"), (place, words, name)
            rest.pop(0)
    taken = [each for each in command.params if each.param_type_name == "argument"]
    assert arguments <= len(taken) or any(each.nargs < 0 for each in taken), (place, words)
    assert named or arguments >= sum(each.required for each in taken), (place, words)


@pytest.mark.parametrize("words", [["silo", "answer"], ["relay", "x", "--tls"], ["relay", "x", "--port"], ["relay"]])
def test_a_recipe_that_rots_is_found(words):
    with pytest.raises(AssertionError):
        check("a recipe", words)


def test_units_set_every_variable_that_places_files_and_keep_them_in_their_state():
    for path in UNITS:
        lines = unit_lines(path)
        state = dict(lines)["StateDirectory"].split()
        places = dict(value.split("=", 1) for key, value in lines if key == "Environment")
        assert {"FEDCORE_HOME", "FEDCORE_REGISTER"} <= set(places), path.name
        for name, value in places.items():
            assert value.removeprefix("/var/lib/").partition("/")[0] in state, (path.name, name)
    assert "FEDCORE_ANCHORS" in (RECIPES / "fedcore-silo.service").read_text()


def test_units_are_hardened():
    wanted = {
        "ProtectSystem": "strict",
        "NoNewPrivileges": "yes",
        "CapabilityBoundingSet": "",
        "Restart": "on-failure",
        "LimitCORE": "0",
        "RestrictAddressFamilies": "AF_INET AF_INET6 AF_UNIX",
        "SocketBindDeny": "any",
        "UMask": "0077",
    }
    for path in UNITS:
        lines = dict(unit_lines(path))
        assert {key: lines.get(key) for key in wanted} == wanted, path.name
        assert lines["User"] == path.stem
    assert "SocketBindAllow" not in dict(unit_lines(RECIPES / "fedcore-silo.service"))


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_systemd_accepts_the_units_and_finds_little_exposed(path, tmp_path):
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed here")
    unit = tmp_path / path.name
    unit.write_text(path.read_text().replace(PROGRAM, "/bin/true"))
    (folder := tmp_path / "fedcore-relay.service.d").mkdir()
    (folder / "tls.conf").write_text((RECIPES / "fedcore-relay-tls.conf").read_text().replace(PROGRAM, "/bin/true"))
    done = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True)
    faults = [line for line in done.stderr.splitlines() if str(tmp_path) in line and not any(k in line for k in LATER)]
    assert done.returncode == 0 and faults == [], done.stderr
    command = ["systemd-analyze", "security", "--offline=true", "--no-pager", "--threshold=15", str(path)]
    done = subprocess.run(command, capture_output=True, text=True)  # of 100; the threshold is ten times the figure
    assert done.returncode == 0, done.stdout[-300:]


def test_containers_run_without_root_from_a_file_of_the_checkout():
    for name, service in compose()["services"].items():
        assert service["user"] == "10001:10001" and service["read_only"] and service["cap_drop"] == ["ALL"], name
        build = service["build"]
        assert (RECIPES / build["context"] / build["dockerfile"]).resolve() == RECIPES / "Containerfile"
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        assert build["args"]["EXTRA"] == name and name in extras
    assert "ports" not in compose()["services"]["silo"]
    text = (RECIPES / "Containerfile").read_text()
    assert text.count("\nFROM ") == 2 and "\nUSER 10001:10001\n" in text.rpartition("\nFROM ")[2]
    lines = re.findall(r"^COPY (?!--from)(.*) \S+$", text, re.MULTILINE)
    copied = [ROOT / name for line in lines for name in line.split()]
    links = [path.resolve() for root in copied if root.is_dir() for path in root.iterdir() if path.is_symlink()]
    assert links, "flows/conf leads to conf"
    for path in [*copied, *links]:
        assert path.exists() and any(path.is_relative_to(root) for root in copied), path
    for package in tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]["find"][
        "include"
    ]:
        assert f"COPY {package.rstrip('*')} " in text


def test_proxies_wait_longer_than_the_relay_and_take_its_largest_body():
    from fedcore.relay.relay import Quotas

    nginx, haproxy = ((RECIPES / name).read_text() for name in ("nginx.conf", "haproxy.cfg"))
    seconds = re.findall(r"(?:proxy_read_timeout|timeout (?:client|server)) +(\d+)s", nginx + haproxy)
    assert len(seconds) == 3 and all(int(each) >= 2 * WAIT for each in seconds)
    (size,) = re.findall(r"client_max_body_size (\d+)m;", nginx)
    assert int(size) * 2**20 >= Quotas().one + LARGEST_SIZES


def test_the_page_names_every_recipe():
    text = PAGE.read_text()
    for path in RECIPES.iterdir():
        assert f"](deployment/{path.name})" in text, path.name


def test_each_test_of_the_threat_model_exists_and_each_party_has_one():
    text = (ROOT / "SECURITY.md").read_text().partition("## Threat model of a federation\n")[2]
    rows = [line for line in text.splitlines() if line.startswith("| ")][1:]
    assert len(rows) >= 9
    for row in rows:
        named = re.findall(r"\[`(test_\w+)`\]\((tests/[\w/.]+)\)", row)
        assert named, row
        for name, path in named:
            assert f"\ndef {name}(" in (ROOT / path).read_text(), (name, path)
