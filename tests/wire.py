"""Bytes of queries as a hostile asker may write them: the format written down a second time, without its checks."""

import json
import struct

import numpy as np

from fedcore.messages import Query


def packed(arrays):
    """Named arrays of any dtype and shape, their memory as it is."""
    parts = [struct.pack("<I", len(arrays))]
    for name in sorted(arrays):
        array, encoded = np.asarray(arrays[name]), name.encode()
        parts.append(struct.pack("<I", len(encoded)) + encoded + struct.pack("<I", array.ndim))
        parts.append(struct.pack(f"<{array.ndim}Q", *array.shape) + struct.pack("<Q", array.nbytes) + array.tobytes())
    return b"".join(parts)


def on_the_wire(query: Query) -> bytes:
    """The expected bytes of `Query.to_bytes` for a valid query; for others the bytes of their fields."""
    head = [query.run, query.plan, query.phase, query.round, list(query.participants)]
    own = {f"{name}@{silo}": array for silo, arrays in query.own.items() for name, array in arrays.items()}
    return json.dumps(head).encode() + b"\n" + packed({**query.arrays, **own})
