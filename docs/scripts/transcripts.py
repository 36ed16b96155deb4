"""Transcripts in README and docs: `python docs/scripts/transcripts.py [PAGE ...]` rewrites them; no page: all.

A block that begins with `$ fedcore ...` is one command and its output. The commands of a page run in order in a new
home, with the Python that runs this script. The plot of a sweep that runs replaces the one of its name in
`docs/images`. `--check` compares instead of writing. It ignores the columns `spread` and `seconds`, and
allows four spreads in `test error` and `by silo`: bits differ between processors, and noise is keyed by them.
Everything else must be equal.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from flows.reports.settings import OWN_HEADS

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted(page for page in (ROOT / "docs").rglob("*.md") if "_build" not in page.parts)]
BLOCK = re.compile(r"```text\n(\$ fedcore [^\n]*)\n(.*?)```", re.DOTALL)
COLUMNS = 100
HEADS = {head: head.replace(" ", "-") for head in {*OWN_HEADS, "test error"} if " " in head}
"""Heads of several words, as one word each."""
SINGLE = 0.05
"""Assumed spread of a test error in a table with one run only."""


def printed(command: str, home: Path) -> str:
    """The output of a command on a terminal of `COLUMNS` columns. Raises RuntimeError if it fails."""
    environment = {**os.environ, "COLUMNS": str(COLUMNS), "FEDCORE_HOME": str(home), "TERM": "dumb"}
    words = command.removeprefix("$ fedcore ").partition("  #")[0]
    done = subprocess.run(
        f"{sys.executable} -m flows.commands.app {words}",
        shell=True,
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise RuntimeError(f"{command}: exit code {done.returncode}\n{done.stderr}")
    return "".join(f"{line.rstrip()}\n" for line in done.stdout.rstrip().splitlines())


def differences(old: str, new: str) -> Iterator[str]:
    """Differences between a transcript and the command's present output."""
    was, now = old.splitlines(), new.splitlines()
    if len(was) != len(now):
        yield f"{len(was)} lines became {len(now)}"
        return
    head: list[str] = []
    for before, after in zip(was, now, strict=True):
        if "test error" in before:
            head = _cells(before)
        one, other = _cells(before), _cells(after)
        if head and len(one) == len(other) == len(head) and one[0] != "method":
            yield from _of_row(dict(zip(head, one, strict=True)), dict(zip(head, other, strict=True)))
        elif one != other:
            yield f"{before.strip()!r} became {after.strip()!r}"


def _cells(line: str) -> list[str]:
    for head, word in HEADS.items():
        line = line.replace(head, word)
    return line.split()


def _of_row(before: dict[str, str], after: dict[str, str]) -> Iterator[str]:
    spreads = [float(row["spread"]) for row in (before, after) if row.get("spread", "-") != "-"]
    noise = before.get("accounted", "-") != "-"
    for key, value in before.items():
        if key in ("seconds", "spread") or value == after[key]:
            continue
        error = key in ("test-error", "by-silo")
        if error and noise and abs(float(value) - float(after[key])) <= 4 * max([*spreads, SINGLE]):
            continue
        yield f"{key} of {' '.join(before.values())}: {value} became {after[key]}"


def main(arguments: list[str]) -> int:
    """Rewrites the transcripts, or with `--check` prints the differences; returns the exit status."""
    check = "--check" in arguments
    named = [Path(each).resolve() for each in arguments if each != "--check"]
    if unknown := set(named) - set(PAGES):
        print(f"{min(unknown)}: no page of README.md or docs")
        return 2
    count = 0
    for page in named or PAGES:
        with tempfile.TemporaryDirectory() as folder:
            found = list(_differing(page, Path(folder) / "home", check))
        count += len(found)
        for difference in found:
            print(f"{page.relative_to(ROOT)}: {difference}")
    return int(check and count > 0)


def _differing(page: Path, home: Path, check: bool) -> Iterator[str]:
    """Differences between a page and its commands' present output; without `check`, writes the page."""
    before = text = page.read_text()
    for command, old in BLOCK.findall(before):
        new = printed(command, home)
        yield from (f"{command}: {difference}" for difference in differences(old, new))
        text = text.replace(f"{command}\n{old}```", f"{command}\n{new}```")
    if check or text == before:
        return
    page.write_text(text)
    for plot in home.glob("sweeps/*/plot.png"):
        shutil.copyfile(plot, ROOT / "docs" / "images" / f"{plot.parent.name.rpartition('-')[0]}.png")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
