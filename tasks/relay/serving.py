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
from fedcore.remote.service import SiloService
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

    An envelope is acknowledged once its answer is at the relay. One that is refused is acknowledged too, since it would
    never be answered.
    """
    backoff = Backoff()
    while not ends.is_set():
        began = time.monotonic()
        try:
            came, answered = post.collect(), 0
            for number, data in enumerate(came):
                answered += _answer(service, post, data, number < MOST_LINES)
                if ends.is_set():
                    break
            if len(came) - answered > MOST_LINES:
                log.warning("%d envelopes were not answered", len(came) - answered)
            if answered:
                backoff.reset()
            elif time.monotonic() - began < SHORT:
                ends.wait(backoff.next())
        except RelayError as error:
            if error.code == UNKNOWN and rotates():
                return
            pause = backoff.next()
            log.warning("%s; again in %.1f s", error, pause)
            ends.wait(pause)
    with contextlib.suppress(RelayError):
        post.flush()


def _answer(service: SiloService, post: Post, data: bytes, logged: bool) -> bool:
    """Answers one envelope; False for one that is refused, or whose answer the relay has no room for now.

    Raises RelayError if the relay does not answer, and InputError if the silo's disk fails.
    """
    try:
        answered = service.answer(data)
    except InputError:  # of the silo's own disk: the question stays where it is
        raise
    except ValueError as error:
        if logged:
            log.warning("an envelope is refused: %s", error)
        post.taken([data])
        return False
    try:
        try:
            post.deposit(answered.envelope)
        except RelayError as error:
            if error.code not in (LONG, FORM, OTHER):
                raise
            answered = service.refusal(answered, f"its answer cannot be delivered ({error.sentence})")
            post.deposit(answered.envelope)
    except RelayError as error:
        if error.code == FULL:  # of this silo's other answers: those of other runs may still pass
            log.warning("%s: %s", answered.call, error)
            return False
        # The relay took an answer to this question already: its word was lost, or this process died before it noted so.
        if error.code != OLD:
            raise
    service.sent(answered)
    post.taken([data])
    log.info("%s: %s", answered.call, "answered" if answered.refused is None else f"refused: {answered.refused}")
    return True
