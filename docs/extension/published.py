"""Tables of published results, from `studies/published`.

`<!-- published: STUDY | FIGURE, .. | MEASURE -->` becomes a table with a row for each curve, and a column for each
panel and place on the axis. `<!-- published: STUDY -->` becomes a section for each figure with all its measures.
`<!-- provenance: STUDY -->` becomes a list of the commands, commits and seeds behind the numbers.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from extension.markers import plain

MARKER = re.compile(r"^<!-- (published|provenance): ([^>]+?) -->$", re.MULTILINE)
ABOVE = re.compile(r"^(?P<measure>.*), above (?P<lowest>.*): (?P<standing>\w+)$")
Row = dict[str, str]


def tables(text: str, folder: Path, page: str) -> str:
    """The page with every marker replaced. Raises ValueError for a study, figure or measure that is not published.

    In a checkout without published results, the file's name replaces each table.
    """

    def replaced(found: re.Match[str]) -> str:
        kind, words = found.group(1), [word.strip() for word in found.group(2).split("|")]
        if not folder.is_dir():
            return absent(words[0])
        try:
            return provenance(folder, words[0]) if kind == "provenance" else _published(folder, words)
        except (OSError, LookupError) as error:
            raise ValueError(f"page {page}, {found.group(0)}: {error}") from error

    return MARKER.sub(replaced, text)


def absent(study: str) -> str:
    """The sentence that replaces a study's results in a checkout without them."""
    return f"*Published results: `studies/published/{study}.csv`, which this checkout does not hold.*"


def chosen(folder: Path, study: str, names: str, measure: str) -> list[Row]:
    """Rows of one measure, of the figures between commas. Raises LookupError for a figure without the measure."""
    figures = [name.strip() for name in names.split(",")]
    rows = _rows(folder, study)
    found = [row for name in figures for row in rows if row["figure"] == name and row["measure"] == measure]
    missing = set(figures) - {row["figure"] for row in found}
    if missing:
        raise LookupError(f"no {measure!r} of {sorted(missing)}")
    return found


def _rows(folder: Path, study: str) -> list[Row]:
    with (folder / f"{study}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def _published(folder: Path, words: list[str]) -> str:
    if len(words) == 1:
        return "\n".join(_all(_rows(folder, words[0])))
    return table(chosen(folder, *words))


def _all(rows: list[Row]) -> Iterator[str]:
    for figure in _distinct(row["figure"] for row in rows):
        yield from (f"### {plain(figure)}", "")
        of_figure = [row for row in rows if row["figure"] == figure]
        above = [{**row, **ABOVE.match(row["measure"]).groupdict()} for row in of_figure if ABOVE.match(row["measure"])]
        for measure in _distinct(row["measure"] for row in of_figure if not ABOVE.match(row["measure"])):
            measured = [row for row in of_figure if row["measure"] == measure]
            yield from (f"{_sentence(measure)}{_spread(measured)}:", "", table(measured), "")
        for measure in _distinct(row["measure"] for row in above):
            yield from (f"{_sentence(measure)} above the lowest, with simultaneous 95 % intervals:", "")
            yield from (table([row for row in above if row["measure"] == measure]), "")


def table(rows: list[Row]) -> str:
    """Rows of one measure as a Markdown table, curves down and places across."""
    several = len({row["figure"] for row in rows}) > 1
    places = sorted(_distinct(_place(row) for row in rows), key=_order)
    names = _distinct((row["figure"] if several else "", row["curve"]) for row in rows)
    cells = {((row["figure"] if several else "", row["curve"]), _place(row)): _cell(row) for row in rows}
    key = rows[0]["key"].rpartition(".")[2].replace("_", " ")
    heads = [f"{panel} {at}".strip() or "value" for at, panel in places]
    heads[0] = f"{key} {heads[0]}".strip()
    lines = [["", *heads], ["---"] * (len(places) + 1)]
    for figure, curve in names:
        name = f"{figure}: {curve}" if figure else curve
        lines.append([name, *(cells.get(((figure, curve), place), "") for place in places)])
    return "\n".join("| " + " | ".join(plain(cell) for cell in line) + " |" for line in lines)


def provenance(folder: Path, study: str) -> str:
    """Provenance of a study's numbers, as a list."""
    recorded = json.loads((folder / f"{study}.json").read_text())
    lines = []
    for each in recorded["published"]:
        facts = [f"commit `{each['commit'][:12]}`", each["date"], f"seeds {_ranges(each.get('seeds') or [])}"]
        facts += [f"draws of version {each['draws']}"] if each.get("draws") else []
        facts += [f"processor {each['processor']}"] if each.get("processor") else []
        lines.append(f"- {', '.join(map(plain, each['figures']))}: `{each['command']}`, {', '.join(facts)}")
    return "\n".join(lines)


def _cell(row: Row) -> str:
    value = f"{row['value']}\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}{row['spread']}" if row["spread"] else row["value"]
    return f"{value} ({row['standing']})" if "standing" in row else value


def _place(row: Row) -> tuple[str, str]:
    return row["at"], row["panel"]


def _order(place: tuple[str, str]) -> tuple[str, bool, float]:
    """Sort key: by panel, then by number; `none`, which stands for no privacy, comes last."""
    at, panel = place
    try:
        return panel, False, float(at or 0)
    except ValueError:
        return panel, True, 0.0


def _sentence(measure: str) -> str:
    return plain(measure[:1].upper() + measure[1:])


def _spread(rows: list[Row]) -> str:
    kinds = _distinct(row["spread_of"] for row in rows if row["spread_of"])
    return "" if not kinds else f" ± {' or '.join(map(plain, kinds)).replace('%', ' %')}"


def _ranges(numbers: list[int]) -> str:
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ", ".join(f"{part[0]} to {part[-1]}" if len(part) > 1 else str(part[0]) for part in parts)


def _distinct(items: Iterable[Any]) -> list[Any]:
    return list(dict.fromkeys(items))
