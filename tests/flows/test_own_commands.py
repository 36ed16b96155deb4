"""`init` and `check` on a person's files: written config, messages and refusals."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest
import yaml
from typer.testing import CliRunner

from fedcore.errors import InputError
from flows.commands.app import app

HEADER = "age,kind,outcome\n"


def call(*arguments: str | Path) -> str:
    """Output of a command; raises its error."""
    done = CliRunner().invoke(app, [str(each) for each in arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = {"north": "30,a,0\n81,b,1\n", "south west": "44,a,1\n50,b,0\n", "public": "3,a,0\n9,b,1\n"}
    for name, text in rows.items():
        (tmp_path / f"{name}.csv").write_text(HEADER + text)
    return tmp_path


def filled(path: Path, **columns: object) -> Path:
    values = yaml.safe_load(path.read_text())
    assert set(values["data"]["features"]) == set(columns)
    values["data"]["features"] = columns
    values["privacy"]["delta"] = 1e-4  # two records: 1/n^2 would be 0.25
    path.write_text(yaml.safe_dump(values, sort_keys=False))
    return path


def test_init_writes_names_and_nothing_of_records(folder):
    output = call("init", ".")
    assert "experiment.yaml: 2 silos, 2 columns and the label 'outcome'" in output
    text = (folder / "experiment.yaml").read_text()
    values = yaml.safe_load(text)
    assert values["data"]["silos"] == [
        {"name": "north", "path": "north.csv"},
        {"name": "south-west", "path": "south west.csv"},
    ]
    assert values["data"]["test"] == "public.csv" and values["data"]["label"] == "outcome"
    assert values["data"]["features"] == {"age": {}, "kind": {}} and "evaluation" not in values
    assert "81" not in text and "44" not in text
    with pytest.raises(InputError, match=r"experiment.yaml is there already"):
        call("init", ".")


def test_from_init_over_check_to_a_plan(folder):
    call("init", "north.csv", "south west.csv", "-o", "mine.yaml")
    with pytest.raises(InputError, match=r"data\.features\.age: needs one of range"):
        call("check", "mine.yaml")
    filled(folder / "mine.yaml", age={"range": [20, 80]}, kind={"categories": ["a", "b"], "other": False})
    output = call("check", "mine.yaml")
    assert "north: 2 records, fits" in output and "note: column 'age': 1 of 2 values lie outside of range" in output
    assert "all of mine.yaml fits" in output
    planned = " ".join(call("plan", "mine.yaml").split())
    assert "2 silos, 2 of them in a round" in planned
    # Without public test data each silo holds one of its two records out.
    assert "silos hold out 2 records, which no training is about" in planned
    assert json.loads(call("plan", "mine.yaml", "--json"))["evaluation"]["records"] == 2
    # age and one of the two kinds at their ends, and the bias: sqrt(3)
    output = "2 columns make 3 features; a record's norm is at most 1.732 with its bias, and all are scaled by 0.5774"
    assert output in planned
    described = json.loads(call("plan", "mine.yaml", "model.normalise=features", "--json"))["schema"]
    assert described["longest"] == pytest.approx(2**0.5) and described["scale"] == pytest.approx(2**-0.5)


def test_check_lists_all_faults_of_all_files_and_of_one_silo_alone(folder):
    call("init", ".")
    (folder / "north.csv").write_text(HEADER + "old,a,0\n30,z,2\n,a,1\n")
    (folder / "public.csv").write_text(HEADER + "30,a,\n40,b,0\n")
    filled(folder / "experiment.yaml", age={"range": [20, 80]}, kind={"categories": ["a", "b"], "other": False})
    done = CliRunner().invoke(app, ["check", "experiment.yaml"])
    assert isinstance(done.exception, InputError)
    assert str(done.exception) == "2 of 3 files do not fit experiment.yaml: north, data.test"
    for words in (
        "column 'age': 1 of 3 cells are missing",
        "column 'age': 1 of 3 cells are no numbers (for instance 'old')",
        "column 'kind': 1 of 3 cells are none of its categories (for instance 'z')",
        "label 'outcome': 1 of 3 cells do not fit (for instance '2'); data.classes has 0, 1",
        "south-west: 2 records, fits",
        "data.test: 2 records, does not fit",
    ):
        assert words in done.output
    (folder / "south west.csv").unlink()  # at the north silo there is no other silo's file
    listed = CliRunner().invoke(app, ["check", "experiment.yaml", "--silo", "north", "--json"])
    values = json.loads(listed.output)
    assert len(values["north"]["faults"]) == 4 and values["north"]["records"] == 3
    with pytest.raises(InputError, match=r"--silo east: no silo of experiment\.yaml; there are north, south-west"):
        call("check", "experiment.yaml", "--silo", "east")


def test_check_of_a_plain_list_of_columns_finds_the_faults_of_a_run(folder):
    (folder / "plain.yaml").write_text(
        "data: {source: files, silos: [{name: n, path: north.csv}], features: [age, kind], label: outcome}\n"
        "privacy: {epsilon: 1}\nalgorithm: {name: mbsgd}\n"
    )
    done = CliRunner().invoke(app, ["check", "plain.yaml"])
    assert "has feature column(s) 'kind' that are not numeric" in done.output
    with pytest.raises(InputError, match=r"data.source = digits has no files of yours"):
        call("check", Path(__file__).parents[2] / "conf/experiment/digits.yaml")


def test_init_of_parquet_files_writes_types_and_the_range_of_booleans(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b"):
        table = pa.table({"smokes": [True, False], "dose": [1.5, 2.5], "label": ["x", "y"]})
        pa.parquet.write_table(table, tmp_path / f"{name}.parquet")
    call("init", tmp_path)
    text = (tmp_path / "experiment.yaml").read_text()
    assert '"smokes": {range: [0, 1]}  # bool' in text and '"dose":   {}  # double' in text and "1.5" not in text


@pytest.mark.parametrize(
    ("files", "arguments", "words"),
    [
        ({}, ["."], "holds no .csv or .parquet file"),
        ({"a.csv": HEADER}, ["a.csv", "b.csv"], "file b.csv does not exist"),
        ({"a.txt": HEADER}, ["a.txt"], "a.txt must end in .csv or .parquet"),
        ({"a.csv": "4711,b,0\n1,a,1\n"}, ["."], "its first line must name every column"),
        ({"a.csv": "x,x,y\n1,2,0\n"}, ["."], "column 'x' more than once"),
        ({"a.csv": HEADER, "b.csv": "age,outcome\n"}, ["."], "b.csv has no column 'kind', which a.csv has"),
        ({"a.csv": HEADER}, [".", "--label", "y"], r"a.csv has no column 'y', the label; it has 'age', 'kind'"),
        ({"public.csv": HEADER}, ["."], "no silo's file is among public.csv"),
        ({"public.csv": HEADER, "test.csv": HEADER, "a.csv": HEADER}, ["."], "are both named as public test data"),
        ({"a.csv": HEADER, "a.parquet": ""}, ["."], "would be silos of one name"),
        ({"a.csv": ""}, ["."], "its first line must name every column"),
        ({"a.parquet": "no parquet"}, ["."], "is text; it must be a whole Parquet file"),
    ],
)
def test_what_init_cannot_use_is_refused_in_one_sentence(tmp_path, monkeypatch, files, arguments, words):
    monkeypatch.chdir(tmp_path)
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=words) as caught:
        call("init", *arguments)
    assert "4711" not in str(caught.value) and "\n" not in str(caught.value)
    assert not (tmp_path / "experiment.yaml").exists()


def tuned(folder: Path, *words: str) -> str:
    call("init", ".")
    filled(folder / "experiment.yaml", age={"range": [20, 80]}, kind={"categories": ["a", "b"], "missing": []})
    rows = "".join(f"{20 + k % 60},{'ab'[k % 2]},{k % 2}\n" for k in range(60))
    for name in ("north", "south west"):
        (folder / f"{name}.csv").write_text(HEADER + rows)
    grid = ("--grid", "algorithm.step=[1, 4]", "--grid", "algorithm.rounds=[5]", "--grid", "model.clip=[0.5]")
    return call("tune", "experiment.yaml", "--simulations", "2", *grid, *words)


def test_tune_writes_a_config_that_runs_with_what_it_assumed(folder):
    output = " ".join(tuned(folder, "-o", "tuned.yaml", "--signal", "0.8", "seed=3").split())
    assert "features explain 0.8 of the variance" in output
    assert "written to tuned.yaml; next: `fedcore plan tuned.yaml`" in output
    text = (folder / "tuned.yaml").read_text()
    values = yaml.safe_load(text)
    assert values["algorithm"]["step"] in (1, 4) and values["algorithm"]["rounds"] == 5 and values["seed"] == 3
    assert values["model"]["clip"] == 0.5 and "# Written by `fedcore tune experiment.yaml`" in text
    best = next(line for line in text.splitlines() if line.endswith(tuple("0123456789")) and line.startswith("#  "))
    assert best.split()[1:5] == ["0.5", str(values["model"]["diameter"]), str(values["algorithm"]["step"]), "5"]
    call("plan", "tuned.yaml")


def test_tune_as_json_lists_every_point_and_asks_no_silo(folder):
    values = json.loads(tuned(folder, "--json"))
    assert values["grid"]["algorithm.step"] == [1, 4] and values["grid"]["model.diameter"] == [20.0, 80.0]
    assert len(values["trials"]) == 4
    assert values["chosen"] == values["trials"][0]["point"] and values["assumed"]["signal"] == 0.5
    # Only the number of rows is read from the files: other records give the same choice.
    for name in ("north", "south west"):
        path = folder / f"{name}.csv"
        path.write_text(HEADER + "".join(f"99,{'ba'[k % 2]},1\n" for k in range(60)))
    grid = ("--grid", "algorithm.step=[1, 4]", "--grid", "algorithm.rounds=[5]", "--grid", "model.clip=[0.5]")
    assert json.loads(call("tune", "experiment.yaml", "--simulations", "2", *grid, "--json")) == values


def test_tune_refuses_what_is_no_grid_and_to_write_over_its_config(folder):
    with pytest.raises(InputError, match=r"experiment\.yaml is the config itself"):
        tuned(folder, "-o", "experiment.yaml")
    for text in ("algorithm.step", "algorithm.step=3", "algorithm.step=[", "algorithm.step=[]"):
        with pytest.raises(InputError, match="write KEY="):
            call("tune", "experiment.yaml", "--grid", text)
    with pytest.raises(InputError, match=r"grid: algorithm\.stp is not a known key"):
        call("tune", "experiment.yaml", "--simulations", "2", "--grid", "algorithm.stp=[1]")
    with pytest.raises(InputError, match="signal = 3"):
        call("tune", "experiment.yaml", "--signal", "3")


def test_tune_on_a_public_file_draws_silos_from_it(folder):
    rows = "".join(f"{20 + k},{'ab'[k % 2]},{k % 2}\n" for k in range(45))
    (folder / "open").mkdir()  # in a folder, so that `init` does not take it for a silo's file
    (folder / "open" / "open.csv").write_text(HEADER + rows)
    output = " ".join(tuned(folder, "--public", "open/open.csv", "-o", "tuned.yaml").split())
    words = "drawn with replacement from two thirds of open/open.csv"
    assert f"Silos were {words}" in output and "Assumed" not in output
    assert words in (folder / "tuned.yaml").read_text().replace("\n# ", " ")
    with pytest.raises(InputError, match="--signal and --heterogeneity describe silos"):
        call("tune", "experiment.yaml", "--public", "open/open.csv", "--signal", "0.5")
    with pytest.raises(InputError, match=r"--public: file .*north\.csv is the file of silo 'north'"):
        call("tune", "experiment.yaml", "--public", "north.csv")
    with pytest.raises(InputError, match=r"--public takes a file with the columns of data\.source = files"):
        call("tune", Path(__file__).parents[2] / "conf/experiment/hospitals.yaml", "--public", "open/open.csv")


def test_files_of_persons_from_init_over_check_to_a_plan(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, text in {"north": "a,30,0\nb,40,1\na,50,1\n", "south": "c,30,1\nc,40,0\nd,20,0\n"}.items():
        (tmp_path / f"{name}.csv").write_text("patient,age,outcome\n" + text)
    (tmp_path / "public.csv").write_text("age,outcome\n30,0\n50,1\n")  # public rows need no person
    output = call("init", ".", "--person", "patient")
    assert "2 silos, 1 columns and the label 'outcome', rows of persons by column 'patient'" in output
    values = yaml.safe_load((tmp_path / "experiment.yaml").read_text())["data"]
    assert (values["person"], values["person_rows"], values["features"]) == ("patient", 10, {"age": {}})
    mine = filled(tmp_path / "experiment.yaml", age={"range": [20, 80]})
    output = call("check", mine, "data.person_rows=1")
    assert "north: 3 records of 2 persons, fits" in output and "data.test: 2 records, fits" in output
    note = "column 'patient': 1 of 2 persons have more rows than data.person_rows = 1; their first 1 count"
    assert f"note: {note}" in output
    values = json.loads(call("check", mine, "--json"))
    assert values["south"]["persons"] == 2 and "persons" not in values["data.test"]
    planned = " ".join(call("plan", mine).split())
    assert "unit: persons by column 'patient', each with all of its rows; n, batches and delta count persons" in planned
    values = json.loads(call("plan", mine, "--json"))
    assert values["totals"]["unit"] == "persons" and values["problem"]["person"] == "patient"
    assert values["persons"] == {"column": "patient", "rows": 10} and values["problem"]["n"] == 2
    assert "unit:" not in call("plan", mine, "data.person=null")
    call("tune", mine, "-o", "tuned.yaml", "--simulations", "2", "--grid", "algorithm.rounds=[2]")
    assert yaml.safe_load((tmp_path / "tuned.yaml").read_text())["data"]["person"] == "patient"
    for words, sentence in (
        (["--person", "pid"], r"file north.csv has no column 'pid', of persons; it has 'patient', 'age', 'outcome'"),
        (["--person", "outcome"], r"column 'outcome' cannot be both, the label and the persons"),
        ([], r"file public.csv has no column 'patient', which north.csv has"),
    ):
        with pytest.raises(InputError, match=sentence):
            call("init", ".", *words, "-o", "other.yaml")
