"""Calls to a silo's site and their answers, as bodies of envelopes: a JSON line of declared fields, then bytes.

The calls are those of `fedcore.silo.site.Site`, with the bytes that it takes. Nothing that arrives is an object, a path
or a name of code.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypeVar

from pydantic import ConfigDict, Field, TypeAdapter

from fedcore.errors import LONGEST_SENTENCE, SiloError
from fedcore.identity.envelope import LONGEST_RUN
from fedcore.silo.account import SiloAccount

Operation = Literal["approve", "answer", "send", "accounts", "close_run", "forget_run"]
"""Calls of a site that a driver may make from afar. None of them computes on records without noise."""
PARTS: dict[Operation, tuple[int, int]] = {
    "approve": (1, 2),
    "answer": (1, 1),
    "send": (1, 1),
    "accounts": (0, 0),
    "close_run": (0, 0),
    "forget_run": (0, 0),
}
"""Number of byte strings that belong to each call: at least, and at most."""
LARGEST_HEAD = 2**13
UNOPENED = "unopened"
"""Code of a refusal: the service has started since it approved the run; approve it again, then repeat the call."""
_DIGEST = 32

_STRICT = ConfigDict(strict=True)
_Size = Annotated[int, Field(ge=0, lt=2**40)]
_CALL = TypeAdapter(
    tuple[
        Operation,
        Annotated[str, Field(min_length=1, max_length=LONGEST_RUN)],
        Annotated[int, Field(ge=0, lt=2**63)],
        Annotated[list[_Size], Field(max_length=2)],
    ],
    config=_STRICT,
)
_ANSWER = TypeAdapter(
    tuple[Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")], Literal["done", "refused"], Any], config=_STRICT
)
_REFUSAL = TypeAdapter(
    tuple[
        Annotated[str, Field(max_length=200)],
        Annotated[str, Field(pattern=r"^[a-z-]{1,40}$")],
        Annotated[str, Field(max_length=LONGEST_SENTENCE)],
    ],
    config=_STRICT,
)
_Count = Annotated[int, Field(ge=0, lt=2**63)]
_Cost = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]
_ACCOUNTS = TypeAdapter(tuple[tuple[str, _Count, _Count, _Cost, _Cost, _Count, bool], ...], config=_STRICT)
T = TypeVar("T")


@dataclass(frozen=True)
class Call:
    """A call about a run, for the driver with this lease, and the bytes that belong to it."""

    operation: Operation
    run: str
    lease: int
    parts: tuple[bytes, ...] = field(default=(), repr=False)

    def to_bytes(self) -> bytes:
        head = [self.operation, self.run, self.lease, [len(part) for part in self.parts]]
        return b"".join([json.dumps(head).encode(), b"\n", *self.parts])

    @classmethod
    def from_bytes(cls, data: bytes) -> Call:
        """The call that `to_bytes` wrote. Raises ValueError for other bytes."""
        head, rest = _head(data)
        operation, run, lease, sizes = _read("a call", _CALL, head)
        least, most = PARTS[operation]
        if not least <= len(sizes) <= most or sum(sizes) != len(rest):
            raise ValueError(f"a call {operation} has {least} to {most} parts, and is not cut")
        parts, at = [], 0
        for size in sizes:
            parts.append(rest[at : at + size])
            at += size
        return _same("a call", cls(operation, run, lease, tuple(parts)), data)


@dataclass(frozen=True)
class Answer:
    """The answer to the envelope with the digest `question`: `body`, or the `refusal` (silo, code, sentence)."""

    question: bytes
    body: bytes = field(default=b"", repr=False)
    refusal: tuple[str, str, str] | None = None

    @classmethod
    def of(cls, question: bytes, act: Callable[[], bytes]) -> Answer:
        """The answer of `act`, or the refusal in its SiloError."""
        try:
            return cls(question, act())
        except SiloError as error:
            return cls(question, refusal=(error.silo, error.code, error.sentence))

    @property
    def value(self) -> bytes:
        """The body. Raises the SiloError of a refusal."""
        if self.refusal is not None:
            raise SiloError(*self.refusal)
        return self.body

    def to_bytes(self) -> bytes:
        kind = "done" if self.refusal is None else "refused"
        head = json.dumps([self.question.hex(), kind, None if self.refusal is None else list(self.refusal)])
        return head.encode() + b"\n" + self.body

    @classmethod
    def from_bytes(cls, data: bytes) -> Answer:
        """The answer that `to_bytes` wrote. Raises ValueError for other bytes."""
        head, rest = _head(data)
        question, kind, refusal = _read("an answer", _ANSWER, head)
        if kind == "refused" and not rest:
            refused = _read("an answer", _REFUSAL, json.dumps(refusal).encode())
            found = cls(bytes.fromhex(question), refusal=refused)
        elif kind == "done" and refusal is None:
            found = cls(bytes.fromhex(question), rest)
        else:
            raise ValueError("an answer has other fields, or a value of it is out of bounds")
        return _same("an answer", found, data)


def packed_accounts(accounts: Sequence[SiloAccount]) -> bytes:
    """The message of a site's accounts; `accounts_of` reads it."""
    return json.dumps([list(each) for each in accounts]).encode()


def accounts_of(data: bytes) -> list[SiloAccount]:
    """The accounts that `packed_accounts` wrote. Raises ValueError for other bytes."""
    return [SiloAccount(*fields) for fields in _read("a list of accounts", _ACCOUNTS, data)]


def _head(data: bytes) -> tuple[bytes, bytes]:
    if type(data) is not bytes:
        raise ValueError("a message is bytes")
    head, line, rest = data.partition(b"\n")
    if not line or len(head) > LARGEST_HEAD:
        raise ValueError("a message begins with a line of fields")
    return head, rest


def _read(kind: str, form: TypeAdapter[Any], data: bytes) -> Any:
    try:
        return form.validate_json(data)
    except ValueError:
        pass
    raise ValueError(f"{kind} has other fields, or a value of it is out of bounds")


def _same(kind: str, found: T, data: bytes) -> T:
    if found.to_bytes() != data:  # type: ignore[attr-defined]
        raise ValueError(f"{kind} has one form, and this is another")
    return found
