"""Images of published results, drawn at the site's build from `studies/published`.

`<!-- figure: STUDY | FIGURE, .. | MEASURE -->`, on one line or several, becomes an image below
`docs/generated/figures`. A figure has a panel for each curve.
"""

from __future__ import annotations

import re
from pathlib import Path

from extension.markers import plain
from extension.panels import axis, measured, save
from extension.published import Row, absent, chosen

MARKER = re.compile(r"^<!-- figure: ([^>]+?) -->$", re.MULTILINE)
GENERATED = Path("generated", "figures")


def figures(text: str, folder: Path, docs: Path, page: str) -> str:
    """The page with an image for every marker. Raises ValueError for what is not published or has no axis.

    In a checkout without published results, the file's name replaces each image.
    """

    def replaced(found: re.Match[str]) -> str:
        words = [word.strip() for word in found.group(1).split("|")]
        if not folder.is_dir():
            return absent(words[0])
        try:
            return image(folder, words, docs)
        except (OSError, LookupError) as error:
            raise ValueError(f"page {page}, {found.group(0)}: {error}") from error

    return MARKER.sub(replaced, text)


def image(folder: Path, words: list[str], docs: Path) -> str:
    """Markdown of the image that the words of a marker name, after its file is written."""
    if len(words) != 3:
        raise LookupError("a figure is named by study, figures and measure")
    study, names, measure = words
    blocks: dict[str, list[Row]] = {}
    for row in chosen(folder, study, names, measure):
        if not row["seed"]:
            blocks.setdefault(row["figure"], []).append(row)
    keys = {row["key"] for rows in blocks.values() for row in rows}
    if len(keys) != 1 or keys == {""}:
        raise LookupError(f"{measure!r} of {names!r} has {len(keys - {''})} axes, not one")
    path = GENERATED / f"{_name(study)}-{'-'.join(map(_name, blocks))}-{_name(measure)}.png"
    save(blocks, measure, docs / path)
    (key,) = keys
    described = f"{study}, {', '.join(blocks)}: {measured(measure)} against {axis(key)}"
    return f"![{plain(described)}](/{path.as_posix()})"


def _name(words: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", words.lower()).strip("-")
