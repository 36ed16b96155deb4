"""Decisions of a silo's operator: about single runs, and to pause the silo. A folder at the silo holds them as files.

A decision on a run is bound to the run's terms (`agreement.terms`): another plan, method or loss needs another one. A
file that cannot be read refuses.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, NamedTuple

from pydantic import ConfigDict, Field, TypeAdapter

from fedcore.bounded_file import read_within
from fedcore.errors import InputError, SiloError
from fedcore.home import Home
from fedcore.ledger.anchor import write_whole
from fedcore.limits import LARGEST_AGREEMENT
from fedcore.process.private_files import make_private

UNDECIDED, PAUSED = "undecided", "paused"
"""Codes of refusals that end by themselves when the operator decides, or ends the pause."""
MOST_ASKED = 64
"""Runs that wait for a decision at most: a coordinator that invents runs must not fill the disk."""
_LARGEST_VERDICT = 2**12
_ASKED, _DECIDED, _PAUSE = "asked", "decided", "paused"

_VERDICT = TypeAdapter(
    tuple[str, Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None, Annotated[str, Field(max_length=40)]],
    config=ConfigDict(strict=True),
)


class Verdict(NamedTuple):
    """A decision: the run, the terms (64 hex) that it may have, and its time in UTC. None: it is refused."""

    run: str
    terms: str | None
    when: str


class Decisions:
    """The decisions about the silo `silo`, in `folder`. Its service reads them anew for every answer."""

    def __init__(self, folder: Path, silo: str) -> None:
        self.folder, self._silo = folder, silo

    @classmethod
    def of(cls, silo: str) -> Decisions:
        """The decisions of this machine's operator about a silo."""
        return cls(Home.current().decisions / silo, silo)

    def check_asked(self, run: str, terms: str, by_person: bool, agreement: Callable[[], bytes]) -> None:
        """Raises SiloError for a new run while the silo is paused, and unless its operator lets it begin.

        `by_person`: the operator decides on every run; then `agreement` is kept until that has happened.
        """
        self._check_pause(run)
        if not self._allows(run, terms, by_person):
            self._keep(run, agreement())
            raise self._undecided(run, terms)

    def check_answer(self, run: str, terms: str, by_person: bool) -> None:
        """Raises SiloError for a new answer in a run that is refused or undecided, and in a paused silo."""
        self._check_pause(run)
        if not self._allows(run, terms, by_person):
            raise self._undecided(run, terms)

    def verdict(self, run: str) -> Verdict | None:
        """The decision about a run; None if there is none. Raises InputError for a file that cannot be read."""
        path = self.folder / _DECIDED / _named(run)
        try:
            found = Verdict(*_VERDICT.validate_json(read_within(path, _LARGEST_VERDICT)))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise InputError(f"{path}: it cannot be read ({error.strerror})") from None
        except ValueError:
            raise InputError(f"{path}: it is no decision about a run; delete it, and decide again") from None
        if found.run != run:
            raise InputError(f"{path}: it is the decision about another run; delete it, and decide again")
        return found

    def decide(self, run: str, terms: str | None) -> None:
        """Allows a run these terms; None: refuses it. It replaces an earlier decision. Raises InputError."""
        verdict = [run, terms, datetime.now(UTC).isoformat(timespec="seconds")]
        self._write(self.folder / _DECIDED / _named(run), json.dumps(verdict).encode())
        self._delete(self.folder / _ASKED / _named(run))

    def withdraw(self, run: str) -> None:
        """Takes a decision back, as if it had never been taken. Raises InputError."""
        self._delete(self.folder / _DECIDED / _named(run))

    def asked(self) -> list[bytes]:
        """Agreements of the runs that wait for a decision, as they came. Raises InputError."""
        found = []
        for path in sorted((self.folder / _ASKED).glob("*.json")):
            try:
                found.append(read_within(path, LARGEST_AGREEMENT))
            except OSError as error:
                raise InputError(f"{path}: it cannot be read ({error.strerror})") from None
        return found

    @property
    def paused(self) -> bool:
        """True while the silo answers nothing new; also if that cannot be determined."""
        try:
            (self.folder / _PAUSE).lstat()
        except FileNotFoundError:
            return False
        except OSError:
            return True
        return True

    def pause(self, begins: bool) -> None:
        """Begins or ends a pause. Raises InputError if it cannot be written."""
        if begins:
            self._write(self.folder / _PAUSE, b"")
        else:
            self._delete(self.folder / _PAUSE)

    def _keep(self, run: str, agreement: bytes) -> None:
        path = self.folder / _ASKED / _named(run)
        try:
            known = path.exists() and read_within(path, LARGEST_AGREEMENT) == agreement
            if not known and sum(1 for _ in (self.folder / _ASKED).glob("*.json")) >= MOST_ASKED + path.exists():
                raise SiloError(
                    self._silo, UNDECIDED, f"{MOST_ASKED} runs wait for its operator's decision, and no more are kept"
                )
            if not known:
                self._write(path, agreement)
            return
        except (OSError, InputError):
            pass
        raise SiloError(self._silo, UNDECIDED, "its operator decides on each run, and it cannot keep the question")

    def _allows(self, run: str, terms: str, by_person: bool) -> bool:
        """False if the operator has to decide on these terms. Raises SiloError for a refused run."""
        try:
            verdict, readable = self.verdict(run), True
        except InputError:
            verdict, readable = None, False
        if not readable:
            raise SiloError(self._silo, UNDECIDED, f"its operator's decision on run {run} cannot be read")
        if verdict is not None and verdict.terms is None:
            raise SiloError(self._silo, "policy", f"its operator has refused run {run} ({verdict.when})")
        return not by_person or (verdict is not None and verdict.terms == terms)

    def _check_pause(self, run: str) -> None:
        if self.paused:
            raise SiloError(self._silo, PAUSED, f"its operator has paused it, and run {run} asks for something new")

    def _undecided(self, run: str, terms: str) -> SiloError:
        sentence = (
            f"its operator has not decided yet on run {run} with terms {terms[:12]}: `fedcore silo approve {run}`"
        )
        return SiloError(self._silo, UNDECIDED, sentence)

    @staticmethod
    def _write(path: Path, data: bytes) -> None:
        try:
            make_private(path.parent)
            write_whole(path, data)
        except OSError as error:
            raise InputError(f"{path}: it cannot be written ({error.strerror})") from None

    @staticmethod
    def _delete(path: Path) -> None:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise InputError(f"{path}: it cannot be deleted ({error.strerror})") from None


def _named(run: str) -> str:
    """A file's name for a run, whose id may have any printable characters."""
    return hashlib.sha256(run.encode()).hexdigest()[:32] + ".json"
