"""Errors with a public sentence: each names the value, the bound, the key, the file or the silo."""

from __future__ import annotations


class InputError(ValueError):
    """A mistake in the user's input (config, file, address); the message names a correct one."""


class ModelWarning(UserWarning):
    """A warning to a model's owner: it is no better than a constant, or its delta is large."""


class DivergedError(InputError):
    """Training produced values beyond the bounds of queries; earlier releases stay charged."""


class AbandonedError(InputError):
    """A run that a sweep's patience has ended for good; the message has time and reason."""


class BusyError(RuntimeError):
    """Another living process holds the requested resource."""


LONGEST_SENTENCE = 600
"""Characters of a public sentence."""


class SiloError(RuntimeError):
    """A silo did not answer, or refused. `code` is from a fixed list; no message quotes a record.

    `sentence`: made printable and cut to `LONGEST_SENTENCE` characters, since it may repeat a driver's words.
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
    """The shuffler refused or failed. `code` is from a fixed list of its own."""

    def __init__(self, code: str, sentence: str) -> None:
        super().__init__("shuffler", code, sentence)
        self.args = (code, self.sentence)  # the arguments by which pickle rebuilds the error

    def __str__(self) -> str:
        return f"shuffler: {self.sentence}"


class RelayError(RuntimeError):
    """A relay refused a call or did not answer. `code` is from a fixed list of its own."""

    def __init__(self, code: str, sentence: str) -> None:
        sentence = "".join(each if each.isprintable() else "?" for each in sentence[:LONGEST_SENTENCE])
        super().__init__(code, sentence)
        self.code, self.sentence = code, sentence

    def __str__(self) -> str:
        return f"relay: {self.sentence}"


class Refused(Exception):
    """Refusal of a call by a service that carries messages, with one public sentence. `code`: from its fixed list."""

    def __init__(self, code: str, sentence: str) -> None:
        super().__init__(code, sentence)
        self.code, self.sentence = code, sentence
