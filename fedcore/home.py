"""The home: the folder of this machine with a project's runs, silos and services."""

from __future__ import annotations

import glob
import os
import pwd
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from fedcore.errors import InputError
from fedcore.paths import Anchor
from fedcore.process.private_files import make_private, narrowed


class LedgerFolders(NamedTuple):
    """Folders of a machine's durable ledgers and of their anchors."""

    ledgers: Path
    anchors: Path

    @classmethod
    def below(cls, root: Path) -> LedgerFolders:
        """Both below one root."""
        return cls(root / "ledgers", root / "anchors")

    def of(self, version: str, silo: str) -> tuple[Path, Path]:
        """Ledger and anchor of a silo's data set version."""
        return self.ledgers / version / f"{silo}.sqlite", self.anchors / version / f"{silo}.anchor"

    def found(self, silo: str | None = None) -> list[tuple[str, str]]:
        """(version, silo) of existing ledgers, anchors and keys, by silo, then version."""
        pattern = "*" if silo is None else glob.escape(silo)
        paths = list(self.ledgers.glob(f"*/{pattern}.sqlite"))
        paths += [path for suffix in ("anchor", "key") for path in self.anchors.glob(f"*/{pattern}.{suffix}")]
        # Versions are random ids, and one silo's versions belong side by side.
        return sorted({(path.parent.name, path.stem) for path in paths}, key=lambda found: found[::-1])


def caches() -> Path:
    """Folder of this machine's caches, which all homes share; may be deleted at any time."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fedcore"


def register_folder() -> Path:
    """The operator's folder for silos' account registers (`fedcore.ledger.operator.register`).

    FEDCORE_REGISTER of the process that opens silos names it; else it lies in the account's home folder. That folder
    comes from the password database, since anybody can set HOME. No home, config, spec or message can change it.
    """
    named = os.environ.get("FEDCORE_REGISTER")
    if named:
        return Path(named).absolute()
    return Path(pwd.getpwuid(os.geteuid()).pw_dir) / ".local" / "share" / "fedcore" / "registers"


class _Part:
    """A folder or file at the top of a home; any other entry there is foreign (`Home.strange`)."""

    def __init__(self, *path: str, variable: str | None = None) -> None:
        """`variable`: an environment variable that may name another place."""
        self.name, self._path, self._variable = path[0], path, variable

    def __get__(self, home: Home, _: type[Home]) -> Path:
        within = home.root.joinpath(*self._path)
        return within if self._variable is None else Path(os.environ.get(self._variable, within)).absolute()

    def holds(self, name: str) -> bool:
        """Checks whether an entry is this part or its lock, journal or partial file."""
        return name == self.name or name.startswith((f"{self.name}.", f"{self.name}-"))


@dataclass(frozen=True)
class Home:
    """The folder tree below one root; every path that the project writes to is named here."""

    root: Path

    runs = _Part("runs")
    sweeps = _Part("sweeps")
    statistics = _Part("statistics")
    silos = _Part("silos")
    ledgers = _Part("ledgers")
    anchors = _Part("anchors", variable="FEDCORE_ANCHORS")
    """Anchors and keys of durable ledgers; the variable names another folder, best on another disk."""
    policies = _Part("policies", variable="FEDCORE_POLICIES")
    """Policies of the silos that this process opens; the variable names another folder."""
    decisions = _Part("decisions")
    """Decisions of the silos' operators about single runs."""
    sigmas = _Part("cache", "sigma")
    """Cache of calibrated noise; may be deleted at any time."""
    optima = _Part("cache", "optimum")
    """Cache of the least losses of problems; may be deleted at any time."""
    failures = _Part("failures")
    """Logs of unforeseen exceptions of commands."""
    services = _Part("services")
    federations = _Part("federations")
    """Federations whose coordinator is here: keys, cards, and the list of members."""
    memberships = _Part("memberships")
    """Silos of this machine that joined a federation: keys, schema, and the relay's address."""
    relay = _Part("relay")
    """Default folders of `fedcore relay`, one for each federation."""
    shuffler = _Part("shuffler")
    """Default folder of `fedcore shuffler`."""
    reproductions = _Part("reproductions")
    prefect = _Part("prefect")
    mlflow_database = _Part("mlflow.db")
    mlflow_artifacts = _Part("mlflow-artifacts")

    @classmethod
    def current(cls) -> Home:
        """The home named by the variable FEDCORE_HOME, else `.fedcore` in the working folder."""
        return cls(Path(os.environ.get("FEDCORE_HOME", ".fedcore")).absolute())

    @property
    def anchor(self) -> Anchor:
        """Folders relative to which ids, and the configs stored in this home, name files."""
        return Anchor.of(self.root)

    @property
    def ledger_folders(self) -> LedgerFolders:
        return LedgerFolders(self.ledgers, self.anchors)

    @property
    def cluster_keys(self) -> Path:
        """Key and certificate of the Dask cluster of `fedcore up`, in a private folder."""
        return self.services / "tls" / "cluster.pem"

    def public(self, name: str) -> Path:
        """The folder of a public data set. Raises KeyError for one that `PUBLIC` lacks."""
        if name not in PUBLIC:
            raise KeyError(name)
        return self.root / name

    @property
    def mlflow_uri(self) -> str:
        return f"sqlite:///{self.mlflow_database}"

    def check(self) -> Home:
        """Returns itself, existing or not. Raises InputError if it is, or lies below, a file."""
        nearest = next(place for place in (self.root, *self.root.parents) if os.path.exists(place))
        if not nearest.is_dir():
            raise InputError(f"run folder {self.root}: {nearest} is a file; set FEDCORE_HOME to a folder")
        return self

    def make(self) -> Home:
        """Creates the root, checks by a write that it is writable, and returns itself.

        Raises InputError otherwise, and then removes the folders that it created.
        """
        missing = self.check()._missing()
        try:
            make_private(self.root)
            self.closed()
            probe = self.root / f"{_PROBE}{os.getpid()}"
            try:
                with open(probe, "wb") as file:
                    file.write(b"\0" * 4096)
                    file.flush()
                    os.fsync(file.fileno())
            finally:
                probe.unlink(missing_ok=True)
        except OSError as error:
            _remove_empty(missing)
            raise InputError(
                f"run folder {self.root}: cannot be written ({error.strerror}); "
                "free some space, change its permissions, or set FEDCORE_HOME to another folder"
            ) from error
        return self

    def closed(self) -> bool:
        """Makes a home private that other accounts could read; returns whether it was one.

        A folder with foreign entries keeps its permissions, since it is not fedcore's alone; the home's own folders
        in it are private.
        """
        try:
            ours = not self.root.stat().st_mode & stat.S_ISVTX and not self.strange()
        except OSError:
            return False
        return ours and narrowed(self.root)

    def strange(self) -> list[str]:
        """Names of the foreign entries at the top of the root. Raises OSError."""
        parts = [part for part in vars(Home).values() if isinstance(part, _Part)]
        return sorted(
            name
            for name in os.listdir(self.root)
            if name not in PUBLIC and not name.startswith(_PROBE) and not any(part.holds(name) for part in parts)
        )

    @contextmanager
    def begun(self) -> Iterator[Home]:
        """`make`, around the checks before a run: an error removes a root that is new and empty."""
        missing = self._missing()
        try:
            yield self.make()
        except BaseException:
            _remove_empty(missing)
            raise

    def _missing(self) -> list[Path]:
        """Those of the root and its parent folders that do not exist yet, the innermost first."""
        return [place for place in (self.root, *self.root.parents) if not place.exists()]


_PROBE = ".writable-"
PUBLIC = frozenset(
    {
        "mnist",
        "emnist-digits",
        "emnist-mnist",
        "emnist-balanced",
        "insurance",
        "california",
        "gas-turbine",
        "blog-feedback",
        "covertype",
        "kdd99",
    }
)
"""Names of public data sets: a person may put their files into a home, in a folder of this name."""


def _remove_empty(folders: Iterable[Path]) -> None:
    for folder in folders:
        with suppress(OSError):
            folder.rmdir()
