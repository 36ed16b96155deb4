"""Mounts that let other users read this installation where it lies below a folder that is closed to them.

A clone in a home folder of mode 0700 cannot be read by the users of the parties. In the mount namespace of a party, an
empty folder then covers the closed one. It contains the installation alone, at its own path.
"""

from __future__ import annotations

import os
import shlex
import stat
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def installation() -> list[Path]:
    """Folders of this repository, the interpreter and the packages, of which none is below another."""
    places = [str(ROOT), sys.prefix, sys.base_prefix, *(place for place in sys.path if os.path.isdir(place))]
    found: list[Path] = []
    for path in sorted({Path(os.path.realpath(place)) for place in places} | {Path(place) for place in places}):
        if path.is_absolute() and path != Path("/") and not any(path.is_relative_to(other) for other in found):
            found.append(path)
    return found


def closed_above(path: Path) -> Path | None:
    """The outermost folder above `path` that others cannot pass; None if they reach it."""
    above = reversed(path.parents)
    return next((folder for folder in above if not folder.stat().st_mode & stat.S_IXOTH), None)


def mounts(places: Iterable[Path], stash: Path) -> str | None:
    """A shell script that makes `places` reachable for all users of its mount namespace; None if they are.

    `stash`: an empty folder, below no closed one.
    """
    closed: dict[Path, list[Path]] = {}
    for place in places:
        if (folder := closed_above(place)) is not None:
            closed.setdefault(folder, []).append(place)
    if not closed:
        return None
    hidden = [place for inner in closed.values() for place in inner]
    numbered = {place: stash / str(number) for number, place in enumerate(hidden)}
    lines = ["set -e", "umask 022", f"mount -t tmpfs -o mode=755 tmpfs {_quoted(stash)}"]
    for place, kept in numbered.items():
        lines += [f"mkdir {_quoted(kept)}", f"mount --rbind {_quoted(place)} {_quoted(kept)}"]
    for folder, inner in closed.items():
        lines.append(f"mount -t tmpfs -o mode=755 tmpfs {_quoted(folder)}")
        for place in inner:
            lines += [f"mkdir -p {_quoted(place)}", f"mount --rbind {_quoted(numbered[place])} {_quoted(place)}"]
    return "\n".join([*lines, "umask 077"])


def _quoted(path: Path) -> str:
    return shlex.quote(str(path))
