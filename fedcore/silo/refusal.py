"""What leaves a site when something fails at one of its silos: a public sentence, and nothing else of the error."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

from fedcore.errors import InputError, ShufflerError, SiloError

P = ParamSpec("P")
T = TypeVar("T")


def told(silo: str, act: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """What `act` returns. Of its failures, only public sentences pass, as SiloError; others may quote a record."""
    refused = None
    try:
        return act(*args, **kwargs)
    except ShufflerError as error:
        refused = (error.code, error.sentence)
    except SiloError as error:
        said = (error.silo, error.code, error.sentence)
    except InputError as error:  # of the agreement's public numbers
        said = (silo, "plan", str(error))
    except Exception:
        said = (silo, "failed", "it could not answer; see the log at the silo")
    # Not raised in the handler: the first error would stay as the context of this one, also with `from None`, and
    # Dask, once a task has failed on a worker, pickles contexts too. For the same reason never the first error itself.
    if refused is not None:
        raise ShufflerError(*refused)
    raise SiloError(*said)


def rebuilt(silo: str, what: str, rebuild: Callable[[bytes], T], data: bytes) -> T:
    """What `rebuild` makes of bytes that arrived. Raises SiloError in the name of `silo` if they are no `what`."""
    try:
        if type(data) is bytes:
            return rebuild(data)
        fault = "it takes bytes"
    except ValueError as error:  # of the asker's own bytes, before any record is looked at
        fault = str(error)
    except Exception:
        fault = "it cannot be read"
    raise SiloError(silo, what, f"this is no {what}: {fault}")
