"""Measures of docstrings and comments: `python docs/scripts/docstrings.py [PATH ...]` prints a table of rooms.

It counts docstrings of modules, classes, functions and attributes that begin with a question word. In docstrings and
comments it counts sentences of more than 25 words, and those with an excluded word. A semicolon ends a sentence here.
`--each` prints the findings with file and line.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from prose import LONGEST, ROOT, blocks, sentences

CODE = ("fedcore", "tasks", "flows", "studies", "benchmarks", "docs", "tests")
QUESTION = frozenset(["What", "Who", "Whose", "Whom", "How", "Whether", "Where", "Which", "Why", "When"])
EXCLUDED = re.compile(
    r"\b(nobody|nothing but|none is no|somebody|tells?|told|telling|says?|said|saying)\b", re.IGNORECASE
)
"""Verbs of speech for data flow, and negative subjects."""


@dataclass(frozen=True)
class Finding:
    """A sentence with a fault of a kind: question, long or word."""

    path: Path
    line: int
    kind: str
    sentence: str


def texts(source: str) -> Iterator[tuple[int, str, bool]]:
    """Line and text of all docstrings (True) and blocks of comments (False) of a module."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for child in node.body:
            value = child.value if isinstance(child, ast.Expr) else None
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                yield child.lineno, value.value, True
    block: list[str] = []
    last = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        line, text = token.start[0], token.string.lstrip("#").strip()
        if text.startswith(("type:", "noqa", "fmt:", "ruff:", "!")):
            continue
        if block and line != last + 1:
            yield last - len(block) + 1, "\n".join(block), False
            block = []
        block.append(text)
        last = line
    if block:
        yield last - len(block) + 1, "\n".join(block), False


def findings(path: Path) -> Iterator[Finding]:
    """Faults of one file: those of docstrings, then those of comments."""
    for line, text, docstring in texts(path.read_text()):
        lines = text.strip().splitlines()
        if docstring and lines and lines[0].split()[0].strip("`,:") in QUESTION:
            yield Finding(path, line, "question", lines[0])
        plain = "\n".join([lines[0], *(each.strip() for each in lines[1:])]) if lines else ""
        for block in blocks(plain):
            for sentence in (part for found in sentences(block) for part in found.split("; ")):
                if len(sentence.split()) > LONGEST:
                    yield Finding(path, line, "long", sentence)
                if EXCLUDED.search(sentence):
                    yield Finding(path, line, "word", sentence)


def sources(paths: list[str]) -> list[Path]:
    """Python files below these paths; below all rooms if there are none."""
    roots = [Path(each).resolve() for each in paths] or [ROOT / each for each in CODE]
    found = [path for root in roots for path in ([root] if root.is_file() else sorted(root.rglob("*.py")))]
    return [path for path in found if "_build" not in path.parts]


def main(each: bool, paths: list[str]) -> None:
    """Prints the counts by room; with `each`, every finding too."""
    counts: dict[str, dict[str, int]] = {}
    for path in sources(paths):
        parts = path.relative_to(ROOT).parts
        room = "/".join(parts[:-1][:2])
        of_room = counts.setdefault(room, {"question": 0, "long": 0, "word": 0})
        for finding in findings(path):
            of_room[finding.kind] += 1
            if each:
                print(f"{path.relative_to(ROOT)}:{finding.line}: {finding.kind}: {finding.sentence}")
    print(f"{'room':40} {'question':>8} {'long':>6} {'word':>6}")
    for room, of_room in sorted(counts.items()):
        print(f"{room:40} {of_room['question']:8} {of_room['long']:6} {of_room['word']:6}")
    total = {kind: sum(of_room[kind] for of_room in counts.values()) for kind in ("question", "long", "word")}
    print(f"{'all':40} {total['question']:8} {total['long']:6} {total['word']:6}")


if __name__ == "__main__":
    arguments = sys.argv[1:]
    main("--each" in arguments, [each for each in arguments if each != "--each"])
