"""Takes the figures of `fedcore reproduce five-way` into the tree: `python docs/scripts/five_way.py FOLDER`.

FOLDER is reproductions/five-way of the home. Written are the table behind `fedcore advise`, docs/five-way-tables.md,
and the plots that docs/five-way.md shows.
"""

import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from fedcore.advice.table import Row
from fedcore.configfile.reading import read_yaml
from flows.reports.settings import said
from flows.reports.table import markdown_table
from flows.reproductions.overview import above, overview
from flows.reproductions.reproduction import PAPERS
from flows.reproductions.table_file import TABLE, as_bytes, gathered

DOCS = Path(__file__).parents[1]
PLOTS = (
    "mnist/plot",
    "digits/plot",
    "hospitals/plot",
    "convex-1000-alike/plot",
    "nonconvex-unlike/plot",
    "mnist/along-1",
    "convex-1000-alike/along-1",
    "nonconvex-unlike/along-1",
)
KINDS = ("hospitals", "breast-cancer", "digits", "mnist", "convex-10-", "convex-1000-", "nonconvex-")
"""What names of figures begin with; no name begins with two of them."""


def main(folder: Path) -> None:
    figures = read_yaml(PAPERS / "five-way" / "figures.yaml", [])["figures"]
    rows = gathered(folder)
    TABLE.write_bytes(as_bytes(rows))
    parts = [
        "# Tables of the five-way comparison\n\nMade by `python docs/scripts/five_way.py`; how to read them: "
        f"[five-way.md](five-way.md).\n\n{overview(rows)}",
        f"The same over all figures of a kind:\n\n{kinds(rows)}\n",
        *(section(folder / figure["name"], figure["title"]) for figure in figures),
    ]
    (DOCS / "five-way-tables.md").write_text("\n".join(parts))
    for plot in PLOTS:
        name = plot.replace("/plot", "").replace("/", "-")
        shutil.copyfile(folder / f"{plot}.png", DOCS / "images" / f"five-way-{name}.png")


def kinds(rows: Sequence[Row]) -> str:
    """Markdown: what methods came to over all figures of a kind."""
    grouped = {kind.rstrip("-"): [row for row in rows if row.figure.startswith(kind)] for kind in KINDS}
    return above(grouped, list(dict.fromkeys(method for row in rows for method in row.errors)))


def section(folder: Path, title: str) -> str:
    """A figure's tables: errors and standings, whole runs, and what was chosen."""
    chosen = json.loads((folder / "settings.json").read_text())
    epsilons = sorted({each["privacy.epsilon"] for each in chosen})
    methods = list(dict.fromkeys(each["method"] for each in chosen))
    settings = {(each["method"], each["privacy.epsilon"]): said(each["settings"]) for each in chosen}
    columns = {"method": methods}
    for epsilon in epsilons:
        columns[f"epsilon {epsilon:g}"] = [settings[method, epsilon] for method in methods]
    tried = {each["tried"] for each in chosen}
    return (
        f"## {title}\n\nFigure `{folder.name}`.\n\n{(folder / 'table.md').read_text().rstrip()}\n\n"
        f"{(folder / 'along.md').read_text().rstrip()}\n\n"
        f"Settings, chosen on simulated silos among {' or '.join(map(str, sorted(tried)))} of each method:\n\n"
        f"{markdown_table(columns)}\n"
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
