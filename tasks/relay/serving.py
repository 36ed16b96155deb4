"""A silo's loop: asks a relay for envelopes, answers them, and comes back after any loss. It listens on nothing."""

from __future__ import annotations

import logging
import threading

from fedcore.errors import RelayError
from fedcore.relay.relay import OLD
from fedcore.remote.service import SiloService
from tasks.relay.client import Backoff
from tasks.relay.sites import Post

log = logging.getLogger("fedcore.silo")


def serve(service: SiloService, post: Post, ends: threading.Event) -> None:
    """Answers until `ends` is set. Raises InputError if the silo's own disk fails.

    An envelope is acknowledged once its answer is at the relay. One that is refused is acknowledged too, since nothing
    would ever answer it.
    """
    backoff = Backoff()
    while not ends.is_set():
        try:
            for data in post.collect():
                _answer(service, post, data)
                post.taken([data])
                if ends.is_set():
                    return
            backoff.reset()
        except RelayError as error:
            pause = backoff.next()
            log.warning("%s; again in %.1f s", error, pause)
            ends.wait(pause)


def _answer(service: SiloService, post: Post, data: bytes) -> None:
    try:
        answered = service.answer(data)
    except ValueError as error:
        log.warning("an envelope is refused: %s", error)
        return
    try:
        post.deposit(answered.envelope)
    except RelayError as error:
        if error.code != OLD:
            raise
        # The relay took an answer to this question already: its word was lost, or this process died before it noted so.
    service.sent(answered)
    log.info("%s: %s", answered.call, "answered" if answered.refused is None else f"refused: {answered.refused}")
