"""Calls of several runs to the sites of one worker, and their answers, as one message each.

Dask serialises every part of a list by itself, at some 50 microseconds each. Messages are MessagePack: plain values of
declared types, and no objects.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgpack
from pydantic import ConfigDict, TypeAdapter, ValidationError

from fedcore.silo.account import SiloAccount

Operation = Literal["answer", "simulated", "accounts", "end_run"]
"""Operations of a site that several runs may batch into one message."""
SiteCall = tuple[bytes, Operation, tuple[bytes | str | int, ...]]
"""Key of a site, operation, arguments."""
Refusal = tuple[str, str, str]
"""Silo, code and sentence of a SiloError."""

_STRICT = ConfigDict(strict=True)
_CALLS = TypeAdapter(tuple[SiteCall, ...], config=_STRICT)
_ANSWERS = TypeAdapter(tuple[tuple[bool, Any], ...], config=_STRICT)
_REFUSAL = TypeAdapter(Refusal, config=_STRICT)
_VALUES: dict[str, TypeAdapter[Any]] = {
    "answer": TypeAdapter(bytes, config=_STRICT),
    "simulated": TypeAdapter(tuple[tuple[int, float, float], ...], config=_STRICT),
    "accounts": TypeAdapter(tuple[tuple[str, int, int, float, float, int, bool], ...], config=_STRICT),
    "end_run": TypeAdapter(None, config=_STRICT),
}


def packed_calls(calls: Sequence[tuple[bytes, str, tuple[Any, ...]]]) -> bytes:
    """The message of these calls; `calls_of` reads it."""
    return bytes(msgpack.packb(calls))


def calls_of(data: bytes) -> tuple[SiteCall, ...]:
    """The calls that `packed_calls` wrote. Raises ValueError for other bytes, and for another operation."""
    return _read(_CALLS, _unpacked(data))


def packed_answers(answers: Sequence[Any | Refusal]) -> bytes:
    """The message of the answers to a batch of calls, in their order; a refusal is a tuple."""
    return bytes(msgpack.packb([(type(each) is not tuple, each) for each in answers]))


def answers_of(data: bytes, operations: Sequence[str]) -> list[Any | Refusal]:
    """The answers that `packed_answers` wrote, to calls of these operations. Raises ValueError for other bytes."""
    found = _read(_ANSWERS, _unpacked(data))
    if len(found) != len(operations):
        raise ValueError(f"{len(found)} answers came to {len(operations)} calls")
    return [
        _value(operation, value) if answered else _read(_REFUSAL, value)
        for (answered, value), operation in zip(found, operations, strict=True)
    ]


def _value(operation: str, value: Any) -> Any:
    read = _read(_VALUES[operation], value)
    if operation == "accounts":
        return [SiloAccount(*fields) for fields in read]
    return list(read) if operation == "simulated" else read


def _unpacked(data: bytes) -> Any:
    try:
        return msgpack.unpackb(data, use_list=False) if type(data) is bytes else None
    except (ValueError, msgpack.UnpackException) as error:
        raise ValueError(f"a batch cannot be read: {error}") from None


def _read(form: TypeAdapter[Any], value: Any) -> Any:
    try:
        return form.validate_python(value)
    except ValidationError as error:
        raise ValueError(f"a batch has another form: {error.error_count()} parts of it") from None
