"""Mistakes in a person's files: each gives a sentence with silo, file and column, quotes no record, changes no file."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.flows.mistakes import HEADER, OWN, ROWS, check_mistake, instead

SECRET = "4711"
"""Cell that no sentence may quote."""

SOUTH = [
    # South's file: expected texts in the sentence beside the silo and the file.
    (None, ["does not exist"]),
    ("", ["is empty", "header"]),
    (HEADER, ["0 record", "at least 2"]),
    (HEADER + f"31,0.{SECRET},0\n", ["1 record", "at least 2"]),
    (ROWS.replace("0.4", SECRET), ["'age'", "'dose'", "'ill'", "header"]),
    ((HEADER + ROWS).replace(",", ";"), ["'age'", "comma-separated"]),
    (instead(HEADER, "dose", "dosis") + ROWS, ["no column 'dose'", "it has 'age', 'dosis', 'ill'"]),
    (instead(HEADER, "dose", " Dose") + ROWS, ["no column 'dose'", "capitals or blanks"]),
    (instead(HEADER, "age", "dose") + ROWS, ["no column 'age'"]),
    (HEADER.replace("\n", ",dose\n") + ROWS.replace("\n", ",1\n"), ["'dose'", "more than once"]),
    (HEADER + instead(ROWS, "0.3", f"mg{SECRET}"), ["'dose'", "not numeric"]),
    (HEADER + instead(ROWS, "0.3", "nan"), ["'dose'", "missing"]),
    (HEADER + instead(ROWS, "0.3", ""), ["'dose'"]),
    (HEADER + instead(ROWS, "0.4,1", f"0.4,{SECRET}"), ["'ill'", "two classes 0 and 1", "data.classes"]),
    (HEADER + instead(ROWS, "0.4,1", "0.4,"), ["'ill'", "missing", "label"]),
    (HEADER + ROWS + f"{SECRET},0.5\n", ["another number of cells"]),
    (HEADER.encode() + b"3\xe9,0.1,0\n" + ROWS.encode(), ["UTF-8"]),
]

CONFIGS = [
    # (text of the config, its replacement): expected texts in the sentence.
    ("name: south", "name: north", ["'north'", "twice"]),
    ("path: south.csv", "path: north.csv", ["'north' and 'south'", "same file", "north.csv"]),
    (", path: south.csv", "", ["data.silos.south.path is missing"]),
    ("path: south.csv", "path: south.xlsx", ["'south'", "south.xlsx", ".parquet or .csv"]),
    ("path: south.csv", "path: south.parquet", ["silo south", "south.parquet", "Parquet"]),
    ("  features: [age, dose]\n", "", ["data.features is missing"]),
    ("[age, dose]", "[]", ["data.features", "at least 1"]),
    ("[age, dose]", "[age, age]", ["data.features", "'age' twice"]),
    ("[age, dose]", "[age, ill]", ["data.label 'ill'", "data.features"]),
    ("[age, dose]", "\n    age: {rang: [20, 90]}", ["data.features.age.rang", "did you mean range?"]),
    ("[age, dose]", "\n    age: {range: [90, 20]}", ["data.features.age", "[90, 20]", "write [20, 90]"]),
    ("label: ill", "label: ill\n  classes: [0]", ["data.classes = [0]", "at least 2"]),
    ("label: ill", "label: ill\n  classes: [1, '1']", ["data.classes", "two classes are equal"]),
    ("label: ill", "label: ill\n  classes: [0, 1, 2]", ["'logistic'", "the label has 3", "softmax"]),
    ("label: ill", "label: ill\n  classes: null", ["'logistic'", "two classes", "data.classes"]),
    (
        "label: ill",
        "label: ill\n  classes: [no, yes]",
        ["2 of 2 silos", "one reason", "silo north", "'ill'", "classes 'no' and 'yes'"],
    ),
    ("rounds: 2", "rounds: 2\nmodel: {loss: {name: squared}}", ["'squared'", "model.clip"]),
    ("mbsgd\n  rounds: 2", "one-pass-mbsgd\n  rounds: 5", ["silo north", "4 records", "at most 4"]),
    ("label: ill", "label: ill\n  test: test.csv", ["data.test", "test.csv does not exist"]),
    ("label: ill", "label: ill\n  test: north.csv", ["data.test", "silo 'north'", "no silo holds"]),
]

TESTS = [
    # The public test file, whose cells may be quoted.
    ("age,ill\n31,0\n42,1\n", ["no column 'dose'"]),
    (HEADER + instead(ROWS, "0.4,1", "0.4,7"), ["'ill'", "two classes 0 and 1"]),
    (HEADER + instead(ROWS, "0.3", "much"), ["'dose'", "not numeric"]),
]


@pytest.fixture
def call(fedcore, tmp_path, monkeypatch):
    """The command line in a folder with the correct files of two silos."""
    monkeypatch.chdir(tmp_path)
    for name in ("north", "south"):
        Path(f"{name}.csv").write_text(HEADER + ROWS)
    Path("south.parquet").write_text("no table at all")
    Path("own.yaml").write_text(OWN)
    return fedcore


@pytest.mark.parametrize(("content", "texts"), SOUTH)
def test_a_file_that_cannot_be_used_is_a_sentence_without_its_cells(call, content, texts):
    south = Path("south.csv")
    south.unlink()
    if content is not None:
        south.write_bytes(content if isinstance(content, bytes) else content.encode())
    sentence = check_mistake(call, ["run", "own.yaml"], "silo south", "south.csv", *texts)
    assert SECRET not in sentence


@pytest.mark.parametrize(("right", "wrong", "texts"), CONFIGS)
def test_a_config_that_does_not_fit_its_files_is_a_sentence(call, right, wrong, texts):
    Path("own.yaml").write_text(instead(OWN, right, wrong))
    check_mistake(call, ["run", "own.yaml"], *texts)


@pytest.mark.parametrize(("content", "texts"), TESTS)
def test_a_plan_looks_at_public_test_data_and_at_no_silo(call, content, texts):
    Path("own.yaml").write_text(instead(OWN, "label: ill", "label: ill\n  test: test.csv"))
    Path("test.csv").write_text(content)
    for command in ("plan", "run"):
        check_mistake(call, [command, "own.yaml"], "data.test", "test.csv", *texts)
    Path("test.csv").write_text(HEADER + ROWS)
    Path("south.csv").write_text(HEADER + instead(ROWS, "0.4,1", "0.4,2"))
    assert call("plan", "own.yaml")[0] == 0


def test_a_plan_looks_at_declared_classes(call):
    Path("own.yaml").write_text(instead(OWN, "label: ill", "label: ill\n  classes: [0, 1, 2]"))
    check_mistake(call, ["plan", "own.yaml"], "'logistic'", "the label has 3", "model.loss.name = softmax")
    assert call("plan", "own.yaml", "model.loss.name=softmax")[0] == 0


def test_one_silo_alone_gets_a_remark(call):
    Path("own.yaml").write_text(instead(OWN, "    - {name: south, path: south.csv}\n", ""))
    code, out, _ = call("plan", "own.yaml")
    assert code == 0 and "warning: there is one silo" in " ".join(out.split())


def test_categories_may_be_yes_and_no(call):
    Path("own.yaml").write_text(instead(OWN, "label: ill", "label: ill\n  classes: [no, yes]"))
    for name in ("north", "south"):
        Path(f"{name}.csv").write_text(HEADER + ROWS.replace(",0\n", ",no\n").replace(",1\n", ",yes\n"))
    assert call("check", "own.yaml")[0] == 0


def test_check_quotes_cells_and_finds_that_there_is_one_class_only(call):
    Path("south.csv").write_text(HEADER + instead(ROWS, "0.4,1", f"0.4,{SECRET}"))
    code, out, err = call("check", "own.yaml")
    assert code == 2 and err == "1 of 2 files do not fit own.yaml: south\n" and "'ill'" in out
    for name, rows in (("south", ROWS.replace(",1\n", ",0\n")), ("north", ROWS)):  # south alone may well have one class
        Path(f"{name}.csv").write_text(HEADER + rows)
    assert call("check", "own.yaml")[::2] == (0, "")
    Path("north.csv").write_text(HEADER + ROWS.replace(",1\n", ",0\n"))
    code, _, err = call("check", "own.yaml", "data.classes=[0, 1]")
    assert code == 2 and "of one class, none of 1" in err and err.count("\n") == 1
    code, out, err = call("check", "own.yaml", "data.classes=[0, 1, 2]", "model.loss.name=softmax")
    assert code == 2 and "none of 1, 2" in err
