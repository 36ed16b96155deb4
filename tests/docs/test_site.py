"""The documentation site builds without a warning, and its generated parts match the code."""

from __future__ import annotations

import csv
import html
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fedcore.algorithms import ALGORITHMS
from fedcore.experiment.config import ExperimentConfig
from fedcore.losses import LOSSES
from fedcore.silo.answers import ANSWERS
from fedcore.silo.policies.policy import Policy
from tests.patience import HANGS

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """The built site, with published results if the tree has them."""
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-n", "-d", str(out / "trees")]
    done = subprocess.run(
        [*command, str(ROOT / "docs"), str(out / "html")], capture_output=True, text=True, timeout=3 * HANGS
    )
    assert done.returncode == 0, done.stderr
    return out / "html"


def shown(page: Path) -> str:
    """Text of a built page."""
    return html.unescape(re.sub(r"<[^>]+>", "", page.read_text()))


@pytest.mark.slow
@pytest.mark.minutes
def test_every_command_is_on_the_reference_page_with_its_options(site):
    from typer.main import get_command

    from flows.commands.app import app

    text = shown(site / "reference" / "commands.html")
    groups = [("fedcore", get_command(app))]
    seen = 0
    for path, group in groups:
        for name, command in group.commands.items():
            if hasattr(command, "commands"):
                groups.append((f"{path} {name}", command))
            for option in command.params if not command.hidden else ():
                if option.param_type_name == "option" and not option.hidden:
                    assert f"{path} {name}" in text and option.opts[0] in text, (path, name, option.opts)
                    seen += 1
    assert seen > 50


@pytest.mark.slow
@pytest.mark.minutes
def test_every_key_method_loss_answer_and_policy_key_is_on_its_page(site):
    keys, methods, policy = (
        (site / "reference" / f"{page}.html").read_text() for page in ("keys", "methods", "policy")
    )
    term = '<span class="pre">{}</span></code>'
    schema = ExperimentConfig.model_json_schema()
    for section in ("model", "privacy", "participation", "cluster", "orchestration", "tracking"):
        model = schema["$defs"][schema["properties"][section]["$ref"].rpartition("/")[2]]
        for key in model["properties"]:
            assert term.format(f"{section}.{key}") in keys, f"{section}.{key}"
    for source in schema["properties"]["data"]["discriminator"]["mapping"]:
        assert f"data: {source}<" in keys, source
    for name in [*ALGORITHMS, *LOSSES, *ANSWERS]:
        assert term.format(name) in methods, name
    assert all(term.format(key) in policy for key in Policy.model_fields)


@pytest.mark.slow
@pytest.mark.minutes
def test_the_notebook_shows_what_its_cells_print_and_draw(site):
    page = site / "tutorials" / "from-python.html"
    assert "20 rounds, accounted epsilon 2.0000" in shown(page)
    assert "privacy.epsilon = -1" in shown(page)
    (figure,) = re.findall(r'src="([^"]*cell-\d+\.png)"', page.read_text())
    assert (page.parent / figure).stat().st_size > 5000


# Parts


@pytest.fixture
def extension(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    import extension

    return extension


def test_a_marker_is_replaced_and_an_unknown_one_is_an_error(extension):
    text = "before\n<!-- generated: words -->\nafter"
    assert extension.replace(text, {"words": lambda: "two words"}, "page") == "before\ntwo words\nafter"
    with pytest.raises(KeyError, match=r"page asks for 'words'"):
        extension.replace(text, {}, "page")


def test_cells_share_names_and_a_failing_cell_ends_the_build(extension, tmp_path):
    page = "```{code-cell} ipython3\nx = 20\n```\nText.\n```{code-cell} ipython3\nprint('so')\nx + 1\n```\n"
    assert extension.execute(page, tmp_path, "page") == (
        "```python\nx = 20\n```\nText.\n```python\nprint('so')\nx + 1\n```\n\n```text\nso\n21\n```\n"
    )
    with pytest.raises(RuntimeError, match=r"(?s)page page failed.*ZeroDivisionError"):
        extension.execute("```{code-cell} ipython3\n1 / 0\n```\n", tmp_path, "page")


HEAD = (
    "figure",
    "measure",
    "curve",
    "panel",
    "key",
    "at",
    "seed",
    "repetition",
    "trials",
    "value",
    "spread",
    "spread_of",
)
ROWS = [
    ("digits", "test error", "mbsgd", "", "privacy.epsilon", "none", "", "", "3", "0.10", "0.01", "deviation"),
    ("digits", "test error", "mbsgd", "", "privacy.epsilon", "8", "", "", "3", "0.14", "0.02", "deviation"),
    ("digits", "test error", "fedavg", "", "privacy.epsilon", "8", "", "", "3", "0.15", "", ""),
    ("digits", "test error, above mbsgd: tied", "fedavg", "", "privacy.epsilon", "8", "", "", "3", "0.01", "0.05", "x"),
]


@pytest.fixture
def published(tmp_path) -> Path:
    with (tmp_path / "trial.csv").open("w", newline="") as file:
        csv.writer(file).writerows([HEAD, *ROWS])
    made = {"figures": ["digits"], "command": "run it", "commit": "a" * 40, "date": "2026-01-02", "seeds": [0, 1, 2, 5]}
    (tmp_path / "trial.json").write_text(json.dumps({"study": "trial", "published": [made]}))
    return tmp_path


def test_published_results_become_tables(extension, published):
    table = extension.tables("<!-- published: trial | digits | test error -->", published, "page").splitlines()
    wide = "\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}"
    assert table == [
        "|  | epsilon 8 | none |",
        "| --- | --- | --- |",
        f"| mbsgd | 0.14{wide}0.02 | 0.10{wide}0.01 |",
        "| fedavg | 0.15 |  |",
    ]
    everything = extension.tables("<!-- published: trial -->", published, "page")
    assert "### digits" in everything and "Test error ± deviation:" in everything
    assert f"| fedavg | 0.01{wide}0.05 (tied) |" in everything
    assert extension.tables("<!-- provenance: trial -->", published, "page") == (
        "- digits: `run it`, commit `aaaaaaaaaaaa`, 2026-01-02, seeds 0 to 2, 5"
    )


@pytest.mark.parametrize(
    "marker",
    ["published: other", "published: trial | mnist | test error", "published: trial | digits | loss", "provenance: b"],
)
def test_results_that_are_not_published_are_an_error(extension, published, marker):
    with pytest.raises(ValueError, match="page"):
        extension.tables(f"<!-- {marker} -->", published, "page")


def test_a_checkout_without_published_results_names_their_file(extension, tmp_path):
    text = extension.tables("<!-- published: trial | digits | test error -->", tmp_path / "none", "page")
    assert "studies/published/trial.csv" in text
