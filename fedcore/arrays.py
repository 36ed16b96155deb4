"""Array types and the byte form of named arrays that digests, ledgers and checkpoints share."""

from __future__ import annotations

import hashlib
import json
import math
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import ConfigDict, TypeAdapter

from fedcore.limits import MOST_ARRAYS

Vector = npt.NDArray[np.float64]
Matrix = npt.NDArray[np.float64]
Arrays = Mapping[str, npt.NDArray[np.float64]]
FLOAT_BYTES = 8
"""Bytes of a number in a message: float64."""
MOST_AXES = 8
"""Largest number of axes of a packed array."""
_PLAIN = TypeAdapter(Any, config=ConfigDict(ser_json_inf_nan="constants"))


def is_vector(value: object, dim: int) -> bool:
    """Checks for a plain array of `dim` float64, as `is_float64`."""
    return is_float64(value, (dim,))


def is_float64(value: object, shape: tuple[int, ...]) -> bool:
    """Checks for a plain array of this shape of float64; a subclass, as a masked array, is none."""
    return type(value) is np.ndarray and value.dtype == np.float64 and value.shape == shape


def pack(arrays: Arrays) -> bytes:
    """Byte form of named float64 arrays: for each, by name, length-prefixed name, shape and data.

    Injective, so that its digest identifies names, order, shapes and every bit. Raises TypeError for another dtype.
    """
    parts = [struct.pack("<I", len(arrays))]
    for name in sorted(arrays):
        array = arrays[name]
        if array.dtype != np.float64:
            raise TypeError(f"array {name!r} has dtype {array.dtype}, only float64 travels")
        encoded = name.encode()
        data = array.tobytes()
        parts.append(struct.pack(f"<I{len(encoded)}sI", len(encoded), encoded, array.ndim))
        parts.append(struct.pack(f"<{array.ndim}QQ", *array.shape, len(data)))
        parts.append(data)
    return b"".join(parts)


def unpack(data: bytes) -> dict[str, npt.NDArray[np.float64]]:
    """The named arrays that `pack` wrote. Raises ValueError for cut, longer or reordered bytes."""
    arrays: dict[str, npt.NDArray[np.float64]] = {}
    try:
        (count,), at = struct.unpack_from("<I", data, 0), 4
        if count > MOST_ARRAYS:
            raise ValueError(f"{count} packed arrays are more than {MOST_ARRAYS}")
        for _ in range(count):
            (length,) = struct.unpack_from("<I", data, at)
            encoded, ndim = struct.unpack_from(f"<{length}sI", data, at + 4)
            if ndim > MOST_AXES:
                raise ValueError(f"a packed array has {ndim} axes, more than {MOST_AXES}")
            at += 8 + length
            *shape, size = struct.unpack_from(f"<{ndim}QQ", data, at)
            at += 8 * (ndim + 1)
            name = encoded.decode()
            if size != 8 * math.prod(shape) or at + size > len(data):
                raise ValueError("packed arrays are cut")
            if arrays and name <= next(reversed(arrays)):
                raise ValueError("packed arrays are not in order of their names")
            flat = np.frombuffer(data, dtype=np.float64, count=size // 8, offset=at)
            arrays[name] = flat.reshape(shape).copy()
            at += size
    except (struct.error, OverflowError) as error:
        raise ValueError("packed arrays are cut") from error
    if at != len(data):
        raise ValueError("packed arrays have a tail")
    return arrays


def canonical_json(value: Any) -> str:
    """JSON with sorted keys and without spaces: equal values have one text, hence one digest.

    Floats have the shortest text that reads back to the same bits; infinities are the words that Python reads.
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def plain_json(value: Any, indent: int | None = None) -> bytes:
    """JSON of plain values and dataclasses in their own order, ten times as fast as `json`.

    NaN and infinities are written as `json` writes them.
    """
    return _PLAIN.dump_json(value, indent=indent)


def digest(*parts: bytes) -> bytes:
    """SHA-256 over length-prefixed parts (32 bytes)."""
    total = hashlib.sha256()
    for part in parts:
        total.update(struct.pack("<Q", len(part)))
        total.update(part)
    return total.digest()
