"""Inspection of a file's contents against its schema, for the file's operator.

Its sentences count records and quote cells. They are shown on the file's own machine (`fedcore check`) or for public
test data only. A driver receives one code (`check_contents`).
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from fedcore.data.cells import Refusal
from fedcore.data.checks.judgement import SHOWN, Findings, judged
from fedcore.data.checks.rows_of_text import rows_of_text
from fedcore.data.persons import beyond, count_persons, ids_of
from fedcore.data.silo_file import (
    SiloSource,
    guarded,
    labels_or_nan,
    open_records,
    read_persons,
    read_table,
    refuse_types,
    unit_count,
)
from fedcore.errors import SiloError


def inspected(source: SiloSource) -> Findings:
    """All findings about a file, column by column, or the one reason why it is unreadable."""
    rows = 0
    try:
        table = read_table(source)
        rows = table.num_rows
        found = Findings(rows) if source.schema is None else judged(source, source.schema, table)
        if source.format == "csv":
            rows_found = rows_of_text(source.path)
            found.doubts += rows_found.doubts
            found.notes += rows_found.notes
        if source.person is not None:
            _judge_persons(source, source.person, table, found)
        if source.schema is None and not found.faults:
            open_records(source)
        if source.classes is not None and not found.faults:
            places = np.unique(labels_or_nan(table, source)).astype(int)
            found.classes = frozenset(source.classes[place] for place in places)
        return found
    except (Refusal, SiloError) as error:
        return Findings(rows, [error.sentence])
    except Exception as error:
        return Findings(rows, [f"cannot be read ({type(error).__name__})"])


def check_contents(source: SiloSource) -> int:
    """Number of records, or persons, of a file that fits its schema.

    Raises SiloError with the code `contents`, which reveals only the types of columns. Without a schema the codes of
    `silo_file.CODES` name the fault.
    """
    described = source.schema
    if described is None:
        return open_records(source).n

    def check(source: SiloSource) -> int:
        table = read_table(source)
        owners = read_persons(table, source)
        refuse_types(source)
        found = judged(source, described, table, noting=False)
        if found.faults:
            raise Refusal(
                "contents",
                "holds what does not fit the schema; `fedcore check` with this config, where the file is, shows it",
            )
        return unit_count(found.rows, owners)

    return guarded(source, check)


def _judge_persons(source: SiloSource, person: str, table: pa.Table, found: Findings) -> None:
    ids = ids_of(table.column(person), person)
    if ids.unnamed:
        found.faults.append(
            f"column {person!r}: {ids.unnamed} of {found.rows} cells are missing; every row needs a person"
        )
        return
    owners = read_persons(table, source)
    if owners is None:
        return
    found.persons = count_persons(owners)
    if ids.merged:
        spellings = sum(map(len, ids.merged))
        for_instance = ", ".join(repr(each) for each in ids.merged[0][:SHOWN])
        found.notes.append(
            f"column {person!r}: {spellings} spellings are {len(ids.merged)} persons, since each may name one (for "
            f"instance {for_instance}); where they are different persons, give them ids that differ by more"
        )
    if ids.exponents:
        found.notes.append(
            f"column {person!r}: {ids.exponents} ids look like numbers in exponent form (12e45678); each is the text "
            "that it is, and a person of its own"
        )
    if ids.beyond:
        found.notes.append(
            f"column {person!r}: {ids.beyond} of {found.rows} cells are floats too large to distinguish whole "
            "numbers: different persons may be one in the file already; write ids as integers or texts"
        )
    more, rows = beyond(owners, source.person_rows)
    if more:
        found.notes.append(
            f"column {person!r}: {more} of {found.persons} persons have more rows than data.person_rows = "
            f"{source.person_rows}; their first {source.person_rows} count, and {rows} of {found.rows} rows do not"
        )
