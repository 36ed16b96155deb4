"""Silos with one bug each: in charges over a ledger's life, in failures, or in what their keys decide."""

from __future__ import annotations

import hashlib
from unittest.mock import patch

import numpy as np

from fedcore.errors import SiloError
from fedcore.ledger.ledger import settled
from fedcore.ledger.operator.accounts import Account
from fedcore.ledger.operator.registered import RegisteredLedger
from fedcore.mechanisms.discrete_gaussian import DiscreteGaussian
from fedcore.mechanisms.secret_sample import sample_stream
from fedcore.silo.private_silo import PrivateSilo
from tests.audit.planted import Planted

REGISTERED = "fedcore.ledger.operator.registered.RegisteredLedger."
_drawn = DiscreteGaussian.draw
_note, _open_run = RegisteredLedger._note, RegisteredLedger.open_run


class FailsAtLongRecords(PrivateSilo):
    """A silo that fails to answer about records longer than it expects."""

    def answer(self, question, phase):
        if np.abs(self._finite).max() > 1e100:
            raise SiloError(self.name, "failed", "it could not answer; see the log at the silo")
        return super().answer(question, phase)


class OfItsFingerprint(PrivateSilo):
    """A silo whose coins follow from its key's public fingerprint and the address, not from a run key."""

    def __init__(self, name, records, key, *rest, **more):
        super().__init__(name, records, key, *rest, **more)
        self.fingerprint = hashlib.sha256(name.encode() + hashlib.sha256(key.secret).digest()).digest()

    def answer(self, question, phase):
        _fingerprint["now"] = self.fingerprint
        return super().answer(question, phase)


_fingerprint = {"now": b""}


def stream_of_fingerprint(key, context):
    return sample_stream(_fingerprint["now"], context)


def cut(sampler, stream, n):
    """Noise on the grid that stays within 3.5 sigma."""
    limit = int(3.5 * sampler.s)
    return np.clip(_drawn(sampler, stream, n), -limit, limit)


def halved(ledger, kind, body, *before):
    """A register that records half of a run's charge."""
    if kind == "reserved":
        body = body | {"charge": body["charge"] | {"mu_squared": body["charge"]["mu_squared"] / 2}}
    _note(ledger, kind, body, *before)


def alone(account, version):
    """An account in which every version of a silo's data stands by itself."""
    yield account.versions[version]


def capped_alone(ledger, *rest, **more):
    """A cap over the runs of the open version only; the account itself has all versions."""
    with patch.object(Account, "sharing", alone):
        return _open_run(ledger, *rest, **more)


HALF = {
    f"fedcore.ledger.{place}.settled": lambda charge, mu_squared, *rest: settled(charge, mu_squared / 2, *rest)
    for place in ("memory", "sqlite")
}
NAMED = {
    "closing charges half of what was spent": Planted(patches=HALF),
    "a register that takes half of a charge": Planted(patches={REGISTERED + "_note": halved}),
    "versions of data that have an account each": Planted(
        patches={"fedcore.ledger.operator.accounts.Account.sharing": alone}
    ),
    "a cap over one version of the data": Planted(patches={REGISTERED + "open_run": capped_alone}),
    "a silo that fails at long records": Planted(opener=FailsAtLongRecords),
    "coins of a public fingerprint and address": Planted(
        "coins", OfItsFingerprint, {"fedcore.silo.keys.secret.sample_stream": stream_of_fingerprint}
    ),
    "samples of a public fingerprint and address": Planted(
        "local steps", OfItsFingerprint, {"fedcore.silo.keys.secret.sample_stream": stream_of_fingerprint}
    ),
    "noise on the grid cut at 3.5 sigma": Planted(
        "guarded", patches={"fedcore.mechanisms.discrete_gaussian.DiscreteGaussian.draw": cut}
    ),
}
