"""Errors with a public sentence: each names the value, the bound, the key, the file or the silo."""

from __future__ import annotations


class InputError(ValueError):
    """A mistake in what the user gave (config, file, address); the message says what would be right."""


class ModelWarning(UserWarning):
    """What the owner of a model should know of it, though nothing is broken: that none would do as well, why, or
    that its delta is large."""


class DivergedError(InputError):
    """Training left the numbers that silos take; what they released until then is released."""


class AbandonedError(InputError):
    """A sweep's patience has ended a run, for good; the message says when and why."""


class BusyError(RuntimeError):
    """Another living process holds what was asked for."""


LONGEST_SENTENCE = 600
"""Characters of what is said in public."""


class SiloError(RuntimeError):
    """A silo did not answer, or refused. `code` is from a fixed list; the message never quotes a record.

    `sentence`: printable, at most `LONGEST_SENTENCE` characters, whatever of an asker's words it repeats.
    """

    def __init__(self, silo: str, code: str, sentence: str) -> None:
        sentence = "".join(each if each.isprintable() else "?" for each in sentence[:LONGEST_SENTENCE])
        super().__init__(silo, code, sentence)
        self.silo = silo
        self.code = code
        self.sentence = sentence

    def __str__(self) -> str:
        return f"silo {self.silo}: {self.sentence}"


class ShufflerError(SiloError):
    """What stands between silos and server did not take or give what was asked. `code`: its own, from a fixed list."""

    def __init__(self, code: str, sentence: str) -> None:
        super().__init__("shuffler", code, sentence)
        self.args = (code, self.sentence)  # by which it is made again where it arrives

    def __str__(self) -> str:
        return f"shuffler: {self.sentence}"
