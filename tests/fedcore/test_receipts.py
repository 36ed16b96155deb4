"""Receipts as they travel and are kept: what was written is read, and nothing else is."""

import hashlib
import json

import pytest

from fedcore.messages import Receipt, kept, receipts_of


def receipt(silo, phase, round):
    asked, sent = (hashlib.sha256(f"{what} {silo} {phase}.{round}".encode()).digest() for what in ("asked", "sent"))
    return Receipt(silo, phase, round, asked, sent)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_receipts_that_were_written_are_read(count):
    listed = [receipt(f"silo\n{n}", 1 + n, 2**62 + n) for n in range(count)]
    assert receipts_of(kept(listed)) == listed == receipts_of(kept(iter(listed)))


def test_the_form_is_a_line_of_addresses_and_then_digests():
    one, other = receipt("ash", 1, 2), receipt("oak", 3, 4)
    head, rest = kept([one, other]).split(b"\n", 1)
    assert json.loads(head) == [["ash", 1, 2], ["oak", 3, 4]]
    assert rest == one.query_digest + one.payload_digest + other.query_digest + other.payload_digest


@pytest.mark.parametrize(
    "data",
    [b"", b"\n", b"{}\n", b"[1]\n", b'[["ash",1]]\n', b'[["ash",0,1]]\n' + bytes(64), b'[["ash",1,true]]\n' + bytes(64),
     b'[["ash",1,1.0]]\n' + bytes(64), b'[["ash",1,1]]\n' + bytes(63), b'[["ash",1,1]]\n' + bytes(65), b"[]\n ",
     b'[["ash",1,1]]' + bytes(64), b'[[7,1,1]]\n' + bytes(64), b'[["ash",1,9223372036854775808]]\n' + bytes(64)],
)  # fmt: skip
def test_other_bytes_are_refused(data):
    with pytest.raises(ValueError, match="receipts"):
        receipts_of(data)
