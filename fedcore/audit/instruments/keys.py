"""Test that coins and noise follow from the run's secret key and from no other changing value.

The test reaches into the silo: foreseeable coins look like any others in the outputs. The ledger stores the key of a
run, so an auditor's ledger gives one silo, for one run and one question, one key or another.
"""

from __future__ import annotations

import numpy as np
from scipy import stats

from fedcore.accounting.filters import Cap, Charge
from fedcore.audit.answers import Sum
from fedcore.audit.audit_session import AuditSession
from fedcore.audit.audited_silo import AuditedSilo
from fedcore.audit.cells import least
from fedcore.audit.finding import Finding
from fedcore.audit.scenes import equal_records
from fedcore.ledger.memory import MemoryLedger

ASKED = 40
"""Number of the run's first addresses that are asked."""
RUN = "audit-keys"


class _GivenKey(MemoryLedger):
    """A ledger that gives every run the auditor's key, and can be emptied."""

    key = b""

    def open_run(
        self,
        run: str,
        plan: str,
        key: bytes,
        charge: Charge,
        cap: Cap | None,
        person: str | None = None,
        lease: int = 0,
        policy: Cap | None = None,
    ) -> bytes:
        return super().open_run(run, plan, self.key, charge, cap, person, lease, policy)

    def empty(self) -> None:
        self.__init__(self._silo)  # type: ignore[misc]


def keys(audited: AuditedSilo, rng: np.random.Generator, false_alarm: float) -> Finding:
    """Tests that another key, even in one bit, changes coins and noise, and the same key repeats them.

    Questions and addresses are the same, whatever was asked in between. Under two keys a record is in both samples as
    often as in two independent ones: exact binomial and hypergeometric counts. A number of the noise equals that of
    another key with probability below 2^-40. (A grid's step is at most 2^-20 of the noise, and a sum has many numbers.)
    statistic: the least corrected p-value.
    """
    ledger = _GivenKey(audited.silo)
    session = AuditSession(audited, equal_records(audited, rng), ledger)
    key = rng.bytes(32)
    others = [rng.bytes(32), bytes([key[0] ^ 1]) + key[1:], key[:-1] + bytes([key[-1] ^ 128])]
    first = _answers(session, ledger, key)
    families: dict[str, list[float]] = {"the same key": [], "coins of another key": [], "noise of another key": []}
    for other in others:
        payloads, coins = _answers(session, ledger, other)
        same = [bool(np.array_equal(one, two)) for one, two in zip(first[0], payloads, strict=True)]
        # One number on a grid may be equal by chance; all of them are hardly ever equal.
        families["noise of another key"].append(1e-40 if all(same) else 1.0)
        families["coins of another key"] += _overlap(audited, first[1], coins)
    again = _answers(session, ledger, key)
    repeated = all(np.array_equal(one, two) for one, two in zip(first[0], again[0], strict=True))
    repeated &= [_chosen(one) for one in first[1]] == [_chosen(one) for one in again[1]]
    families["the same key"].append(1.0 if repeated else 0.0)
    sentence = "coins and noise follow from the run's key"
    return least("keys", {name: np.array(cells) for name, cells in families.items()}, false_alarm, sentence)


def _answers(session: AuditSession, ledger: _GivenKey, key: bytes) -> tuple[list[np.ndarray], list[tuple[Sum, ...]]]:
    """Payloads and sums of the run's first addresses, in a silo that opens the run anew under this key."""
    ledger.empty()
    ledger.key = key
    payloads, sums = [], []
    for address in session.audited.addresses[:ASKED]:
        release, about = session.answer(RUN, address)
        payloads.append(release.payload)
        sums.append(about)
    session.forget(RUN)
    return payloads, sums


def _chosen(sums: tuple[Sum, ...]) -> list[bytes]:
    return [b"" if one.chosen is None else one.chosen.tobytes() for one in sums]


def _overlap(audited: AuditedSilo, one: list[tuple[Sum, ...]], two: list[tuple[Sum, ...]]) -> list[float]:
    """P-values of the number of places in both samples, or of agreeing coins, over all addresses."""
    law, seen = np.ones(1), 0
    for address, first, second in zip(audited.addresses, one, two, strict=False):
        event = audited.event(address)
        places = event.stop - event.start
        for mine, other in zip(first, second, strict=False):
            if mine.chosen is None or other.chosen is None:
                continue
            common = len(np.intersect1d(mine.chosen, other.chosen))
            if event.sampling == "poisson":
                agree = places - len(mine.chosen) - len(other.chosen) + 2 * common
                each = stats.binom.pmf(np.arange(places + 1), places, event.rate**2 + (1.0 - event.rate) ** 2)
                seen += agree
            else:
                size = round(event.rate * places)
                each = stats.hypergeom.pmf(np.arange(size + 1), places, size, size)
                seen += common
            law = np.convolve(law, each)
    if len(law) == 1:
        return []
    return [float(min(1.0, 2.0 * min(law[: seen + 1].sum(), law[seen:].sum())))]
