"""A site's own log: a line for the start and the end of each answer; without it no answer is sent."""

from __future__ import annotations

import contextlib
import os
import weakref
from pathlib import Path

from fedcore.errors import SiloError
from fedcore.messages import Query
from fedcore.silo.question import RoundQuestion


class SiteLog:
    """The file `path`, open for appending. Raises SiloError, naming `silo`, if it cannot be opened."""

    def __init__(self, silo: str, path: Path) -> None:
        self._file = _opened(silo, path)
        self._closing = weakref.finalize(self, os.close, self._file)

    def note(self, step: str, question: Query | RoundQuestion, silo: str, computed: int) -> None:
        """Appends process, `step` (begin or end), address of the question, silo and its number of computed answers.

        Raises SiloError if the line cannot be written.
        """
        line = f"{os.getpid()} {step} {question.run} {question.phase} {question.round} {silo} {computed}\n"
        written = False
        with contextlib.suppress(OSError):
            written = os.write(self._file, line.encode()) == len(line.encode())
        if not written:
            raise SiloError(silo, "log", "its site's log could not be written; nothing was sent")

    def close(self) -> None:
        self._closing()


def _opened(silo: str, path: Path) -> int:
    with contextlib.suppress(OSError):
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    raise SiloError(silo, "log", f"its site's log {path} cannot be opened for writing")
