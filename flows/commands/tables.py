"""`init` and `check`: write a config for a person's own files, and check the files against it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flows.commands.arguments import AsJson, Config, Overrides, console, write_new_output

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fedcore.data.cells import Value
    from fedcore.data.checks.judgement import Findings
    from fedcore.data.silo_file import SiloSource

_SUFFIXES = (".csv", ".parquet")
_PUBLIC = ("public", "test")
"""Stems of files that hold public test data and are no silo's."""


def init(
    files: Annotated[list[Path], typer.Argument(help="folder of CSV or Parquet files, or the files, one per silo")],
    label: Annotated[str | None, typer.Option(help="the label's column; else the last one")] = None,
    person: Annotated[
        str | None, typer.Option(help="the column that names a row's person, if persons have several rows")
    ] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="file for the config")] = Path("experiment.yaml"),
) -> None:
    """Write a config for your own files, with a schema to fill in. Reads names and types of columns, and no record."""
    from fedcore.errors import InputError

    if output.exists():
        raise InputError(f"{output} is there already; name another file with --output")
    paths = _listed(files)
    headers = {path: _header(path) for path in paths}
    public = [path for path in paths if path.stem.lower() in _PUBLIC]
    silos = [path for path in paths if path not in public]
    if not silos:
        raise InputError(f"no silo's file is among {', '.join(map(str, paths))}: public.* and test.* are test data")
    if len(public) > 1:
        raise InputError(f"{' and '.join(map(str, public))} are both named as public test data; keep one of them")
    first = headers[silos[0]]
    label = label if label is not None else list(first)[-1]
    if person == label:
        raise InputError(f"column {label!r} cannot be both, the label and the persons; name another one with --label")
    for path, header in headers.items():
        _check_alike(path, header, silos[0], first, label, person, path in public)
    write_new_output(output, _config(silos, public, first, label, person))
    rows = "" if person is None else f", rows of persons by column {person!r}"
    console.print(
        f"{output}: {len(silos)} silos, {len(first.keys() - {label, person})} columns and the label {label!r}{rows}. "
        f"Fill in what is publicly known of each column, then `fedcore check {output}`.",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )


def check(
    config: Config,
    overrides: Overrides = None,
    silo: Annotated[list[str] | None, typer.Option(help="only this silo, whose file is here; may be repeated")] = None,
    as_json: AsJson = False,
) -> None:
    """List all faults of silos' own files, quoting their cells: run it where the files are.

    Exit code 2 if something does not fit, or is hardly intended, such as categories that no cell has.
    """
    from fedcore.data.cells import quoted
    from fedcore.data.file_sources import file_sources, public_source
    from fedcore.data.inspection import inspected
    from fedcore.errors import InputError
    from fedcore.experiment.experiment import make_plan
    from fedcore.experiment.loading import load_experiment

    experiment = load_experiment(config, overrides or [])
    if experiment.data.source != "files":
        raise InputError(f"{config}: data.source = {experiment.data.source} has no files of yours to check")
    sources = {source.name: source for source in file_sources(experiment.data, experiment.model)}
    unknown = [name for name in silo or () if name not in sources]
    if unknown:
        raise InputError(f"--silo {unknown[0]}: no silo of {config}; there are {', '.join(sources)}")
    chosen: dict[str, SiloSource] = {name: sources[name] for name in silo or sources}
    if experiment.data.test is not None:
        chosen["data.test"] = public_source(next(iter(sources.values())), experiment.data.test, "data.test")
    found = {name: inspected(source) for name, source in chosen.items()}
    wrong = [name for name, each in found.items() if each.faults or each.doubts]
    if as_json:
        listed = {
            name: {"file": chosen[name].path, "records": each.rows}
            | ({} if each.persons is None else {"persons": each.persons})
            | {"faults": each.faults, "doubts": each.doubts, "notes": each.notes}
            for name, each in found.items()
        }
        print(json.dumps(listed, indent=2))
    else:
        for name, each in found.items():
            fits = "does not fit" if each.faults else "is hardly what was meant" if each.doubts else "fits"
            persons = "" if each.persons is None else f" of {each.persons} persons"
            console.print(
                f"{name}: {each.rows} records{persons}, {fits} ({chosen[name].path})",
                highlight=False,
                markup=False,
                soft_wrap=True,
            )
            for sentence in (*each.faults, *each.doubts, *(f"note: {note}" for note in each.notes)):
                console.print(f"  {sentence}", highlight=False, markup=False, soft_wrap=True)
    if wrong:
        raise InputError(f"{len(wrong)} of {len(found)} files do not fit {config}: {', '.join(wrong)}")
    if not silo:
        make_plan(experiment)  # sizes against delta, participation and weights
        lacking = _lacking(experiment.data.classes, [each for name, each in found.items() if name != "data.test"])
        if lacking and len(lacking) + 1 >= len(experiment.data.classes or ()):
            raise InputError(
                f"{config}: all records of all silos are of one class, none of {quoted(lacking)} (data.classes): there "
                "is nothing to classify"
            )
        if lacking and not as_json:
            console.print(f"note: no silo has a record of class {quoted(lacking)}", highlight=False, markup=False)
    if not as_json:
        next_step = f"all of {config} fits; next: `fedcore plan {config}`"
        console.print(next_step, highlight=False, markup=False, soft_wrap=True)


def _lacking(classes: Sequence[Value] | None, silos: Sequence[Findings]) -> list[Value]:
    """Classes of which no silo has a record: shown only to the person who may see all files."""
    there = {value for each in silos for value in each.classes or ()}
    return [each for each in classes or () if each not in there]


def _listed(given: list[Path]) -> list[Path]:
    """The files; those of a folder in order of names. Raises InputError for a missing file and a repeated silo name."""
    from fedcore.errors import InputError

    paths: list[Path] = []
    for path in given:
        if path.is_dir():
            inside = sorted(each for each in path.iterdir() if each.suffix.lower() in _SUFFIXES)
            if not inside:
                raise InputError(f"{path} holds no .csv or .parquet file")
            paths += inside
        elif not path.exists() and path.suffix.lower() not in _SUFFIXES:
            raise InputError(f"there is no folder {path}")
        elif path.suffix.lower() not in _SUFFIXES:
            raise InputError(f"{path} must end in .csv or .parquet")
        else:
            paths.append(path)
    stems: dict[str, Path] = {}
    for path in paths:
        if stems.setdefault(path.stem, path) != path:
            raise InputError(f"{stems[path.stem]} and {path} would be silos of one name; rename one of them")
    return paths


def _header(path: Path) -> dict[str, str]:
    """Names and types of the file's columns. Raises InputError, which quotes no cell of a file without a header."""
    from fedcore.data.cells import Refusal
    from fedcore.data.columns import header
    from fedcore.errors import InputError

    try:
        return header(str(path), path.suffix.lower()[1:])
    except Refusal as refusal:
        raise InputError(f"file {path} {refusal.sentence}") from None


def _check_alike(
    path: Path,
    header: dict[str, str],
    first: Path,
    columns: dict[str, str],
    label: str,
    person: str | None,
    public: bool,
) -> None:
    """Raises InputError unless the file has the first one's columns; test data need no persons."""
    from fedcore.data.cells import quoted
    from fedcore.errors import InputError

    if label not in header:
        raise InputError(f"file {path} has no column {label!r}, the label; it has {quoted(header)} (--label NAME)")
    if person is not None and person not in header and not public:
        raise InputError(f"file {path} has no column {person!r}, of persons; it has {quoted(header)} (--person NAME)")
    lacks = [name for name in columns if name not in header and not (public and name == person)]
    if lacks:
        raise InputError(f"file {path} has no column {quoted(lacks)}, which {first} has; silos have the same columns")


def _config(silos: list[Path], public: list[Path], columns: dict[str, str], label: str, person: str | None) -> str:
    """The config's text: valid YAML that `plan` refuses until each column is filled in."""
    from fedcore.configfile.yaml_writer import quoted

    texts = {name: quoted(name) for name in columns}
    wide = max(len(text) for text in texts.values())
    features = "\n".join(
        f"    {texts[name]}:{' ' * (wide - len(texts[name]))} {_blank(kind)}  # {kind}"
        for name, kind in columns.items()
        if name not in (label, person)
    )
    persons = (
        ""
        if person is None
        else f"""\
  person: {texts[person]}  # the column that names a row's person: epsilon is for each person with all of its rows
  person_rows: 10  # most rows of a person that count; `fedcore check` counts persons with more
"""
    )
    named = "\n".join(f"    - {{name: {_name(path)}, path: {quoted(str(path))}}}" for path in silos)
    unit = "record" if person is None else "person"
    test = quoted(str(public[0])) if public else "null  # a file of public records that no silo holds"
    evaluation = (
        ""
        if public
        else (
            f"evaluation:  # without public test data silos hold out a fifth of their {unit}s; delete it for a number\n"
            "  every: end\n"
        )
    )
    return f"""\
# Written by `fedcore init` from names and types of columns. Fill in what is publicly known of each column, from
# textbooks, norms of the field or a public data set; never from the silos' records (docs/how-to/schema.md).
name: own-data
data:
  source: files
  silos:
{named}
  # Of each column one of
  #   {{range: [20, 90]}}        a number: clipped to the range and mapped to -1 to 1; log: true takes logarithms first
  #   {{centre: 70, scale: 15}}  a number: (value - centre) / scale, clipped at 3
  #   {{categories: [a, b, c]}}  a feature for each value, and one for all others
  # and, where values may be missing, codes that stand for it beside empty cells: missing: [-9] (or [])
  # A column that is not to be used: delete its line.
  features:
{features}
  label: {texts[label]}
  classes: [0, 1]  # values of the label; null for a number (then model.loss.name: huber, and data.label_range)
  test: {test}
{persons}privacy:
  epsilon: 2.0  # of the whole run, for each {unit} of each silo
participation:
  weights: records  # silos count by their public numbers of {unit}s
{evaluation}algorithm:
  name: mbsgd
"""


def _blank(kind: str) -> str:
    """The range that a boolean column's type implies; an empty entry for other types."""
    return "{range: [0, 1]}" if kind == "bool" else "{}"


def _name(path: Path) -> str:
    """A silo's name from its file's: letters, digits, dots, dashes and underscores."""
    return json.dumps(re.sub(r"[^A-Za-z0-9_.-]", "-", path.stem).lstrip("._-") or "silo")
