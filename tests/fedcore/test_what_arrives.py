"""Arriving bytes: the memory for their content is bounded before it is allocated, whatever sizes they claim."""

import json
import struct
import tracemalloc

import numpy as np
import pytest

from fedcore.arrays import pack, unpack
from fedcore.errors import InputError
from fedcore.limits import LARGEST_AGREEMENT, LARGEST_RECEIPTS, LARGEST_SPEC, MOST_ARRAYS, MOST_SILOS
from fedcore.messages import Query, Receipt, Releases, packed_receipts, receipts_of
from fedcore.planning.problem import LONGEST_NAME
from fedcore.shuffling.forms import LARGEST_HEAD, Address, Envelope, Opening, Request, Route, SealedBatch
from fedcore.silo.opening import SiteSpec

MOST = 2**20
"""Bytes that a refusal may take beside the copy of a head."""


def refused(read, data):
    """Bytes that reading allocated beyond the arrived ones; fails unless the reading is refused."""
    tracemalloc.start()
    try:
        with pytest.raises(ValueError):
            read(data)
        return tracemalloc.get_traced_memory()[1] - len(data)
    finally:
        tracemalloc.stop()


def listed(length):
    """JSON of a list that is so long in bytes."""
    return b"[" + b"[]," * (length // 3) + b"[]]"


READERS = [
    ("query", Query.from_bytes, LARGEST_AGREEMENT),
    ("releases", lambda data: Releases.from_bytes(data, 3), LARGEST_AGREEMENT),
    ("receipts", receipts_of, LARGEST_RECEIPTS),
    ("opening", Opening.from_bytes, LARGEST_AGREEMENT),
    ("envelope", Envelope.from_bytes, LARGEST_HEAD),
    ("request", Request.from_bytes, LARGEST_HEAD),
    ("batch", SealedBatch.from_bytes, LARGEST_HEAD),
    ("route", Route.from_bytes, LARGEST_HEAD),
]


@pytest.mark.parametrize("read, most", [each[1:] for each in READERS], ids=[each[0] for each in READERS])
def test_a_head_beyond_its_limit_is_not_read(read, most):
    assert refused(read, listed(max(2 * most, 3 * 2**20))) < MOST


def test_a_spec_beyond_its_limit_is_not_read():
    tracemalloc.start()
    try:
        with pytest.raises(InputError, match=f"at most {LARGEST_SPEC} bytes"):
            SiteSpec.from_bytes(data := listed(LARGEST_SPEC + 10))
        assert tracemalloc.get_traced_memory()[1] - 2 * len(data) < 2 * MOST
    finally:
        tracemalloc.stop()


def test_receipts_are_as_many_as_their_digests():
    assert refused(receipts_of, listed(LARGEST_RECEIPTS // 2) + b"\n" + bytes(64 * 3)) < MOST


def test_arrays_are_counted_before_they_are_made():
    count = MOST_ARRAYS + 1
    empty = b"".join(struct.pack("<I8sIQQ", 8, f"{i:08d}".encode(), 1, 0, 0) for i in range(count))
    assert refused(unpack, struct.pack("<I", count) + empty) < MOST
    assert len(unpack(struct.pack("<I", 3) + empty[: 3 * 32])) == 3


@pytest.mark.parametrize("shape", [(2**63, 2**63), (2**32, 2**32), (0, 2**64 - 1), (2**61,)])
def test_shapes_that_claim_more_than_there_is_are_refused(shape):
    head = struct.pack(f"<II1sI{len(shape)}QQ", 1, 1, b"w", len(shape), *shape, 0)
    assert refused(unpack, head) < MOST


def test_the_longest_that_is_honest_is_read():
    """Names of `LONGEST_NAME` characters that JSON writes as twelve bytes each, and the most silos of short names."""
    name, digest = "\U00010348" * LONGEST_NAME, "ab" * 32
    at = Address(name, 2**62, 2**62)
    for made in (
        Envelope(at, name, MOST_SILOS, digest, digest, bytes(200)),
        Request(at, digest, True),
        Opening(at, (name,), 1, 60.0, 200, digest, digest, digest),
    ):
        assert type(made).from_bytes(made.to_bytes()) == made
    silos = tuple(f"s{i}" for i in range(MOST_SILOS))
    query = Query("run", digest, 1, 1, silos, {"w": np.ones(3)})
    assert Query.from_bytes(query.to_bytes()).participants == silos
    receipts = [Receipt(name if i < 50 else f"s{i}", 1, 1, bytes(32), bytes(32)) for i in range(MOST_SILOS)]
    assert receipts_of(packed_receipts(receipts)) == receipts and receipts_of(packed_receipts([])) == []
    assert Releases.from_bytes(Releases.of(query, []).to_bytes(), 3).silos == () and unpack(pack({})) == {}
    assert json.loads(packed_receipts(receipts).partition(b"\n")[0])[0][0] == name
