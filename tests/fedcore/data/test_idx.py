"""IDX files: known bytes, gzip, and every way in which a file can be damaged."""

import gzip
import struct

import numpy as np
import pytest

from fedcore.data.sources.idx import idx_shape, read_idx
from fedcore.errors import InputError

TWO_IMAGES = (
    bytes([0, 0, 8, 3]) + bytes([0, 0, 0, 2]) + bytes([0, 0, 0, 2]) + bytes([0, 0, 0, 3]) + bytes(range(250, 256)) * 2
)


def test_known_bytes(tmp_path):
    (tmp_path / "a").write_bytes(TWO_IMAGES)
    image = [[250, 251, 252], [253, 254, 255]]  # row after row
    found = read_idx(tmp_path / "a", 3)
    assert found.dtype == np.uint8 and found.tolist() == [image, image]
    assert idx_shape(tmp_path / "a", 3) == (2, 2, 3)


def test_a_size_is_most_significant_byte_first(tmp_path, idx):
    assert read_idx(idx(tmp_path / "a", (258,), bytes(258)), 1).shape == (258,)


@pytest.mark.parametrize("name", ["a.gz", "a"])
def test_gzip_is_known_by_its_content(tmp_path, name):
    (tmp_path / name).write_bytes(gzip.compress(TWO_IMAGES))
    assert read_idx(tmp_path / name, 3).tobytes() == TWO_IMAGES[16:]
    (tmp_path / "b.gz").write_bytes(TWO_IMAGES)
    assert read_idx(tmp_path / "b.gz", 3).tobytes() == TWO_IMAGES[16:]


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
@pytest.mark.parametrize("length", range(len(TWO_IMAGES)))
def test_a_file_that_is_cut_anywhere_is_told_with_its_last_byte(tmp_path, length, pack):
    (tmp_path / "cut").write_bytes(pack(TWO_IMAGES[:length]))
    with pytest.raises(InputError, match=rf"file .*cut: ends at byte {length}, ") as caught:
        read_idx(tmp_path / "cut", 3)
    promise = "its header promises 2 x 2 x 3 = 12 bytes from byte 16, to byte 28"
    assert (promise if length >= 16 else "within its header of 16 bytes") in str(caught.value)


def test_a_file_with_a_tail_is_told_with_the_byte_where_it_should_end(tmp_path):
    (tmp_path / "long").write_bytes(TWO_IMAGES + b"x")
    with pytest.raises(InputError, match=r"long: goes on after byte 28, but its header promises 2 x 2 x 3 = 12 bytes"):
        read_idx(tmp_path / "long", 3)


@pytest.mark.parametrize("magic", ["00000801", "00000d03", "03080000", "00010803", "504b0304"])
def test_another_kind_of_file_is_told_with_both_magic_numbers(tmp_path, magic):
    (tmp_path / "other").write_bytes(bytes.fromhex(magic) + TWO_IMAGES[4:])
    with pytest.raises(InputError, match=rf"other: begins with 0x{magic}, but the magic number .* is 0x00000803"):
        read_idx(tmp_path / "other", 3)


def test_a_header_that_promises_more_than_there_is_memory(tmp_path):
    (tmp_path / "huge").write_bytes(struct.pack(">4B3I", 0, 0, 8, 3, *[2**32 - 1] * 3) + bytes(5))
    with pytest.raises(InputError, match=rf"ends at byte 21, .* = {(2**32 - 1) ** 3} bytes from byte 16"):
        read_idx(tmp_path / "huge", 3)


def test_every_cut_and_every_flipped_byte_of_a_gzipped_file_is_refused_or_harmless(tmp_path):
    zipped = gzip.compress(TWO_IMAGES)
    path = tmp_path / "zipped.gz"
    for length in range(2, len(zipped)):
        path.write_bytes(zipped[:length])
        with pytest.raises(InputError, match=r"zipped\.gz: (is not a whole gzip file, it breaks after|ends at)"):
            read_idx(path, 3)
    refused = 0
    for at in range(len(zipped)):
        path.write_bytes(zipped[:at] + bytes([zipped[at] ^ 255]) + zipped[at + 1 :])
        try:
            assert read_idx(path, 3).tobytes() == TWO_IMAGES[16:]  # only the gzip header's time, system or name changed
        except InputError as error:
            refused += 1
            assert str(path) in str(error)
    assert refused >= len(zipped) - 10


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(InputError, match=r"none: cannot be read \(No such file or directory\)"):
        read_idx(tmp_path / "none", 1)
    with pytest.raises(InputError, match=r"cannot be read \(Is a directory\)"):
        idx_shape(tmp_path, 1)
