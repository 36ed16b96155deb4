"""Where a project keeps its runs, silos and services on this machine."""

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
from fedcore.private_files import make_private, narrowed


class LedgerFolders(NamedTuple):
    """Where a machine keeps durable ledgers, and where their anchors."""

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
        """(version, silo) of all ledgers, anchors and keys that are there, or of one silo's, by silo, then version."""
        pattern = "*" if silo is None else glob.escape(silo)
        paths = list(self.ledgers.glob(f"*/{pattern}.sqlite"))
        paths += [path for suffix in ("anchor", "key") for path in self.anchors.glob(f"*/{pattern}.{suffix}")]
        # Versions are random ids, and one silo's versions belong side by side.
        return sorted({(path.parent.name, path.stem) for path in paths}, key=lambda found: found[::-1])


def caches() -> Path:
    """Where this machine keeps what any home may be made from; may be deleted at any time."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fedcore"


def register_folder() -> Path:
    """Where this machine's operator keeps the register of silos' accounts (`fedcore.ledger.register`).

    FEDCORE_REGISTER, of the environment of the process that opens silos, else a folder of the operating system's
    account: the password database says where that is, since HOME is what anybody sets. No home, config, spec or message
    has a part in it.
    """
    named = os.environ.get("FEDCORE_REGISTER")
    if named:
        return Path(named).absolute()
    return Path(pwd.getpwuid(os.geteuid()).pw_dir) / ".local" / "share" / "fedcore" / "registers"


@dataclass(frozen=True)
class Home:
    """The folder tree below one root; every path that the project writes to is named here."""

    root: Path

    @classmethod
    def current(cls) -> Home:
        """The home named by the environment variable FEDCORE_HOME, else `.fedcore` in the working folder."""
        return cls(Path(os.environ.get("FEDCORE_HOME", ".fedcore")).absolute())

    @property
    def runs(self) -> Path:
        return self.root / "runs"

    @property
    def sweeps(self) -> Path:
        return self.root / "sweeps"

    @property
    def statistics(self) -> Path:
        return self.root / "statistics"

    @property
    def silos(self) -> Path:
        return self.root / "silos"

    @property
    def ledgers(self) -> Path:
        return self.root / "ledgers"

    @property
    def anchors(self) -> Path:
        """Anchors and keys of durable ledgers: FEDCORE_ANCHORS names a folder elsewhere, best on another disk."""
        return Path(os.environ.get("FEDCORE_ANCHORS", self.root / "anchors")).absolute()

    @property
    def policies(self) -> Path:
        """Policies of the silos that this process opens: FEDCORE_POLICIES names a folder elsewhere."""
        return Path(os.environ.get("FEDCORE_POLICIES", self.root / "policies")).absolute()

    @property
    def ledger_folders(self) -> LedgerFolders:
        return LedgerFolders(self.ledgers, self.anchors)

    @property
    def sigmas(self) -> Path:
        """Noise that was searched for before; may be deleted at any time."""
        return self.root / "cache" / "sigma"

    @property
    def failures(self) -> Path:
        """Logs of what no command foresaw."""
        return self.root / "failures"

    @property
    def services(self) -> Path:
        return self.root / "services"

    @property
    def cluster_keys(self) -> Path:
        """Key and certificate of the Dask cluster of `fedcore up`, in a folder that only this account can enter."""
        return self.services / "tls" / "cluster.pem"

    @property
    def prefect(self) -> Path:
        return self.root / "prefect"

    @property
    def mlflow_database(self) -> Path:
        return self.root / "mlflow.db"

    @property
    def mlflow_uri(self) -> str:
        return f"sqlite:///{self.mlflow_database}"

    @property
    def mlflow_artifacts(self) -> Path:
        return self.root / "mlflow-artifacts"

    def check(self) -> Home:
        """Itself, whether there is such a folder yet or not. Raises InputError if it is, or lies below, a file."""
        nearest = next(place for place in (self.root, *self.root.parents) if os.path.exists(place))
        if not nearest.is_dir():
            raise InputError(f"run folder {self.root}: {nearest} is a file; set FEDCORE_HOME to a folder")
        return self

    def make(self) -> Home:
        """Creates the root and checks that it can be written; returns itself. Raises InputError otherwise, and leaves
        no folder that was not there."""
        missing = self.check()._missing()
        try:
            make_private(self.root)
            self.closed()
            probe = self.root / f".writable-{os.getpid()}"
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
        """Takes a home that other accounts could read from them, and says whether it was one.

        A folder that holds anything else than a home does is not ours to change: there its own folders are private.
        """
        try:
            ours = not self.root.stat().st_mode & stat.S_ISVTX and all(map(_of_a_home, os.listdir(self.root)))
        except OSError:
            return False
        return ours and narrowed(self.root)

    @contextmanager
    def begun(self) -> Iterator[Home]:
        """`make`, for what is looked at before work begins: after an error a root that is new and empty is gone again.
        """
        missing = self._missing()
        try:
            yield self.make()
        except BaseException:
            _remove_empty(missing)
            raise

    def _missing(self) -> list[Path]:
        """The root and the folders that it is in, as far as they are not there yet, the innermost first."""
        return [place for place in (self.root, *self.root.parents) if not place.exists()]


_NAMES = (
    "blog-feedback", "california", "covertype", "emnist", "fashion", "gas-turbine", "insurance", "kdd99", "mnist",
    "anchors", "cache", "failures", "ledgers", "mlflow", "policies", "prefect", "reproductions", "runs", "services",
    "shuffler", "silos", "site.log", "statistics", "sweeps", ".writable-",
)  # fmt: skip
"""How the names of what a home holds begin."""


def _of_a_home(name: str) -> bool:
    return name.startswith(_NAMES)


def _remove_empty(folders: Iterable[Path]) -> None:
    for folder in folders:
        with suppress(OSError):
            folder.rmdir()
