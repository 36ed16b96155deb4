"""Paths of configurations: where they lead, and the name of that place in a run's identity.

A path is absolute from the moment a config is read, since other processes have other working folders. In ids, and where
a config is kept, it stands for its resolved place, whichever way it was typed: links are followed, and what lies below
the folder that holds the home is named from there, so a project that moves with its home keeps its runs. No file is
read: a digest of records in an id that is shown would be a release.
"""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, get_args

from pydantic import AfterValidator, BaseModel

HOME = "//"
"""Begins the name of a place in the home; no resolved path begins so."""


def absolute(path: str) -> str:
    """The path from the root, in the working folder of now, as the operating system follows it. `~`: the user's home.

    Raises ValueError for an empty path.
    """
    if not path.strip():
        raise ValueError("names no file and no folder: leave it out, or give a path")
    if path == "~" or path.startswith("~/"):
        path = os.path.expanduser(path)
    plain = os.path.abspath(path)
    # `link/..` is the folder above the link's target, which taking `..` off the text misses.
    followed = os.path.realpath(path) if ".." in path.split("/") else None
    found = plain if followed is None or os.path.realpath(plain) == followed else followed
    return "/" + found.lstrip("/")  # two slashes are one place, and POSIX lets them stay


class _Mark:
    """Tells paths from other texts among the fields of a config."""


LocalPath = Annotated[str, AfterValidator(absolute), _Mark()]
"""A field of a config that names a file or a folder of this machine."""


@cache
def path_keys(section: type[BaseModel]) -> frozenset[str]:
    """Dotted keys of all fields, of the section and what is in it, that are a `LocalPath`; lists add nothing."""
    return frozenset(_found(section, ""))


def with_paths(values: Any, keys: frozenset[str], change: Callable[[str], str], at: str = "") -> Any:
    """A copy of a config's plain values, nested or by dotted keys, with `change` of every text at one of `keys`."""
    if isinstance(values, Mapping):
        return {
            key: with_paths(value, keys, change, f"{at}.{key}" if at else str(key)) for key, value in values.items()
        }
    if isinstance(values, list | tuple):
        return [with_paths(value, keys, change, at) for value in values]
    return change(values) if isinstance(values, str) and at in keys else values


def resolved(path: str) -> str:
    """The path of the same file or folder without links, in composed Unicode where that names it too."""
    return "/" + _composed(os.path.realpath(path)).lstrip("/")


@dataclass(frozen=True)
class Anchor:
    """The folders from which places are named: a home, and the one that holds it, both resolved."""

    home: str
    project: str

    @classmethod
    def of(cls, home: str | os.PathLike[str]) -> Anchor:
        found = resolved(os.fspath(home))
        return cls(found, os.path.dirname(found))

    def names(self) -> Callable[[str], str]:
        """Names places for one config: folders of hundreds of files are looked at once.

        A path's name is `//x` of x in the home, `x` of x beside it, else the resolved path.
        """
        folders: dict[str, str] = {}

        def name(path: str) -> str:
            folder, file = os.path.split(path)
            if folder not in folders:
                folders[folder] = resolved(folder)
            found = os.path.join(folders[folder], file)
            if file in ("", ".", "..") or not file.isascii() or os.path.islink(found):
                found = resolved(path)
            if (inside := _below(self.home, found)) is not None:
                return HOME + inside
            beside = _below(self.project, found)
            return found if beside is None else beside

        return name

    def path(self, name: str) -> str:
        """The path of a name; what is no name yet but absolute stays."""
        if name.startswith(HOME):
            return os.path.join(self.home, name[len(HOME) :])
        return os.path.join(self.project, name)


def _below(folder: str, path: str) -> str | None:
    """The path from the folder; None if it is not in it."""
    start = folder if folder.endswith("/") else f"{folder}/"
    return path[len(start) :] if path.startswith(start) else "." if path == folder else None


def _composed(path: str) -> str:
    """The path in NFC, if the file system takes both for one."""
    if path.isascii() or unicodedata.is_normalized("NFC", path):
        return path
    other = unicodedata.normalize("NFC", path)
    try:
        return other if os.path.samefile(path, other) else path
    except OSError:
        return path


def _found(section: type[BaseModel], at: str) -> Iterator[str]:
    for key, field in section.model_fields.items():
        name = f"{at}.{key}" if at else key
        if any(isinstance(each, _Mark) for each in field.metadata):
            yield name
        yield from _in_annotation(field.annotation, name)


def _in_annotation(annotation: Any, name: str) -> Iterator[str]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield from _found(annotation, name)
    for part in get_args(annotation):
        if isinstance(part, _Mark):
            yield name
        else:
            yield from _in_annotation(part, name)
