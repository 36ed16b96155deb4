"""A silo's loop: asks a relay for envelopes, answers them, and comes back after any loss. It listens on nothing."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable

from fedcore.errors import InputError, RelayError
from fedcore.relay.relay import FULL, LONG, OLD, OTHER
from fedcore.relay.sessions import FORM, UNKNOWN
from fedcore.remote.service import Answered, SiloService
from tasks.relay.calls import Post
from tasks.relay.client import Backoff

log = logging.getLogger("fedcore.silo")

SHORT = 1.0
"""Seconds below which a call without a question is followed by a pause: a relay lets it wait for longer."""
MOST_LINES = 5
"""Refused envelopes of one call that the log names one by one: whoever invents them must not fill the disk."""


def serve(service: SiloService, post: Post, ends: threading.Event, rotates: Callable[[], bool] = lambda: False) -> None:
    """Answers until `ends` is set. Raises InputError if the silo's own disk fails.

    Returns too when the relay does not know the silo's keys, and `rotates` returns True: there are newer ones.

    The last answer leaves with the call for the next questions. An envelope is acknowledged once its answer is at the
    relay. One that is refused is acknowledged too, since it would never be answered.
    """
    backoff, last = Backoff(), _Last(service, post)
    while not ends.is_set():
        began = time.monotonic()
        try:
            came, answered = last.exchanged(), 0
            if last.gone:
                backoff.reset()
            for number, data in enumerate(came):
                last.leave()
                answered += _answer(service, post, data, number < MOST_LINES, last)
                if ends.is_set():
                    break
            last.note()
            if len(came) - answered > MOST_LINES:
                log.warning("%d envelopes were not answered", len(came) - answered)
            if not answered and time.monotonic() - began < SHORT:
                ends.wait(backoff.next())
        except RelayError as error:
            if error.code == UNKNOWN and rotates():
                last.note()
                return
            pause = backoff.next()
            log.warning("%s; again in %.1f s", error, pause)
            ends.wait(pause)
    with contextlib.suppress(RelayError):
        last.leave()
        last.note()
        post.flush()


class _Last:
    """The last answer, with its question, until it is at the relay. `gone`: answers at the relay, until it is noted."""

    def __init__(self, service: SiloService, post: Post) -> None:
        self._service, self._post = service, post
        self._held: tuple[Answered, bytes] | None = None
        self.gone: list[Answered] = []

    def hold(self, answered: Answered, question: bytes) -> None:
        """Holds an answer back for the next call."""
        self._held = answered, question

    def exchanged(self) -> list[bytes]:
        """Leaves the answer, acknowledges its question, and takes envelopes, in one call. Raises RelayError."""
        if self._held is None:
            return self._post.exchange([])
        answered, question = self._held
        try:
            came = self._post.exchange([answered.envelope], [question])
        except RelayError as error:
            if error.code not in (LONG, FORM, OTHER, FULL, OLD):
                raise
            if not self.leave():  # alone, which shows what is refused
                raise
            return self._post.exchange([])
        self._held = None
        self.gone.append(answered)
        return came

    def leave(self) -> bool:
        """Leaves the answer in a call of its own; False if the relay has no room for now.

        The question is then handed out again. Raises RelayError if the relay does not answer.
        """
        if self._held is None:
            return True
        answered, question = self._held
        left = _left(self._service, self._post, answered)
        self._held = None
        if left is not None:
            self.gone.append(left)
            self._post.taken([question])
        return left is not None

    def note(self) -> None:
        """Notes that answers are at the relay. A later question about the run has replaced most of these notes."""
        while self.gone:
            self._service.sent(self.gone.pop())


def _answer(service: SiloService, post: Post, data: bytes, logged: bool, last: _Last) -> bool:
    """Answers one envelope; False for one that is refused. Raises InputError if the silo's disk fails."""
    try:
        answered = service.answer(data)
    except InputError:  # of the silo's own disk: the question stays where it is
        raise
    except ValueError as error:
        if logged:
            log.warning("an envelope is refused: %s", error)
        post.taken([data])
        return False
    last.hold(answered, data)
    log.info("%s: %s", answered.call, "answered" if answered.refused is None else f"refused: {answered.refused}")
    return True


def _left(service: SiloService, post: Post, answered: Answered) -> Answered | None:
    """Leaves an answer, or a refusal in its place; None if the relay has no room for now.

    Raises RelayError if the relay does not answer.
    """
    try:
        try:
            post.deposit(answered.envelope)
        except RelayError as error:
            if error.code not in (LONG, FORM, OTHER):
                raise
            answered = service.refusal(answered, f"its answer cannot be delivered ({error.sentence})")
            log.warning("%s: refused: %s", answered.call, answered.refused)
            post.deposit(answered.envelope)
    except RelayError as error:
        if error.code == FULL:  # of this silo's other answers: those of other runs may still pass
            log.warning("%s: %s", answered.call, error)
            return None
        # The relay took an answer to this question already: its word was lost, or this process died before it noted so.
        if error.code != OLD:
            raise
    return answered
