"""Errors for an installation without the command line's packages: a missing extra, or a name clash."""

from __future__ import annotations

import os
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from re import match

from fedcore.process.import_path import PACKAGES, PROJECT

DISTRIBUTION = "fedcore-dp"
"""The name of this project for pip; its import names are `PACKAGES`."""

EXTRA = "workflow"
"""The extra that brings Prefect, Dask and MLflow. A silo needs none of them."""


def complaint(error: ImportError) -> str | None:
    """The error text for an import that failed because of the installation; None for any other failure."""
    module = (error.name or "").partition(".")[0]
    if module in PACKAGES:
        owners, found = packages_distributions().get(module, []), str(error.path or "")
        if not isinstance(error, ModuleNotFoundError) and _is_ours(found) and not _others(owners):
            return None  # our own file, and no other project's: a fault of fedcore
        return clash(module, owners, found)
    if _canonical(module) in _of_extra():
        return (
            f"the command line needs the package {module!r}, which is not installed here; "
            f"`pip install '{DISTRIBUTION}[{EXTRA}]'` brings it"
        )
    return None


def clash(package: str, distributions: Iterable[str], found: str) -> str:
    """The error text for a package of another project under a name of ours."""
    others = _others(distributions)
    owner = f"the distribution {others[0]!r} installs one too" if others else "another project's was found"
    place = f" ({os.path.dirname(found)})" if found and not _is_ours(found) else ""
    return (
        f"fedcore has a top-level package {package!r}, and {owner}{place}; "
        f"install {DISTRIBUTION} into an environment of its own"
    )


def _others(distributions: Iterable[str]) -> list[str]:
    # An older checkout was called `fedcore`, and may have left its metadata in the folder.
    return sorted({name for name in distributions if _canonical(name) not in (DISTRIBUTION, "fedcore")})


def _is_ours(file: str) -> bool:
    return file.startswith(PROJECT + os.sep)


def _of_extra() -> set[str]:
    """Distributions that the extra brings, in pip's canonical names; empty where fedcore is not installed."""
    try:
        lines: Iterable[str] = requires(DISTRIBUTION) or []
    except PackageNotFoundError:
        return set()
    found = (match(r"([A-Za-z0-9._-]+).*;.*\bextra\s*==\s*['\"]" + EXTRA + "['\"]", line) for line in lines)
    return {_canonical(part[1]) for part in found if part}


def _canonical(name: str) -> str:
    return name.lower().replace("_", "-")
