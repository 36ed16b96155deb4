"""Byte forms: of arrays, queries and states, injective and checked."""

import dataclasses
import hashlib
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedcore.arrays import digest, pack, unpack
from fedcore.messages import Query, Release
from fedcore.state import State, dump_state, load_state

shapes = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)
named = st.dictionaries(st.text(max_size=5), hnp.arrays(np.float64, shapes), max_size=4)


@given(named)
def test_unpack_gives_back_every_bit(arrays):
    found = unpack(pack(arrays))
    assert found.keys() == arrays.keys()
    for name, array in arrays.items():
        assert found[name].shape == array.shape and found[name].tobytes() == array.tobytes()
        assert found[name].flags.writeable and found[name].flags.owndata


@given(named, named)
def test_different_arrays_have_different_bytes(a, b):
    def bits(arrays):
        return {name: (array.shape, array.tobytes()) for name, array in arrays.items()}

    assert (pack(a) == pack(b)) == (bits(a) == bits(b))


def test_order_of_names_and_of_memory_does_not_matter():
    grid = np.arange(6.0).reshape(2, 3)
    assert pack({"a": grid, "b": grid[0]}) == pack({"b": grid[0], "a": np.asfortranarray(grid)})
    assert pack({"a": grid.T}) != pack({"a": grid})
    assert pack({"a": np.array([0.0])}) != pack({"a": np.array([-0.0])})


def test_cut_or_extended_bytes_are_refused():
    data = pack({"w": np.arange(3.0), "k": np.array(2.0)})
    for end in range(len(data)):
        with pytest.raises(ValueError, match=r"cut|tail"):
            unpack(data[:end])
    with pytest.raises(ValueError, match="tail"):
        unpack(data + b"\0")


@pytest.mark.parametrize("dtype", ["float32", "int64", "complex128", "object", ">f8"])
def test_only_float64_travels(dtype):
    with pytest.raises(TypeError, match="only float64"):
        pack({"w": np.zeros(2, dtype)})


def test_digest_tells_parts_apart():
    assert digest(b"ab", b"c") != digest(b"a", b"bc") != digest(b"abc")
    assert digest() != digest(b"") != digest(b"", b"")
    by_hand = hashlib.sha256((2).to_bytes(8, "little") + b"ab" + (1).to_bytes(8, "little") + b"c").digest()
    assert digest(b"ab", b"c") == by_hand


def query(**changes):
    values = {"run": "r", "plan": "p", "phase": 1, "round": 2, "participants": ("a", "b")}
    return Query(**{**values, "arrays": {"w": np.array([1.0, np.pi])}, **changes})


def test_query_digest_covers_what_is_asked():
    other_arrays = [{"w": np.array([1.0, 3.0])}, {"v": np.array([1.0, np.pi])}, {"w": np.array([[1.0, np.pi]])}]
    different = [query(run="s"), query(plan="q"), query(phase=2), query(round=1)]
    different += [query(arrays=arrays) for arrays in other_arrays]
    assert len({q.digests(["a"])["a"] for q in [query(), *different]}) == 8
    assert query(participants=("a",)).digests(["a"])["a"] == query().digests(["a"])["a"]  # not who else was asked
    assert query(phase=1, round=12).digests(["a"])["a"] != query(phase=11, round=2).digests(["a"])["a"]


def test_query_survives_its_byte_form_and_pickling():
    own = {"ö": {"correction": np.array([[0.0, -0.0], [1.0, np.inf]])}}
    original = query(run="run\nwith é", participants=("a", "ö"), own=own)
    assert original.digests(["a"])["a"] != original.digests(["ö"])["ö"]
    for copy in (Query.from_bytes(original.to_bytes()), pickle.loads(pickle.dumps(original))):
        # Nothing that follows from the fields.
        assert set(copy.__getstate__()) == {each.name for each in dataclasses.fields(Query)}
        assert copy.digests("aö") == original.digests("aö")
        assert set(copy.arrays_for("a")) == {"w"}
        assert set(copy.arrays_for("ö")) == {"w", "correction"}
        assert copy.own["ö"]["correction"].tobytes() == own["ö"]["correction"].tobytes()
        assert (copy.run, copy.plan, copy.phase, copy.round) == (original.run, "p", 1, 2)
        assert copy.participants == original.participants
        assert copy.arrays["w"].tobytes() == original.arrays["w"].tobytes()
    with pytest.raises(ValueError, match=r"."):
        Query.from_bytes(original.to_bytes()[:-1])


def test_a_silos_own_arrays_are_its_question_and_nobody_elses():
    own = {"a": {"c": np.array([1.0])}, "b": {"c": np.array([2.0])}}
    both = query(own=own)
    assert both.at(["b"]).own == {"b": own["b"]}
    assert both.at(["b"]).digests(["b"])["b"] == both.digests(["b"])["b"]
    # As if everybody had been sent the array: an address and its arrays are what is answered.
    to_all = query(arrays={"w": np.array([1.0, np.pi]), "c": np.array([2.0])})
    assert both.digests(["b"])["b"] == to_all.digests(["b"])["b"]
    assert both.digests(["a"])["a"] == query(own={"a": own["a"]}).digests(["a"])["a"]
    assert query().at(["b"]).own == {}


def test_receipt_has_no_content():
    release = Release("a", 1, 2, b"q", b"p", np.arange(3.0))
    assert release.receipt == ("a", 1, 2, b"q", b"p")
    assert release.receipt._fields == ("silo", "phase", "round", "query_digest", "payload_digest")


@dataclasses.dataclass(frozen=True)
class Wide(State):
    matrix: np.ndarray
    count: int


def test_any_state_of_integers_and_arrays_survives():
    state = Wide(3, 4, np.array([[1.0, np.nan], [-0.0, np.inf]]), 2**40)
    copy = load_state(Wide, unpack(pack(dump_state(state))))
    assert (copy.phase, copy.round, copy.count) == (3, 4, 2**40)
    assert copy.matrix.tobytes() == state.matrix.tobytes() and copy.matrix.shape == (2, 2)
    with pytest.raises(KeyError):
        load_state(Wide, unpack(pack(dump_state(State(1, 1)))))
