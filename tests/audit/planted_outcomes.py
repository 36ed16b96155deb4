"""Silos with one bug each in what they charge over a ledger's life, how they fail, and what their keys decide."""

from __future__ import annotations

import itertools

import numpy as np

from fedcore.errors import SiloError
from fedcore.ledger.ledger import settled
from fedcore.mechanisms.discrete_gaussian import DiscreteGaussian
from fedcore.mechanisms.secret_sample import sample_stream
from fedcore.silo.private_silo import PrivateSilo
from tests.audit.planted import VIEW, Planted

_drawn = DiscreteGaussian.draw
_silos = itertools.count()


class FailsAtLongRecords(PrivateSilo):
    """A silo that does not answer about records that are longer than it expects."""

    def answer(self, question, phase):
        if np.abs(self._finite).max() > 1e100:
            raise SiloError(self.name, "failed", "it could not answer; see the log at the silo")
        return super().answer(question, phase)


class OfItsOwnNumber(PrivateSilo):
    """A silo whose number everybody knows; it is another in each silo."""

    def __init__(self, *rest, **more):
        super().__init__(*rest, **more)
        self.number = next(_silos)

    def answer(self, question, phase):
        _number["now"] = self.number.to_bytes(8, "little")
        return super().answer(question, phase)


_number = {"now": b""}


def cut(sampler, stream, n):
    """Noise on the grid that stays within 3.5 sigma."""
    limit = int(3.5 * sampler.s)
    return np.clip(_drawn(sampler, stream, n), -limit, limit)


HALF = {"fedcore.ledger.ledger.settled": lambda charge, mu_squared: settled(charge, mu_squared / 2),
        "fedcore.ledger.sqlite.settled": lambda charge, mu_squared: settled(charge, mu_squared / 2)}  # fmt: skip
NAMED = {
    "closing charges half of what was spent": Planted(patches=HALF),
    "a silo that fails at long records": Planted(opener=FailsAtLongRecords),
    "coins of a public number, another in each silo": Planted(
        "coins", OfItsOwnNumber, {VIEW + "sample_stream": lambda key, context: sample_stream(_number["now"], context)}
    ),
    "noise on the grid cut at 3.5 sigma": Planted(
        "guarded", patches={"fedcore.mechanisms.discrete_gaussian.DiscreteGaussian.draw": cut}
    ),
}
