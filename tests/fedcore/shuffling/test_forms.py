"""Bytes that arrive at a shuffler, a server or a site: the one form, or a public sentence."""

from __future__ import annotations

import json
from random import Random

import pytest

from fedcore.errors import InputError, Refused
from fedcore.shuffling.batches import Batches
from fedcore.shuffling.forms import Envelope, Opening, Request, Route, SealedBatch, check_address
from fedcore.shuffling.shuffler import Shuffler
from tests.faults.mutations import ODD, bent_bytes
from tests.fedcore.shuffling.rounds import KEY, LENGTH, NAMES, OWNER, QUESTION, at, sealed

FORMS = {
    "opening": Opening(at(), NAMES, 2, 10.0, LENGTH, QUESTION, KEY, OWNER),
    "envelope": Envelope(at(), "ash", 2, QUESTION, KEY, sealed("ash")),
    "request": Request(at(), OWNER),
    "batch": SealedBatch(at(), (sealed("ash"), sealed("birch"))),
    "route": Route("http://127.0.0.1:8400", KEY, 60.0, "5e" * 32),
}


@pytest.mark.parametrize("kind", FORMS)
def test_each_form_comes_back_as_it_was_written(kind):
    form = FORMS[kind]
    assert type(form).from_bytes(form.to_bytes()) == form


@pytest.mark.parametrize("kind", FORMS)
def test_other_bytes_are_refused_in_one_sentence(kind):
    random, form = Random(kind), FORMS[kind]
    data, other = form.to_bytes(), FORMS["opening" if kind != "opening" else "envelope"].to_bytes()
    accepted = 0
    for _ in range(600):
        bent = bent_bytes(random, data, other)
        try:
            found = type(form).from_bytes(bent)
        except ValueError as error:
            assert str(error).isprintable() and len(str(error)) < 200
        else:  # of another value within the bounds
            accepted += 1
            assert found.to_bytes() == bent
    assert accepted < 300


@pytest.mark.parametrize("kind", FORMS)
def test_no_declared_field_takes_another_kind_of_value(kind):
    form = FORMS[kind]
    head, line, rest = form.to_bytes().partition(b"\n")
    fields = json.loads(head)
    for place, odd in [(place, odd) for place in range(len(fields)) for odd in [*ODD, 10**30, [fields], "x" * 201]]:
        bent = [*fields[:place], odd, *fields[place + 1 :]]
        try:
            data = json.dumps(bent).encode() + line + rest
            found = type(form).from_bytes(data)
        except ValueError:
            continue
        assert type(odd) in (type(fields[place]), float) and found.to_bytes() == data
    for cut in ([], fields[:-1], [*fields, 1]):
        with pytest.raises(ValueError):
            type(form).from_bytes(json.dumps(cut).encode() + line + rest)


def test_a_shuffler_outlives_whatever_arrives(tmp_path):
    shuffler, random = Shuffler(Batches(tmp_path / "batches.sqlite")), Random(5)
    shuffler._batches._db.execute("PRAGMA synchronous = OFF")
    acts = {"open": "opening", "take": "envelope", "batch": "request"}
    sound = {act: FORMS[kind].to_bytes() for act, kind in acts.items()}
    for _ in range(1500):
        act = random.choice(list(sound))
        try:
            getattr(shuffler, act)(bent_bytes(random, sound[act], sound[random.choice(list(sound))]))
        except Refused as error:
            assert error.sentence and len(error.sentence) < 500
    shuffler.open(Opening(at(run="sound"), NAMES[:2], 2, 10.0, LENGTH, QUESTION, KEY, OWNER).to_bytes())
    for name in NAMES[:2]:
        shuffler.take(Envelope(at(run="sound"), name, 2, QUESTION, KEY, sealed(name)).to_bytes())
    assert shuffler.batch(Request(at(run="sound"), OWNER).to_bytes())


@pytest.mark.parametrize(
    "address",
    [
        "",
        "host:1",
        "ftp://host:1",
        "http://",
        "http://host",
        "http://host:99999",
        "http://host:1/path",
        "http://u@host:1",
        "http://host:1?q",
        "http://host:1#f",
        "http://ho\nst:1",
        "file:///etc/passwd",
        "http://" + "h" * 300 + ":1",
    ],
)
def test_an_address_is_a_scheme_a_host_and_a_port(address):
    with pytest.raises(InputError, match="is no address of a shuffler: write http://host:port"):
        check_address("shuffler.address", address)
    with pytest.raises(ValueError):
        Route.from_bytes(json.dumps([address, KEY, 60.0, ""]).encode())
