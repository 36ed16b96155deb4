"""Names with markup, formulas or control characters: inputs refuse controls, outputs show the rest as text."""

from __future__ import annotations

import ast
import io
import json
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet
import pytest
import yaml
from markdown_it import MarkdownIt
from typer.testing import CliRunner

from fedcore.data.cells import Refusal
from fedcore.data.columns import header
from fedcore.errors import InputError
from fedcore.experiment.loading import load_experiment
from fedcore.experiment.sweep import load_sweep
from fedcore.home import Home
from fedcore.printable import plain_name
from fedcore.silo.policies.policy_file import read_policy
from flows.commands.app import app
from flows.pages import sweep_publication
from flows.recorded.former_ids import RecordedRuns
from flows.reports.lines import Line
from flows.reports.silo_totals import SiloTotal
from flows.reports.table import Report, caption, markdown, markdown_table, table
from flows.terminal.console import Terminal
from studies.figures.along import CostCurve, draw_cost_curves
from studies.figures.curves import Curve, CurvesConfig
from studies.figures.drawn_curves import draw_curves

ROOT = Path(__file__).resolve().parents[2]
HOSTILE = [
    "=cmd|'/C calc'!A0",
    "[link](javascript:alert(1))",
    "<img src=x onerror=alert(1)>",
    "[bold red]x[/bold red]",
    "$\\frac$",
    ":smile:",
    "**x** _x_ `x`",
    "https://evil.example",
    "<script>x</script>",
    "![x](http://a/b.png)",
]
CONTROLS = ["\x1b[31m", "a\nb", "a\tb", "\u202eabc", "a\u200bb"]
SECTIONS = {"strong", "em", "a", "img", "code", "s", "script"}


def elements(text: str) -> set[str]:
    """Elements of a rendered Markdown text beside paragraphs and tables, with HTML that it would pass on."""
    found = set()
    reader = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
    for token in reader.parse(text):
        for each in [token, *(token.children or [])]:
            if each.type in ("html_block", "html_inline"):
                found.add("html")
            elif each.tag in SECTIONS:
                found.add(each.tag)
    return found


def line(name: str) -> Line:
    return Line(name, 1.0, 1.0, 0.5, None, 1, 3, 1.0, "simulated", unit=f"persons of column {name}")


@pytest.mark.parametrize("name", HOSTILE)
def test_a_name_is_text_in_tables_and_sentences_on_pages(name):
    assert elements(markdown_table({name: [name], "x": [name]})) == set()
    assert elements(markdown([line(name)])) == set()
    assert name in caption([line(name)])


@pytest.fixture(scope="module")
def sweep():
    return load_sweep(ROOT / "conf" / "sweep" / "digits.yaml", ["tracking.mlflow=false"])


@pytest.mark.parametrize("name", HOSTILE)
def test_a_silo_s_name_is_text_in_a_sweep_s_artifact(name, monkeypatch, sweep):
    texts: list[str] = []
    monkeypatch.setattr(sweep_publication, "create_markdown_artifact", lambda text, key: texts.append(text))
    monkeypatch.setattr(sweep_publication, "get_run_logger", lambda: SimpleNamespace(info=lambda text: None))
    publication = sweep_publication.SweepPublication(sweep, SimpleNamespace(recorded_runs=RecordedRuns(Home.current())))
    publication._totals = [SiloTotal(None, name, 10, 1, 0, 0, 1.0, 1e-5, f"persons of column {name}")]
    publication.show(Report((line(name),), {}, None))
    (text,) = texts
    assert "persons of column" in text and elements(text) == set()


@pytest.mark.parametrize("name", HOSTILE)
def test_a_name_is_text_in_a_run_s_note(name, monkeypatch):
    from flows import run_publication

    written: dict[str, str] = {}
    statement = {"privacy.statement": f"for persons of column {name}"}
    monkeypatch.setattr(run_publication, "privacy_tags", lambda *_: statement)
    monkeypatch.setattr(run_publication, "run_parameters", lambda *_: {})
    config = SimpleNamespace(algorithm=SimpleNamespace(name="mbsgd"), privacy=SimpleNamespace(trust="silo"))
    experiment = SimpleNamespace(config=config, plan=None, statistics=None)
    session = SimpleNamespace(track=lambda experiment, name, params, tags: written.update(tags))
    patience = SimpleNamespace(statement=f"of {name}")
    run_publication.RunPublication(experiment, session, None, "n", {"flow_run_url": "http://here/1"}, patience).begin()
    assert elements(written["mlflow.note.content"]) == {"a"}  # fedcore's own link
    assert written["mlflow.note.content"].count("](http://here/1)") == 1


def test_names_are_text_in_plots_and_tables_of_reproductions(tmp_path):
    made = [Curve(name, ("$\\frac$",), (1, 2), (0.5, 0.4), (0.0, 0.0), (0.4,), ((0, 0),)) for name in HOSTILE]
    figure = CurvesConfig(metric="accuracy", panels=("privacy.epsilon",))
    text = draw_curves(tmp_path, figure, "".join(HOSTILE), made)
    assert elements(text) == set() and "javascript" in text
    along = [CostCurve(name, (1.0, 2.0), (1.0, 2.0), (1.0, 2.0), (0.5, 0.4), 1.0, 1) for name in HOSTILE]
    text = draw_cost_curves(tmp_path, "test error", 1.0, "".join(HOSTILE), along)
    assert elements(text) == set() and "javascript" in text


@pytest.mark.parametrize("name", HOSTILE)
def test_a_terminal_shows_it_letter_for_letter(name):
    out = io.StringIO()
    terminal = Terminal(file=out, width=400, force_terminal=True, color_system="standard")
    terminal.print_plain(name)
    terminal.print(table([line(name)], name, 400))
    terminal.print(name, highlight=False)
    assert out.getvalue().count(name) >= 4


def test_commands_print_by_the_terminal_only():
    """`print` does not escape: it may write only JSON, which has no controls, and fedcore's own password."""
    for path in sorted((ROOT / "flows" / "commands").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print":
                call = ast.unparse(node)
                assert call.startswith("print(json.dumps(") or path.name in ("machine.py", "entry.py"), (path, call)


@pytest.mark.parametrize("name", ["[bold red]x", ":smile:", "=cmd"])
def test_commands_show_a_silo_s_name_letter_for_letter(name, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDCORE_HOME", str(tmp_path / "home"))
    done = CliRunner().invoke(app, ["budget", "show", name])
    assert f"no durable ledger of a silo {name!r}" in f"{done.output}{done.exception}"


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    """An experiment, a sweep and a policy, each with @ in the place of a name."""
    (tmp_path / "base.yaml").write_text((ROOT / "conf" / "experiment" / "digits.yaml").read_text())
    data = {"source": "files", "label": "y", "features": ["x"], "silos": [{"name": "@", "path": "a.csv"}]}
    return {
        "experiment": json.dumps({"name": "n", "data": data}),
        "label": json.dumps({"name": "n", "data": data | {"label": "@", "silos": [{"name": "a", "path": "a.csv"}]}}),
        "named": json.dumps({"name": "@"}),
        "sweep": json.dumps({"name": "@", "base": "base.yaml", "grid": {"seed": [0, 1]}}),
        "grid": json.dumps({"name": "n", "base": "base.yaml", "grid": {"name": ["a", "@"]}}),
        "policy": json.dumps({"methods": ["@"], "cap": {"epsilon": 1, "delta": 1e-5}, "expires": "2099-01-01"}),
    }


@pytest.mark.parametrize("kind", ["experiment", "label", "named", "sweep", "grid", "policy"])
@pytest.mark.parametrize("text", CONTROLS, ids=ascii)
def test_no_file_brings_a_control_in(files, tmp_path, kind, text):
    path = tmp_path / f"{kind}.yaml"
    read = load_sweep if kind in ("sweep", "grid") else read_policy if kind == "policy" else load_experiment
    path.write_text(files[kind].replace("@", json.dumps(text)[1:-1]))
    with pytest.raises(InputError) as refused:
        read(path, ()) if kind != "policy" else read(path)
    for sentence in str(refused.value).split("\n"):
        assert sentence.startswith(str(path)) and plain_name(sentence)


@pytest.mark.parametrize("text", [*CONTROLS, "\udc80"], ids=ascii)
def test_no_command_line_brings_a_control_in(text):
    for override in (f"name={json.dumps(text)}", f"data.label={json.dumps(text)}"):
        with pytest.raises(InputError):
            load_experiment(ROOT / "conf" / "experiment" / "digits.yaml", [override])
    if text.isascii() or text.encode("utf-8", "ignore"):
        done = CliRunner().invoke(
            app, ["schedule", "add", str(ROOT / "conf/experiment/digits.yaml"), "--every", "1h", "--name", text]
        )
        assert isinstance(done.exception, InputError) and "control character" in str(done.exception)


@pytest.mark.parametrize("text", CONTROLS, ids=ascii)
def test_no_column_brings_a_control_in(text, tmp_path):
    pa.parquet.write_table(pa.table({text: [1.0], "y": [1.0]}), tmp_path / "a.parquet")
    (tmp_path / "a.csv").write_text(f'"{text}",y\nu,1\n', newline="")
    for format in ("parquet", "csv"):
        with pytest.raises(Refusal) as refused:
            header(str(tmp_path / f"a.{format}"), format)
        assert text not in refused.value.sentence


def test_no_method_loss_or_model_takes_a_text_of_its_own():
    """Sections refuse controls in texts; classes with `DECLARED` have no texts of their own."""
    for path in [*(ROOT / "fedcore").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and any("DECLARED" in ast.unparse(d) for d in node.decorator_list):
                texts = [
                    ast.unparse(each)
                    for each in node.body
                    if isinstance(each, ast.AnnAssign)
                    and "str" in ast.unparse(each.annotation).replace("[", " ").split()
                    and "ClassVar" not in ast.unparse(each.annotation)
                ]
                assert texts == [], path


def test_examples_are_read_as_before():
    for path in sorted((ROOT / "conf" / "experiment").glob("*.yaml"))[:3]:
        assert load_experiment(path, ()).name == yaml.safe_load(path.read_text())["name"]
