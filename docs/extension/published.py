"""Tables of published results: `<!-- published: FILE.csv [columns] -->` becomes the table of that file."""

from __future__ import annotations

import csv
import re
from pathlib import Path

from extension.markers import plain

MARKER = re.compile(r"^<!-- published: ([\w./-]+\.csv)(?: ([\w, -]+))? -->$", re.MULTILINE)


def tables(text: str, folder: Path, page: str) -> str:
    """The page with every marker replaced by its table. Raises FileNotFoundError for a file that is not there."""

    def table(found: re.Match[str]) -> str:
        path = folder / found.group(1)
        if not path.is_file():
            raise FileNotFoundError(f"page {page} shows {found.group(1)}, which studies/published does not hold")
        chosen = [name.strip() for name in found.group(2).split(",")] if found.group(2) else None
        return markdown(path, chosen)

    return MARKER.sub(table, text)


def markdown(path: Path, columns: list[str] | None = None) -> str:
    """A CSV file as a Markdown table, with all columns or the chosen ones. Lines with # at the start are comments."""
    with path.open(newline="") as file:
        rows = list(csv.reader(line for line in file if not line.startswith("#")))
    head, body = rows[0], rows[1:]
    at = [head.index(name) for name in columns] if columns else list(range(len(head)))
    lines = [[head[i] for i in at], ["---"] * len(at), *([row[i] for i in at] for row in body)]
    return "\n".join("| " + " | ".join(plain(cell) for cell in line) + " |" for line in lines)
