"""The file of a silo's policy: YAML in a folder at the silo, by the silo's name, or one for all silos of the machine.

The environment of the process that opens the silo names the folder (`Home.policies`). A driver's messages have no
influence on it.
"""

from __future__ import annotations

import os
from pathlib import Path

from fedcore.configfile.reading import read_yaml, validated
from fedcore.errors import InputError, SiloError
from fedcore.home import Home
from fedcore.silo.policies.policy import Policy

EXAMPLE = "conf/policy/hospital.yaml"
DEFAULT = "default"
"""Name of the file for silos that have none of their own; a silo of this name has it as its own."""


def read_policy(path: Path) -> Policy:
    """The policy in a file. Raises InputError with one line per fault: file, key and fix."""
    if not _exists(path):
        raise InputError(f"there is no policy {path}; {EXAMPLE} is an example with every key explained")
    return validated(Policy, read_yaml(path, ()), str(path))


def policy_path(silo: str) -> Path | None:
    """The file of a silo's policy: its own, else the machine's, else None.

    Raises OSError if that cannot be determined, and ValueError for a name that is no file name.
    """
    if not silo or Path(silo).name != silo:
        raise ValueError(f"{silo!r} is not the name of a file")
    folder = Home.current().policies
    if "FEDCORE_POLICIES" in os.environ and not folder.is_dir():
        # A disk that is not mounted must not make silos unguarded.
        raise NotADirectoryError(f"FEDCORE_POLICIES = {folder} is not a folder")
    return next((path for name in (silo, DEFAULT) if _exists(path := folder / f"{name}.yaml")), None)


def policy_of(silo: str, guarded: bool) -> Policy | None:
    """The policy of a silo that is opened: one if it is guarded, None if it is simulated.

    Raises SiloError if a guarded silo has none, if a silo with one is opened unguarded, and if the file cannot be read.
    The error does not contain the file's faults: a driver may see it.
    """
    policy, readable = None, True
    try:
        path = policy_path(silo)
        policy = None if path is None else read_policy(path)
    except Exception:
        readable = False
    if not readable:
        raise SiloError(
            silo, "policy", f"its policy cannot be read; `fedcore policy show {silo}` tells its operator what is wrong"
        )
    if policy is None and guarded:
        folder = Home.current().policies
        raise SiloError(
            silo,
            "policy",
            f"it is guarded and has no policy of what runs may ask for: its operator writes {folder / silo}.yaml, or "
            f"{DEFAULT}.yaml beside it for all silos of that machine; {EXAMPLE} is one to copy, every key explained",
        )
    if policy is not None and not guarded:
        raise SiloError(
            silo,
            "policy",
            "it has a policy, so it is never opened unguarded: use privacy.noise = guarded with privacy.ledger = "
            "sqlite; simulations run in another FEDCORE_HOME",
        )
    return policy


def _exists(path: Path) -> bool:
    """True if this name exists, even as a dangling link. Raises OSError if that cannot be determined."""
    try:
        os.lstat(path)
    except FileNotFoundError:
        return False
    return True
