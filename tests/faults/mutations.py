"""Mutations of what arrives at a site: bytes, JSON trees, packed arrays and addresses, from a random.Random."""

from __future__ import annotations

import json
import math
import struct
from random import Random
from typing import Any

import numpy as np

from tests.wire import packed

LONG = "x" * 5000
ODD: list[Any] = [
    None,
    True,
    False,
    0,
    1,
    -1,
    2,
    3,
    10**6,
    10**18,
    -(10**18),
    2**63 - 1,
    2**63,
    2**64,
    10**400,
    0.0,
    -0.0,
    0.5,
    1.0,
    1e-320,
    1e-12,
    1e308,
    math.nan,
    math.inf,
    -math.inf,
    "",
    "0",
    "ash",
    LONG,
    "\ud800",
    "\x00",
    "é",
    "a\nb",
    "\u202e",
    [],
    {},
    [[]],
    ["ash"],
    {"name": "ash", "n": 24},
    [1, 2, 3],
]
NUMBERS = [
    0.0,
    -0.0,
    5e-324,
    1e-310,
    1.0,
    -1.0,
    1e5,
    1e11,
    9.999999e11,
    1e12,
    1.0000001e12,
    1e154,
    1e308,
    math.inf,
    -math.inf,
    math.nan,
]
DTYPES = ["<f4", "<f2", ">f8", "<i8", "<c16", "u1", "U3"]


def bent_bytes(random: Random, data: bytes, other: bytes) -> bytes:
    """Flipped, cut, extended, spliced with `other`, or a shard twice."""
    at, to = sorted((random.randint(0, len(data)), random.randint(0, len(data))))
    kind = random.randrange(8)
    if kind == 0 and data:
        bit = random.randrange(8 * len(data))
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        return bytes(flipped)
    if kind == 1:
        return data[:at]
    if kind == 2:
        return data + bytes(random.randrange(256) for _ in range(random.randint(1, 20)))
    if kind == 3:
        return data[:at] + other[random.randint(0, len(other)) :]
    if kind == 4:
        return data[:to] + data[at:]
    if kind == 5:
        return data[:at] + data[to:]
    if kind == 6:
        return data[:at] + struct.pack("<Q", random.choice([0, 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1])) + data[at + 8 :]
    return bytes(random.randrange(256) for _ in range(random.randint(0, 60)))


def places(tree: Any) -> list[tuple[Any, Any]]:
    """(container, key) of all nodes below the root."""
    found = []
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in items:
        found += [(tree, key), *places(value)]
    return found


def bent_tree(random: Random, tree: Any) -> Any:
    """One node replaced, gone, added, doubled or in another's place; the tree is changed in place."""
    found = places(tree)
    if not found:
        return random.choice(ODD)
    container, key = random.choice(found)
    kind = random.randrange(7)
    if kind <= 2:
        container[key] = random.choice(ODD)
    elif kind == 3:
        del container[key]
    elif kind == 4 and isinstance(container, dict):
        container[random.choice(["extra", LONG, "\ud800", "name", "_digest", ""])] = random.choice(ODD)
    elif kind == 4:
        container.insert(random.randint(0, len(container)), random.choice([random.choice(ODD), container[key]]))
    elif kind == 5:
        other, its = random.choice(found)
        container[key] = json.loads(json.dumps(other[its])) if its in other or isinstance(other, list) else None
    else:
        container[key] = [container[key]]
    return tree


def scaled(random: Random, value: Any) -> Any:
    """A number of the same type, near or far; other values as they are."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    if isinstance(value, int):
        return random.choice([value + 1, value - 1, 2 * value, value // 2, -value, 7 * value, 10**6 * value, 1, 10**15])
    near = [np.nextafter(value, math.inf), np.nextafter(value, -math.inf), value * 2, value / 2, value * 1.01]
    far = [value * 1e9, value / 1e9, 1e-300, 1e300, 5e-324, 1.0, -value]
    return float(random.choice(near * 3 + far))


def rescaled(random: Random, tree: Any) -> Any:
    """One or two numbers of a tree changed within their types."""
    # Sizes of silos are what sites compare first: seldom those.
    found = [
        (container, key)
        for container, key in places(tree)
        if type(container[key]) in (int, float) and (key not in ("n", "dim") or random.random() < 0.1)
    ]
    for container, key in random.sample(found, min(len(found), random.choice([1, 1, 1, 2]))):
        container[key] = scaled(random, container[key])
    return tree


def bent_text(random: Random, text: str) -> str:
    """The same JSON in another form, or text that is nearly JSON."""
    kind = random.randrange(7)
    if kind == 0:
        return text.replace(", ", ",")
    if kind == 1:
        return text.replace("{", '{"name": "x", ', 1)
    if kind == 2:
        return "[" * random.choice([50, 150, 250, 10**5]) + text
    if kind == 3:
        return text.replace("1", random.choice(["1e0", "1.0", "01", "1e999", "-1", "NaN", "1" * 6000, "Infinity"]), 1)
    if kind == 4:
        return text + random.choice([" ", "\n", ",", "]", "//"])
    if kind == 5:
        return text.replace("e", "\\u0065", 1)
    return "\ufeff" + text


def bent_array(random: Random, array: np.ndarray, radius: float) -> np.ndarray:
    """Another type, shape or value; the values often just inside or outside of the ball of `radius`."""
    kind, bent = random.randrange(9), np.array(array)
    if kind == 0:
        return bent.astype(random.choice(DTYPES))
    if kind == 1:
        return bent.reshape(random.choice([(1, -1), (-1, 1), (-1, 1, 1, 1, 1, 1, 1, 1, 1), (-1, 1, 1)]))
    if kind == 2:
        return np.zeros(random.choice([0, 1, bent.size + 1, max(bent.size - 1, 0), 1000]))
    if kind == 3:
        return np.zeros(random.choice([(0, 2**40), (2**31, 0), (0,) * 9, (), (3, 0, 2)]))
    if kind == 4:
        bent.flat[random.randrange(max(bent.size, 1)) : None] = random.choice(NUMBERS)
        return bent
    if kind == 5:
        return np.full_like(bent, random.choice(NUMBERS))
    if kind == 6:
        return np.asfortranarray(bent[::-1])
    direction = np.array([random.gauss(0, 1) for _ in range(bent.size)])
    direction *= radius / max(float(np.linalg.norm(direction)), 1e-300)
    return direction * random.choice([1 - 1e-12, 1.0, 1 + 1e-12, 1 + 1e-8, 1.001, 0.5, 1e-320])


def bent_query(
    random: Random, head: list[Any], arrays: dict[str, np.ndarray], radius: float, other: dict[str, np.ndarray]
) -> bytes:
    """A query whose head or arrays are others; in the form in which queries travel."""
    head, arrays = json.loads(json.dumps(head)), dict(arrays)
    kind, name = random.randrange(13), random.choice(sorted(arrays) or ["w"])
    if kind <= 1:
        head[2] = random.choice([head[2] + 1, head[2] - 1, 1, 2, 3, 2**40])
    elif kind <= 3:
        head[3] = random.choice([head[3] + 1, head[3] - 1, 1, 2, 3, 4, 2**62])
    elif kind == 4:
        names = head[4]
        head[4] = random.choice(
            [names[::-1], names * 2, [], names[:1], [*names, "oak"], ["oak"], [*names, LONG], ["elm"] * 300, ["Ash"]]
        )
    elif kind == 5:
        head = bent_tree(random, head)
    elif kind == 6 and name in arrays:
        to = random.choice(["v", "", "w@", "w@oak", "w@ash", "@", "w@ash@ash", "é", "correction@elm", "correction"])
        arrays[to] = arrays.pop(name) if random.random() < 0.5 else arrays[name]
    elif kind == 7:
        arrays.pop(name, None)
    elif kind == 8:
        arrays = dict(other)
    elif kind == 9 and len(arrays) > 1:
        first, second = random.sample(sorted(arrays), 2)
        arrays[first], arrays[second] = arrays[second], arrays[first]
    elif name in arrays:
        arrays[name] = bent_array(random, arrays[name], radius)
    try:
        return json.dumps(head).encode() + b"\n" + packed(arrays)
    except (struct.error, UnicodeEncodeError):
        return json.dumps(head).encode() + b"\n"
