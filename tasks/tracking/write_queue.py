"""A queue of entries for a tracking store. One thread writes them; the queue drops only entries that cannot succeed."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import takewhile

from tasks.tracking.run_writer import Row

FLUSH_SECONDS = 1.0
LONGEST_PAUSE = 2.0


@dataclass(frozen=True, eq=False)
class Surely:
    """A job that is done in its turn, or at the thread's end if that comes first."""

    act: Callable[[], object]

    def __call__(self) -> None:
        self.act()


class WriteQueue:
    """One thread that does jobs in the order given, and retries each until it succeeds.

    Consecutive rows are written together: once a second, or as soon as a job waits behind them. A job must be safe to
    repeat, since one that failed may have taken effect. If `is_final` holds for an error, the job is dropped and
    `problem` names its error.
    """

    def __init__(
        self,
        write_rows: Callable[[list[Row]], None],
        is_final: Callable[[Exception], bool],
        on_failure: Callable[[], object],
    ) -> None:
        self._write_rows, self._is_final, self._on_failure = write_rows, is_final, on_failure
        self._queue: deque[Row | Callable[[], object]] = deque()
        self._jobs = 0  # entries of the queue that are not rows
        self._changed = threading.Condition()
        self._closing = self._ended = False
        self._given_up = threading.Event()
        self._lost: list[str] = []
        self._trouble: str | None = None
        self._thread = threading.Thread(target=self._run, name="fedcore-tracking", daemon=True)
        self._thread.start()

    @property
    def lost(self) -> bool:
        """True if an entry will never be written."""
        return bool(self._lost)

    @property
    def problem(self) -> str | None:
        """A sentence about entries that failed or still wait; None if there is no problem."""
        sentences = list(dict.fromkeys(self._lost))
        trouble, waiting = self._trouble, len(self._queue)
        if trouble is None and self._given_up.is_set():  # nothing failed, but the thread was not done in time
            trouble = "no error, only slow"
        if trouble and waiting:
            sentences.append(f"{waiting} entries wait to be written to MLflow ({trouble})")
        return "; ".join(sentences) or None

    @property
    def waiting(self) -> int:
        """Number of entries that are not written yet."""
        return len(self._queue)

    def put(self, entry: Row | Callable[[], object]) -> bool:
        """Appends a row or a job and returns at once. After `close` drops it, with a line in `problem`: False."""
        with self._changed:
            if self._closing:
                self._lost.append("an entry came after tracking was closed")
                return False
            self._queue.append(entry)
            is_row = isinstance(entry, Row)
            self._jobs += not is_row
            if not is_row or len(self._queue) == 1:  # a row behind rows changes nothing for the thread
                self._changed.notify()
        return True

    def put_surely(self, act: Callable[[], object]) -> None:
        """Calls `act` once, when all earlier entries are written or given up."""
        with self._changed:
            if not self._ended:
                self._queue.append(Surely(act))
                self._jobs += 1
                self._changed.notify()
                return
        act()

    def flush(self, timeout: float | None = None) -> bool:
        """Waits until all entries so far are written; False after `timeout` seconds, or after `close`."""
        reached = threading.Event()
        return self.put(reached.set) and reached.wait(timeout)

    def close(self, timeout: float | None = None) -> bool:
        """Refuses further entries and waits for the thread; False if an entry is not written (see `problem`)."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(timeout)
        self._given_up.set()
        return not self._queue and not self._lost

    def _run(self) -> None:
        try:
            self._write()
        finally:
            with self._changed:
                self._ended = True
                left = [entry for entry in self._queue if isinstance(entry, Surely)]
                for entry in left:
                    self._queue.remove(entry)
            for entry in left:
                entry()

    def _write(self) -> None:
        while entries := self._next():
            if isinstance(entries[0], Row):
                done = self._until_done(partial(self._write_rows, entries))
            else:
                done = self._until_done(entries[0])
            if not done:
                return
            with self._changed:
                for entry in entries:
                    self._queue.popleft()
                    self._jobs -= not isinstance(entry, Row)

    def _next(self) -> list:
        """Waits for the rows or the one job whose turn it is, without removing them; [] at the end."""
        with self._changed:
            while True:
                head = self._queue[0] if self._queue else None
                if head is None and self._closing:
                    return []
                if head is not None and not isinstance(head, Row):
                    return [head]
                if head is None:
                    self._changed.wait()
                    continue
                pause = head.timestamp / 1000 + FLUSH_SECONDS - time.time()
                if self._jobs or self._closing or not 0 < pause <= FLUSH_SECONDS:
                    return list(takewhile(lambda entry: isinstance(entry, Row), self._queue))
                self._changed.wait(pause)

    def _until_done(self, job: Callable[[], object]) -> bool:
        """Does the job; True once it succeeded or cannot succeed, False if the writer gave up before."""
        pause = 0.1
        while True:
            try:
                job()
                self._trouble = None
                return True
            except Exception as error:
                sentence = " ".join(f"{type(error).__name__}: {error}".split())[:200]
                self._on_failure()
                if self._is_final(error):
                    self._lost.append(f"MLflow refused an entry ({sentence})")
                    return True
                self._trouble = sentence
                if self._given_up.wait(pause):
                    return False
                pause = min(2 * pause, LONGEST_PAUSE)
