"""Provenance names no host, user or absolute path, is read within bounds, and nothing in it is executed."""

from __future__ import annotations

import datetime
import json
import re
from pathlib import Path

import pytest

from fedcore.errors import InputError
from studies.results import provenance as module
from studies.results.provenance import Provenance, Publication, impersonal, read_provenance, write_provenance

STUDIES = Path(module.__file__).parents[1]


def publication(*figures: str, **changes: object) -> Publication:
    values = {
        "figures": figures or ("plain",),
        "command": "python -m studies run small",
        "commit": "0123456789abcdef",
        "date": datetime.date(2026, 11, 28),
        "processor": "Intel(R) Xeon(R) CPU @ 2.20GHz, x86_64",
        "seeds": (0, 1),
        "draws": "0.3",
    }
    return Publication.model_validate(values | changes)


@pytest.mark.parametrize(
    "text",
    [
        "/home/ann/fedcore",
        "python -m studies run small data.folder=/mnt/silos",
        "python '/opt/x'",
        "~/runs",
        "~ann/runs",
        r"C:\runs",
        "D:/runs",
        r"\\share\runs",
        "file:///etc/passwd",
        "https://intranet/runs",
        "ann@gpu7",
        "run at 10.0.0.7",
        "two\nlines",
        "\x1b[31m",
        "größe",
        "",
        "x" * 301,
    ],
)
@pytest.mark.parametrize("field", ["command", "processor", "source"])
def test_a_place_or_a_person_is_refused_in_every_text(text, field):
    with pytest.raises(ValueError, match=field):
        publication(**{field: text})


@pytest.mark.parametrize(
    "text",
    [
        "python -m studies run five-way --figure mnist-half",
        "fedcore sweep conf/sweep/hospitals.yaml grid.seed=[0,1]",
        "AMD EPYC 7B13 64-Core Processor, x86_64",
        "Apple M2 / arm64",
        "docs/five-way-tables.md",
        "numpy 2.1.0",
    ],
)
def test_what_says_how_results_were_made_is_taken(text):
    assert impersonal(text) == text


@pytest.mark.parametrize("text", ["lab17", "made on lab17.example.org", "LAB17", "by ann"])
def test_names_of_this_host_and_its_user_are_not_written(tmp_path, monkeypatch, text):
    monkeypatch.setattr(module.socket, "gethostname", lambda: "lab17.example.org")
    monkeypatch.setattr(module.getpass, "getuser", lambda: "ann")
    made = Provenance(study="small", published=(publication(processor=text),))
    with pytest.raises(InputError, match=r"names this (host|user); nothing was written"):
        write_provenance(tmp_path / "small.json", made)
    assert not list(tmp_path.iterdir())


def test_a_user_with_the_name_of_a_study_can_publish_it(tmp_path, monkeypatch):
    monkeypatch.setattr(module.getpass, "getuser", lambda: "small")
    made = Provenance(study="small", published=(publication(),))
    write_provenance(tmp_path / "small.json", made)
    assert read_provenance(tmp_path / "small.json") == made


@pytest.mark.parametrize(
    "change",
    [
        {"commit": "HEAD"},
        {"commit": "0123456"},
        {"draws": "new"},
        {"date": "yesterday"},
        {"seeds": [0.5]},
        {"figures": []},
        {"figures": ["../plain"]},
        {"host": "gpu7"},
    ],
)
def test_fields_of_another_form_are_refused_as_they_are_read(tmp_path, change):
    path = tmp_path / "small.json"
    values = Provenance(study="small", published=(publication(),)).model_dump(mode="json")
    values["published"][0] |= change
    path.write_text(json.dumps(values))
    with pytest.raises(InputError, match=f"small.json.*{next(iter(change))}"):
        read_provenance(path)


def test_files_that_are_no_provenance_are_sentences(tmp_path):
    path = tmp_path / "small.json"
    with pytest.raises(InputError, match="does not exist"):
        read_provenance(path)
    for content, message in ((b"[" * 100_000, "not JSON"), (b"{", "not JSON"), (b"[]", "no.* JSON object")):
        path.write_bytes(content)
        with pytest.raises(InputError, match=message):
            read_provenance(path)
    with open(path, "wb") as file:
        file.truncate(2**23 + 1)
    with pytest.raises(InputError, match="cannot be read"):
        read_provenance(path)


def test_a_figure_has_one_publication_and_a_new_one_takes_its_place():
    with pytest.raises(ValueError, match="figure b was published twice"):
        Provenance(study="small", published=(publication("a", "b"), publication("b")))
    old = Provenance(study="small", published=(publication("a", "b"), publication("c")))
    new = publication("b", "c", draws="0.4")
    found = old.replaced(new)
    assert [each.figures for each in found.published] == [("a",), ("b", "c")]
    assert found.of("b").draws == "0.4" and found.of("a").draws == "0.3"
    with pytest.raises(InputError, match="figure d was not published"):
        found.of("d")


def test_no_code_executes_a_command_of_a_provenance():
    """The only process that studies start is Git, whose words are in the code. `@app.command` registers a command.

    The demo of a federation starts its parties; it reads no provenance.
    """
    demo = STUDIES / "federation_demo"
    sources = {path.name: path.read_text() for path in STUDIES.rglob("*.py") if demo not in path.parents}
    assert not any("provenance" in path.read_text() for path in demo.rglob("*.py"))
    starting = re.compile(r"subprocess|os\.system|popen|exec\(|eval\(|spawn")
    assert [name for name, text in sources.items() if starting.search(text)] == ["publication.py"]
    text = sources["publication.py"]
    assert text.count("subprocess.run(") == 1 and 'subprocess.run(["git", *words]' in text
    read = [name for name, text in sources.items() if re.search(r"(?<!@app)\.command\b", text)]
    assert read == ["provenance.py"], "the words of a command are looked at where they are written, and nowhere else"
