"""Secret of a home, for callers of its HTTP services: a file that only its owner can read."""

from __future__ import annotations

import base64
import contextlib
import os
import re
import secrets
import uuid
from pathlib import Path

from fedcore.errors import InputError
from fedcore.home import Home
from fedcore.process.private_files import read_private
from flows.services.listener import check_listener

USER = "fedcore"
"""User name for HTTP Basic, which browsers ask for."""
_FORM = re.compile(r"[A-Za-z0-9_-]{43}")


def secret_path(home: Home) -> Path:
    return home.services / "secret"


def secret(home: Home) -> str:
    """The home's secret, 256 random bits as 43 letters; made at the first call.

    Raises InputError for a file that another account can read or has made, or that holds something else.
    """
    path = secret_path(home)
    try:
        if not os.path.lexists(path):
            _make(path)
        return _read(path)
    except OSError as error:
        raise InputError(f"{path}: the secret of the services cannot be read or made ({error.strerror})") from None


def auth_string(home: Home, url: str) -> str:
    """User and secret in the form of Prefect's client, for the home's server at `url`.

    Raises InputError, also if another account listens there.
    """
    check_listener(url)
    return f"{USER}:{secret(home)}"


def authorization(home: Home, url: str) -> str:
    """Value of the header `Authorization` for the home's service at `url`.

    Raises InputError, also if another account listens there.
    """
    check_listener(url)
    return basic(secret(home))


def basic(password: str) -> str:
    """The header's value of HTTP Basic (RFC 7617) for `USER` with this password."""
    return "Basic " + base64.b64encode(f"{USER}:{password}".encode()).decode()


def new_secret() -> str:
    return secrets.token_urlsafe(32)


def _make(path: Path) -> None:
    """Makes the secret's file atomically; of two that are made at once, the first one stays."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".secret-{uuid.uuid4().hex}")
    try:
        with open(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as file:
            file.write(new_secret())
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):
            os.link(part, path)
    finally:
        part.unlink(missing_ok=True)


def _read(path: Path) -> str:
    held = read_private(path, 100)
    if held is None:
        raise InputError(
            f"{path}: other accounts can read or have made this secret of the services; `fedcore down`, then remove "
            "it: the next start makes a new one"
        )
    text = held.decode("latin-1")
    if _FORM.fullmatch(text) is None:
        raise InputError(f"{path}: this is no secret of the services; `fedcore down`, then remove it")
    return text
