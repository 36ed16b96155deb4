"""The comparison of fingerprints, by which two people make sure that they have each other's keys."""

from __future__ import annotations

import sys

from fedcore.errors import InputError
from fedcore.identity.keys import PublicIdentity
from fedcore.printable import on_terminal


def confirm(keys: PublicIdentity, whose: str, typed: str | None) -> None:
    """Returns if a person confirms that these are the keys of `whose`. Raises InputError otherwise.

    `typed`: the fingerprint as the person has it from the other party; None: the terminal asks for it.
    """
    if typed is None:
        if not sys.stdin.isatty():
            raise InputError(f"give --fingerprint TEXT, which {whose} reads to you, by telephone for instance")
        typed = input(on_terminal(f"Fingerprint of {whose}, as it reads it to you (5 groups of 5): "))
    if not keys.is_shown_as(typed):
        raise InputError(
            f"the file was signed by other keys than those of the fingerprint {typed.strip()[:40]!r}: ask {whose} for "
            "file and fingerprint again, by two ways; nothing was changed"
        )
