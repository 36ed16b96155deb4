"""Paths of configurations: resolution, and the name of a file or folder in a run's identity.

Reading a config makes its paths absolute, since other processes have other working folders. Ids and stored configs
name the resolved path, whichever way it was typed: links are followed. Paths below the folder that holds the home are
relative to it, so a project that moves with its home keeps its runs. No file is read: a digest of records in a public
id would be a release.
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
"""Prefix of the name of a path in the home; no resolved path begins so."""


def absolute(path: str) -> str:
    """The absolute path, from the current working folder; `~` is the user's home folder.

    Follows `..` after a link as the operating system does. Raises ValueError for an empty path.
    """
    if not path.strip():
        raise ValueError("names no file and no folder: leave it out, or give a path")
    if path == "~" or path.startswith("~/"):
        path = os.path.expanduser(path)
    plain = os.path.abspath(path)
    # `link/..` is the folder above the link's target, which taking `..` off the text misses.
    followed = os.path.realpath(path) if ".." in path.split("/") else None
    found = plain if followed is None or os.path.realpath(plain) == followed else followed
    return "/" + found.lstrip("/")  # POSIX leaves two slashes at the start, which `HOME` has too


class _Mark:
    """Annotation that distinguishes paths from other texts among the fields of a config."""


LocalPath = Annotated[str, AfterValidator(absolute), _Mark()]
"""A field of a config that names a file or a folder of this machine."""


@cache
def path_keys(section: type[BaseModel]) -> frozenset[str]:
    """Dotted keys of all `LocalPath` fields of a section and those in it; lists add no part."""
    return frozenset(_found(section, ""))


def with_paths(values: Any, keys: frozenset[str], change: Callable[[str], str], at: str = "") -> Any:
    """A copy of plain config values, nested or by dotted keys, with `change` of texts at `keys`."""
    if isinstance(values, Mapping):
        return {
            key: with_paths(value, keys, change, f"{at}.{key}" if at else str(key)) for key, value in values.items()
        }
    if isinstance(values, list | tuple):
        return [with_paths(value, keys, change, at) for value in values]
    return change(values) if isinstance(values, str) and at in keys else values


def resolved(path: str) -> str:
    """The path without links, in composed Unicode (NFC) if that names the same file or folder."""
    return "/" + _composed(os.path.realpath(path)).lstrip("/")


@dataclass(frozen=True)
class Anchor:
    """The folders to which names are relative, resolved: a home, and its parent `project`."""

    home: str
    project: str

    @classmethod
    def of(cls, home: str | os.PathLike[str]) -> Anchor:
        found = resolved(os.fspath(home))
        return cls(found, os.path.dirname(found))

    def names(self) -> Callable[[str], str]:
        """A function from paths to names for one config; it resolves each folder only once.

        A path's name is `//x` for x in the home, `x` for x in the project, else the resolved path.
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
        """The path that has this name; an absolute path stays as it is."""
        if name.startswith(HOME):
            return os.path.join(self.home, name[len(HOME) :])
        return os.path.join(self.project, name)


def _below(folder: str, path: str) -> str | None:
    """The path relative to the folder; None if it lies outside."""
    start = folder if folder.endswith("/") else f"{folder}/"
    return path[len(start) :] if path.startswith(start) else "." if path == folder else None


def _composed(path: str) -> str:
    """The path in NFC, if the file system treats both as one."""
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
