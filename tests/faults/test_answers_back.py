"""Answers of a hostile site to the driver: an error with a sentence, or its own answer, and never another site's."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from random import Random

import numpy as np
import pytest

from fedcore.algorithms import Mbsgd, Scaffold
from fedcore.errors import InputError, SiloError
from tasks.workers.places import Place
from tasks.workers.sites import DaskSites
from tests.conftest import build
from tests.faults.mutations import ODD, bent_bytes, bent_text, bent_tree

HERE = ("ash", "birch")


class Back:
    """A driver of three silos: two at a site that lies, one elsewhere."""

    def __init__(self, method) -> None:
        rng = np.random.default_rng(5)
        data = {name: (rng.standard_normal((20, 3)), rng.choice([-1.0, 1.0], 20)) for name in (*HERE, "cedar")}
        self.federation = build(method, data)
        self.state = self.federation.start
        self.query = self.federation.context.query(self.state)
        self.sites = object.__new__(DaskSites)
        self.sites._plan = self.federation.plan
        self.place = Place("site-0", None, HERE)
        site = self.federation.sites[0]._site
        self.cedar = self.answer(site, ["cedar"])
        self.sound = self.answer(site, HERE)

    def answer(self, site, names):
        return site.answer(dataclasses.replace(self.query.at(names), participants=tuple(names)).to_bytes())

    def folded(self, answer):
        """The state after a round in which the lying site sent this; the driver's own steps, in their order."""
        places = [self.place, Place("site-1", None, ["cedar"])]
        releases = self.sites._in_order(self.query, places, [answer, self.cedar])
        return self.federation.context.fold(self.state, self.query, releases), releases


def test_a_site_that_sends_another_length_is_named_and_no_other():
    """Also a length that answers of other rounds have, and that the site's own silos agreed to."""
    back = Back(Mbsgd(rounds=3))
    address, names, rest = back.cedar.split(b"\n", 2)
    head, digests = [*json.loads(address), json.loads(names)], [rest[:32]]
    back.cedar = joined(head, digests, np.zeros((1, 4)))
    with pytest.raises(SiloError) as caught:
        back.folded(back.sound)
    assert (caught.value.silo, caught.value.code) == ("cedar", "answer")


def parts(bundle):
    address, names, rest = bundle.split(b"\n", 2)
    head = [*json.loads(address), json.loads(names)]
    return head, [rest[:32], rest[32:64]], np.frombuffer(rest[64:]).reshape(2, 3)


def joined(head, digests, payloads):
    lines = [head[:-1], head[-1]] if isinstance(head, list) and head else [head]
    return (
        "".join(json.dumps(line) + "\n" for line in lines).encode()
        + b"".join(digests)
        + np.ascontiguousarray(payloads).tobytes()
    )


def bent(random, bundle):
    head, digests, payloads = parts(bundle)
    kind = random.randrange(9)
    payloads = payloads.copy()
    if kind == 0:
        return bent_bytes(random, bundle, bundle)
    if kind == 1:
        return joined(bent_tree(random, head), digests, payloads)
    if kind == 2:
        lines = bundle.split(b"\n", 2)
        at = random.randrange(2)
        lines[at] = bent_text(random, lines[at].decode()).encode()
        return b"\n".join(lines)
    if kind == 3:
        head[2] = random.choice([["ash", "ash"], ["birch", "ash"], ["ash", "cedar"], ["cedar", "birch"], ["ash"], []])
        return joined(head, digests, payloads)
    if kind == 4:
        head[2] += [random.choice(["ash", "cedar", "birch"])]
        return joined(head, [*digests, random.choice(digests)], np.vstack([payloads, payloads[:1]]))
    if kind == 5:
        payloads.flat[random.randrange(6)] = random.choice([np.nan, np.inf, -np.inf, 1e308, -1e308, 1e12, 5e-324])
        return joined(head, digests, payloads)
    if kind == 6:
        head[random.choice([0, 1])] += random.choice([1, -1, 10**18, 10**30])
        return joined(head, digests, payloads)
    if kind == 7:
        return joined(head, [digests[0], random.randbytes(32)], payloads)
    return random.choice([*ODD, bytearray(bundle), memoryview(bundle), np.zeros(3), object()])


@pytest.mark.parametrize(
    "method", [Mbsgd(rounds=4), Scaffold(rounds=3, local_steps=1, sampling_rate=0.5)], ids=["one", "own"]
)
@pytest.mark.filterwarnings("error")
def test_a_mutated_bundle_ends_in_an_error_or_as_that_sites_own_answer(method):
    back, ends = Back(method), Counter()
    (_, sound), random = back.folded(back.sound), Random(11)
    cedar = sound[2].payload.tobytes()
    for _ in range(1500):
        try:
            _, releases = back.folded(bent(random, back.sound))
        except (SiloError, InputError) as error:
            message = str(error)
            assert message.isprintable() and len(message) <= 700
            assert error.__context__ is None and error.__cause__ is None
            ends[type(error).__name__] += 1
            continue
        ends["folded"] += 1
        assert [release.silo for release in releases] == ["ash", "birch", "cedar"]
        assert releases[2].payload.tobytes() == cedar and np.isfinite(releases[0].payload).all()
    assert ends["SiloError"] > 700 and ends["folded"] > 20, ends


@pytest.mark.parametrize("names", [("ash", "ash"), ("ash", "birch", "ash"), ("birch", "birch", "ash")])
def test_a_site_that_answers_twice_for_one_silo_is_refused(names):
    """Otherwise the later of the two would be folded, and its receipt stored."""
    back = Back(Mbsgd(rounds=4))
    head, digests, payloads = parts(back.sound)
    which = [HERE.index(name) for name in names]
    twice = joined([*head[:2], names], [digests[0]] * len(names), payloads[which] + np.arange(len(names))[:, None])
    with pytest.raises(SiloError, match="something else than releases of its silos"):
        back.folded(twice)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_site_that_answers_what_is_no_number_is_named(value):
    back = Back(Mbsgd(rounds=4))
    head, digests, payloads = parts(back.sound)
    spoilt = payloads.copy()
    spoilt[1, 2] = value
    with pytest.raises(SiloError, match="did not send numbers") as caught:
        back.folded(joined(head, digests, spoilt))
    assert caught.value.silo == "birch"
