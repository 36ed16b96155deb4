"""Errors of a site's silos as public sentences: no other part of an error leaves the site."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

from fedcore.errors import InputError, ShufflerError, SiloError

P = ParamSpec("P")
T = TypeVar("T")


def with_public_errors(silo: str, act: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Calls `act`; of its errors only public sentences pass, as SiloError, since others may quote a record."""
    refused = None
    try:
        return act(*args, **kwargs)
    except ShufflerError as error:
        refused = (error.code, error.sentence)
    except SiloError as error:
        public = (error.silo, error.code, error.sentence)
    except InputError as error:  # about the agreement's public numbers
        public = (silo, "plan", str(error))
    except Exception:
        public = (silo, "failed", "it could not answer; see the log at the silo")
    # A new error, raised outside the handler: even with `from None` the first one would stay as its context. Dask
    # pickles the contexts of a task that failed on a worker.
    if refused is not None:
        raise ShufflerError(*refused)
    raise SiloError(*public)


def rebuilt(silo: str, kind: str, rebuild: Callable[[bytes], T], data: bytes) -> T:
    """Rebuilds an object from bytes that arrived. Raises SiloError, naming `silo`, if they are no `kind`."""
    try:
        if type(data) is bytes:
            return rebuild(data)
        fault = "it takes bytes"
    except ValueError as error:  # about the caller's own bytes, before any record is read
        fault = str(error)
    except Exception:
        fault = "it cannot be read"
    raise SiloError(silo, kind, f"this is no {kind}: {fault}")
