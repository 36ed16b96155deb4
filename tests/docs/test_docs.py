"""README and docs are true: scripts run, commands and files exist, the reference config is complete."""

from __future__ import annotations

import ast
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from fedcore.algorithms import ALGORITHMS
from fedcore.configfile.reading import validated
from fedcore.data.sources.alpha_beta import AlphaBetaData
from fedcore.data.sources.hospitals import HospitalsData
from fedcore.data.sources.images import MnistData
from fedcore.data.sources.libsvm import LibsvmData
from fedcore.data.sources.regression import RegressionData
from fedcore.data.sources.synthetic import SyntheticData
from fedcore.data.sources.tables.split import TablesData
from fedcore.data.sources.teacher import TeacherData
from fedcore.data.tabular import FilesData
from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.loading import load_experiment
from fedcore.experiment.sweep import load_sweep
from fedcore.planning.plan_config import CapConfig
from fedcore.silo.policies.policy import METHODS, OBJECTIVES, Policy, RunLimit
from fedcore.silo.policies.policy_file import read_policy
from studies.study import registered
from tests.selection import some_in_make_test

ROOT = Path(__file__).parents[2]
SITE = sorted(page for page in (ROOT / "docs").rglob("*.md") if "_build" not in page.parts)
PAGES = [ROOT / "README.md", ROOT / "ARCHITECTURE.md", *SITE]
REFERENCE = ROOT / "conf" / "reference.yaml"
COMMENTED = (
    MnistData,
    SyntheticData,
    LibsvmData,
    TeacherData,
    AlphaBetaData,
    HospitalsData,
    RegressionData,
    TablesData,
    FilesData,
)
"""Sources that the reference shows in comments."""


def blocks(page: Path, *languages: str) -> list[str]:
    """Contents of the page's fenced blocks in these languages, in order."""
    found = re.findall(r"^```([^\n`]*)\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)
    return [text for language, text in found if language in languages]


def code(page: Path) -> list[str]:
    """Everything on a page that a reader might type: fenced and indented lines, and code spans."""
    text = page.read_text()
    spans = re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE))
    lines = [line for block in blocks(page, "", "text", "bash", "console") for line in block.splitlines()]
    return spans + lines + re.findall(r"^    (\S.*)$", text, re.MULTILINE)


def name(value: Any) -> str:
    return value.relative_to(ROOT).as_posix() if isinstance(value, Path) else str(value)


# Scripts


SCRIPTS = [page for page in PAGES if blocks(page, "python")]
ADDED = [page for page in SCRIPTS if page.name in ("add-method.md", "add-loss.md")]
"""Other tests register, train and audit the additions of these pages, from the same text."""


@pytest.mark.parametrize("page", some_in_make_test(SCRIPTS, [page for page in SCRIPTS if page not in ADDED]), ids=name)
def test_the_python_of_a_page_runs_and_prints_the_text_of_the_page(page, tmp_path):
    script = tmp_path / "page.py"
    script.write_text("\n".join(blocks(page, "python")))
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script)], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    # Errors and angles of a noisy model depend on the processor's last bits; counts and budgets do not.
    printed = [_stable(text) for text in blocks(page, "text")]
    assert _stable(done.stdout) in printed
    assert list(tmp_path.iterdir()) == [script], "a page leaves files behind"


def _stable(text: str) -> str:
    return re.sub(r"(error|cosine[\w ]*:) \d\.\d+", r"\1 *", text)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_yaml_of_a_page_is_a_valid_experiment_or_sweep(page, tmp_path):
    (tmp_path / "conf").symlink_to(ROOT / "conf")
    for text in blocks(page, "yaml"):
        if "base" in (values := yaml.safe_load(text)):
            (tmp_path / "sweep.yaml").write_text(text)
            load_sweep(tmp_path / "sweep.yaml", [])
        else:
            validated(ExperimentConfig, values, page.name)


# Commands, files


def test_every_command_that_is_named_exists():
    from typer.main import get_command

    from flows.commands.app import app

    known = set(get_command(app).commands)
    for page in PAGES:
        named = {m for line in code(page) for m in re.findall(r"(?:^|[\s/(])fedcore ([a-z][\w-]*)", line)}
        assert named <= known, (page.name, named - known)


def test_every_study_that_is_named_exists_with_its_figures():
    known = registered()
    checked = 0
    for page in PAGES:
        for line in code(page):
            for study, rest in re.findall(r"python -m studies (?:run|compare) ([a-z][a-z0-9-]*)([^`]*)", line):
                assert study in known, (page.name, study)
                figures = {figure.name for figure in known[study].figures}
                assert set(re.findall(r"--figure ([a-z0-9-]+)", rest)) <= figures, (page.name, line)
                checked += 1
    assert checked >= 8


def test_every_make_target_that_is_named_exists():
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in PAGES:
        named = {m for line in code(page) for m in re.findall(r"(?:^|\s)make ([a-z]+)", line)}
        assert named <= targets, (page.name, named - targets)


def test_every_command_line_on_a_config_is_accepted():
    """`fedcore plan|run|sweep conf/... key=value` on the pages: the file is there, the values fit."""
    checked = 0
    for page in PAGES:
        for line in code(page):
            for kind, rest in re.findall(r"fedcore (plan|run|sweep) (conf/[^|]*)", line):
                words = [word for word in shlex.split(rest, comments=True) if not word.startswith("--")]
                if "algorithm.name=heavy-ball" in words:
                    continue  # the worked example, which is not registered
                load = load_sweep if kind == "sweep" else load_experiment
                load(ROOT / words[0], words[1:])
                checked += 1
    assert checked >= 3


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_and_paths_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        there = page.parent / name if name else page
        assert there.exists(), f"{page.name} links to {target}"
        if anchor:
            heads = re.findall(r"^#+ (.*)$", there.read_text(), re.MULTILINE)
            assert anchor in {re.sub(r"[^\w -]", "", head).lower().replace(" ", "-") for head in heads}, target
    for path in re.findall(r"`((?:conf|fedcore|tasks|flows|studies|tests|docs)/[\w./-]+)`", page.read_text()):
        assert (ROOT / path).exists(), f"{page.name} names {path}"


@pytest.mark.parametrize("module", ["fedcore", "tasks", "flows", "studies"])
def test_architecture_names_every_room_and_every_file_has_a_description(module):
    """A room within a room has its description in its `__init__.py`."""
    house = blocks(ROOT / "ARCHITECTURE.md", "text")[0]
    for path in (ROOT / module).rglob("*.py"):
        within = path.relative_to(ROOT / module).parts[:-1]
        if within:
            assert re.search(rf"^ *{within[0]}/ ", house, re.MULTILINE), f"ARCHITECTURE.md does not name {within[0]}"
        first = (ast.get_docstring(ast.parse(path.read_text())) or "").partition("\n")[0]
        assert first or (path.name == "__init__.py" and len(within) < 2), f"{path} does not say what it is"


def test_the_architecture_page_is_short():
    assert (ROOT / "ARCHITECTURE.md").stat().st_size <= 12_000
    assert len((ROOT / "README.md").read_text().splitlines()) <= 90


def test_files_that_the_house_names_exist():
    house = blocks(ROOT / "ARCHITECTURE.md", "text")[0]
    for listed in re.findall(r"\b(\w+\.py)\b", house):
        assert any(ROOT.glob(f"*/**/{listed}")), f"ARCHITECTURE.md names {listed}"


@pytest.mark.parametrize("module", ["fedcore", "tasks", "flows", "studies"])
def test_no_room_holds_more_than_a_person_keeps_in_mind(module):
    for folder in {path.parent for path in (ROOT / module).rglob("*.py")}:
        files = [path.name for path in folder.glob("*.py") if path.name != "__init__.py"]
        assert len(files) <= 17, f"{folder.relative_to(ROOT)} holds {len(files)} files"


def test_no_page_names_a_place_of_one_machine():
    for page in PAGES:
        assert not re.search(r"/(work|home|root|tmp|Users)/", page.read_text()), page.name


# The reference config


def leaves(values: Any, prefix: str = "") -> dict[str, Any]:
    """Values by dotted key; an empty section counts as a value."""
    if not isinstance(values, dict) or not values:
        return {prefix: values}
    return {key: item for k, v in values.items() for key, item in leaves(v, f"{prefix}.{k}".lstrip(".")).items()}


def comments(text: str) -> dict[str, str]:
    """The comment above each key, by dotted key; the first key of a section may have that of the section."""
    lines, found = text.splitlines(), {}

    def above(line: int) -> str:
        start = line
        while start > 0 and lines[start - 1].lstrip().startswith("#"):
            start -= 1
        return " ".join(part.strip().lstrip("# ") for part in lines[start:line])

    def walk(node: yaml.Node, prefix: str) -> None:
        if isinstance(node, yaml.MappingNode):
            for number, (key, value) in enumerate(node.value):
                dotted = f"{prefix}.{key.value}".lstrip(".")
                inherited = found.get(prefix, "") if number == 0 else ""
                found[dotted] = above(key.start_mark.line) or inherited
                walk(value, dotted)

    walk(yaml.compose(text), "")
    return found


def test_reference_has_every_key_with_its_default():
    written = leaves(yaml.safe_load(REFERENCE.read_text()))
    config = ExperimentConfig.model_validate({"privacy": {"epsilon": 1.0}, "algorithm": {"name": "mbsgd"}})
    assert written == leaves(config.model_dump(mode="json"))
    load_experiment(REFERENCE)


def test_reference_has_a_comment_for_every_key_and_marks_what_has_no_default():
    text = REFERENCE.read_text()
    commented = comments(text)
    for key in leaves(yaml.safe_load(text)):
        assert commented[key], f"conf/reference.yaml: {key} has no comment above it"
    marked = {key for key in leaves(yaml.safe_load(text)) if "no default" in commented[key].lower()}
    assert marked == {"privacy.epsilon", "algorithm.name"}
    for section, other in (("privacy", {"algorithm": {"name": "mbsgd"}}), ("algorithm", {"privacy": {"epsilon": 1}})):
        with pytest.raises(ValueError, match=f"{section}"):
            ExperimentConfig.model_validate(other)


def commented_sources() -> dict[str, str]:
    """The blocks `# data:` at the end of the reference, uncommented, by source."""
    tail = REFERENCE.read_text().partition("\n# data:\n")[2]
    parts = re.split(r"^# data:$", tail, flags=re.MULTILINE)
    texts = ["data:\n" + re.sub(r"^# ?", "", part, flags=re.MULTILINE) for part in parts]
    return {yaml.safe_load(text)["data"]["source"]: text for text in texts}


@pytest.mark.parametrize("model", COMMENTED)
def test_reference_shows_the_keys_and_defaults_of_other_sources(model):
    text = commented_sources()[model.model_fields["source"].default]
    values = yaml.safe_load(text)["data"]
    assert set(values) == set(model.model_fields)
    made = model.model_validate(values)
    for key, field in model.model_fields.items():
        if not field.is_required():
            assert getattr(made, key) == field.default, f"data.{key}"


def test_reference_explains_the_keys_of_other_sources():
    for model in COMMENTED:
        text = commented_sources()[model.model_fields["source"].default]
        for key, field in model.model_fields.items():
            line = next(line for line in text.splitlines() if re.match(rf"  {key}:", line))
            commented = (line.partition(" #")[2] + comments(text)[f"data.{key}"]).strip()
            assert key == "source" or commented, f"data.{key} has no comment"
            assert ("no default" in commented.lower()) == field.is_required(), f"data.{key}"


def test_reference_names_every_method_or_the_page_that_does():
    assert "fedcore algorithms" in comments(REFERENCE.read_text())["algorithm"]


# The policy of a silo


def test_the_example_of_a_policy_has_every_key_with_a_comment_and_marks_required_ones():
    text = (ROOT / "conf" / "policy" / "hospital.yaml").read_text()
    written, commented = yaml.safe_load(text), comments(text)
    sections = {"": Policy, "cap": CapConfig, "one_run": RunLimit}
    for section, model in sections.items():
        values = written[section] if section else written
        assert list(values) == list(model.model_fields)
        for key, field in model.model_fields.items():
            dotted = f"{section}.{key}".lstrip(".")
            assert commented[dotted] and field.description, f"{dotted} is not explained"
            if not field.is_required() and key != "one_run":
                assert "default" in commented[dotted] and values[key] == field.default
    assert [key for key, field in Policy.model_fields.items() if not field.is_required()] == [
        "one_run",
        "person",
        "decides",
    ]
    for name in ("network", "moreau", "convolution", "convolution-sampled"):
        assert name in commented["losses"] and name in OBJECTIVES
    for name in METHODS.keys() - ALGORITHMS.keys():
        assert name in commented["methods"]
    read_policy(ROOT / "conf" / "policy" / "hospital.yaml")


def test_the_example_of_a_policy_lets_the_first_experiment_run():
    held = read_policy(ROOT / "conf" / "policy" / "hospital.yaml")
    config = load_experiment(ROOT / "conf" / "experiment" / "digits.yaml")
    assert config.algorithm.name in held.methods and config.model.loss.name in held.losses
    assert held.one_run is not None and config.privacy.epsilon <= held.one_run.epsilon <= held.cap.epsilon
