"""Measures of prose and code: `python docs/scripts/prose.py` prints a table of pages and one of rooms.

By page it counts words, sentences of more than 25 words and lines of more than 100 columns; by room, lines of code.
Code, tables, headings and link targets are no prose. A code span counts as one word. `--long` prints the long
sentences too.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ("fedcore", "tasks", "flows", "studies")
LONGEST = 25
WIDEST = 100
CODE = re.compile(r"^(```+|~~~+)[^\n]*\n.*?^\1\s*$", re.DOTALL | re.MULTILINE)
FRONT = re.compile(r"\A---\n.*?\n---\n", re.DOTALL)
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
NO_PROSE = re.compile(r"^(#|\||!\[| {4,}\S|%)")
ITEM = re.compile(r"^\s*([-*+]|\d+\.|:)\s+")
END = re.compile(r"(?<=[.!?])[)\"*]*\s+(?=[\"(*`\[A-Z0-9]|fedcore\b)")
ABBREVIATION = re.compile(r"\b(et al|vs|cf|No|Fig|Sect|Thm)\.\s*")


@dataclass(frozen=True)
class Prose:
    """Words of a page, its sentences above `LONGEST` words, and its lines above `WIDEST` columns."""

    words: int
    long: tuple[str, ...]
    wide: tuple[str, ...]


def measured(text: str) -> Prose:
    """Counts of a page in Markdown."""
    found = [sentence for block in blocks(text) for sentence in sentences(block)]
    wide = tuple(line for line in _without_tables(text) if len(line) > WIDEST)
    long = tuple(sentence for sentence in found if len(sentence.split()) > LONGEST)
    return Prose(sum(len(sentence.split()) for sentence in found), long, wide)


def blocks(text: str) -> Iterator[str]:
    """Paragraphs, items of lists and definitions, without markup."""
    text = COMMENT.sub("", CODE.sub("", FRONT.sub("", text)))
    block: list[str] = []
    for line in [*text.splitlines(), ""]:
        starts = bool(ITEM.match(line))
        if not line.strip() or starts or (NO_PROSE.match(line) and not block):
            if block:
                yield " ".join(block)
            block = []
        if line.strip() and (starts or block or not NO_PROSE.match(line)):
            block.append(ITEM.sub("", line).strip())


def sentences(block: str) -> list[str]:
    """Sentences of a paragraph, with code spans as one word and link targets as none."""
    plain = re.sub(r"\{\w+\}(`[^`]*`)", r"\1", block)
    plain = re.sub(r"`+[^`]*`+", "Code", plain)
    plain = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", plain)
    plain = ABBREVIATION.sub(r"\1 ", plain)
    return [sentence for sentence in END.split(plain) if re.search(r"\w", sentence)]


def _without_tables(text: str) -> list[str]:
    text = COMMENT.sub("", CODE.sub("", text))
    return [line for line in text.splitlines() if not line.lstrip().startswith("|")]


def pages() -> list[Path]:
    """Markdown pages of the site and of the root, in order."""
    site = [path for path in (ROOT / "docs").rglob("*.md") if "_build" not in path.parts]
    return sorted([*ROOT.glob("*.md"), *site])


def rooms() -> dict[str, int]:
    """Lines of product by room, two levels deep."""
    counts: dict[str, int] = {}
    for package in PRODUCT:
        for path in (ROOT / package).rglob("*.py"):
            room = "/".join(path.relative_to(ROOT).parts[:-1][:2])
            counts[room] = counts.get(room, 0) + len(path.read_text().splitlines())
    return dict(sorted(counts.items()))


def main(long: bool, only: list[str]) -> None:
    """Prints both tables; with names of pages, only these pages' counts."""
    chosen = [Path(name).resolve() for name in only] or pages()
    total = [0, 0, 0]
    print(f"{'page':58} {'words':>7} {'long':>5} {'wide':>5}")
    for path in chosen:
        prose = measured(path.read_text())
        counts = (prose.words, len(prose.long), len(prose.wide))
        total = [a + b for a, b in zip(total, counts, strict=True)]
        print(f"{path.relative_to(ROOT).as_posix():58} {counts[0]:7,} {counts[1]:5} {counts[2]:5}")
        for sentence in prose.long if long else ():
            print(f"    {len(sentence.split())}: {sentence}")
    print(f"{'all':58} {total[0]:7,} {total[1]:5} {total[2]:5}")
    if only:
        return
    print(f"\n{'room':58} {'lines':>7}")
    for room, lines in rooms().items():
        print(f"{room:58} {lines:7,}")
    print(f"{'all':58} {sum(rooms().values()):7,}")


if __name__ == "__main__":
    arguments = sys.argv[1:]
    main("--long" in arguments, [each for each in arguments if each != "--long"])
