"""Secret of another operator's shuffler: one line of a file that operator and drivers share.

`fedcore shuffler --secret FILE` requires the secret of its callers; runs send that of their `shuffler.secret`.
"""

from __future__ import annotations

from pathlib import Path

from fedcore.errors import InputError
from fedcore.process.private_files import read_private
from fedcore.shuffling.forms import LONGEST_SECRET, SHORTEST_SECRET, is_secret


def shuffler_secret(key: str, file: str | Path) -> str:
    """The secret in this file, as callers send it. `key`: the option or key that names the file, for messages.

    Raises InputError for a file that cannot be read, that other accounts may open, or that holds something else.
    """
    path = Path(file)
    try:
        held = read_private(path, LONGEST_SECRET + 3, links=True)
    except (OSError, ValueError) as error:
        raise InputError(f"{key} = {file}: it cannot be read ({getattr(error, 'strerror', error)})") from None
    if held is None:
        raise InputError(
            f"{key} = {file}: it must be a file of this account that no other can open: chmod 600 {file}, and see "
            "whose it is"
        )
    found = held.decode("latin-1").removesuffix("\n").removesuffix("\r")
    if not is_secret(found):
        raise InputError(
            f"{key} = {file}: a secret is one line of {SHORTEST_SECRET} to {LONGEST_SECRET} letters, digits and "
            "._~+/=-, as `openssl rand -hex 32` makes it"
        )
    return found
