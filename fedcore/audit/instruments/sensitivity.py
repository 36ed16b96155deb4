"""Test that another record moves an answer by at most the charge, exactly, in a plan without noise.

In the other instruments noise hides a charged sensitivity that is a few hundredths too small. This one compares the
distance of two messages about neighbouring records with the charge of the plan with noise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from fedcore.audit.accounts.known_account import chosen
from fedcore.audit.answers import Sum
from fedcore.audit.audit_session import AuditSession, row_order
from fedcore.audit.audited_silo import AuditedSilo
from fedcore.audit.canaries import clipping_pair
from fedcore.audit.finding import Finding
from fedcore.audit.instruments.outcomes import neighbours
from fedcore.audit.reading import Reader
from fedcore.audit.scenes import mixed_records
from fedcore.data.records import Records

RUN = "audit-sensitivity"
SLACK = 1.0 + 1e-9
"""Factor on distances for the rounding of sums of as few records as an audit has."""


def sensitivity(audited: AuditedSilo, rng: np.random.Generator) -> Finding:
    """Compares distances of messages without noise about neighbours with the charged sensitivity.

    statistic: the largest distance over the charged one, of all differing records together; threshold: 1 + 1e-9. No
    chance.
    Raises InputError where the method has no plan without noise.
    """
    plain = audited.without_noise()
    worst, compared, where = 0.0, 0, ""
    order = row_order(plain, RUN)
    for one, others, addresses in _compared(plain, order, rng):
        first = _messages(plain, one, order, addresses)
        for name, other in others:
            differing, second = _rows(one, other), _messages(plain, other, order, addresses)
            for address, (message, held) in first.items():
                compared += 1
                most = audited.event(address).sensitivity
                charged = most * held(differing)
                distance = float(np.linalg.norm(second[address][0] - message))
                # A sample without a differing record moves by zero, up to rounding of the others' sum.
                still = 0.0 if distance <= 1e-9 * most else np.inf
                moved = distance / charged if charged > 0 else still
                if not moved <= worst:
                    worst, where = float(moved), f"; the most in round {address[0]}.{address[1]}, where {name}"
    detail = f"of {compared} messages, neighbours moved none by more than {worst:.6g} of what is charged{where}"
    return Finding("sensitivity", worst <= SLACK, worst, SLACK, 0.0, detail)


def _compared(
    plain: AuditedSilo, order: np.ndarray, rng: np.random.Generator
) -> Iterator[tuple[Records, Iterable[tuple[str, Records]], list[tuple[int, int]]]]:
    """Yields a data set, its neighbours by name, and the addresses that are asked.

    Later local steps ask at models that a record has moved; the other records of their data sets are silent.
    """
    addresses = chosen(plain)
    for name, rows in (("one record is far out", order[plain.events[0].start :][:1]), ("all are far out", order)):
        pair = clipping_pair(plain, rows, rng)
        yield pair.without, [(name, pair.canary)], addresses
    row = order[plain.events[0].start]
    for one, other in plain.answer.extremes():
        sides = [Records(np.zeros((plain.n, one.size)), np.ones(plain.n)) for _ in range(2)]
        sides[0].X[row], sides[1].X[row] = one, other
        yield sides[0], [("one record is at the other end of what is allowed", sides[1])], addresses
    if plain.answers == 1:
        usual = mixed_records(plain, rng)
        for others, filling in (
            ("others are no numbers", np.full(usual.X.shape, np.nan)),
            ("others are mixed", usual.X),
        ):
            for row in (0, plain.n // 2, plain.n - 1):
                pair = clipping_pair(plain, np.array([row]), rng)
                differs = np.arange(plain.n)[:, None] == row
                sides = [replace(side, X=np.where(differs, side.X, filling)) for side in (pair.without, pair.canary)]
                yield sides[0], [(f"one record is far out and {others}", sides[1])], addresses[:1]
        yield usual, neighbours(plain, usual, rng), addresses[:1]


def _messages(
    plain: AuditedSilo, records: Records, order: np.ndarray, addresses: list[tuple[int, int]]
) -> dict[tuple[int, int], tuple[np.ndarray, Callable[[np.ndarray], float]]]:
    """By address, the message, and the factor on the charged sensitivity by differing rows (n,).

    The factor counts the differing rows of each sum, by the sum's weight in the message and the length of the step.
    """
    session, reader = AuditSession(plain, records), Reader(plain)

    def held(address: tuple[int, int], sums: tuple[Sum, ...], differing: np.ndarray) -> float:
        event, sent = plain.event(address), session.queries.first(address)
        places, weights = order[event.start : event.stop], np.abs(reader.weights(sent))
        if len(sums) != len(weights):  # other sums than the method asked for, perhaps about all records
            return float(weights.sum() * differing.sum()) * reader.unit(sent)
        about = [differing[places if one.chosen is None else places[one.chosen]].sum() for one in sums]
        return float(weights @ about) * reader.unit(sent)

    found: dict[tuple[int, int], tuple[np.ndarray, Callable[[np.ndarray], float]]] = {}
    for address in addresses:
        release, sums = session.answer(RUN, address)
        found[address] = release.payload, partial(held, address, sums)
    return found


def _rows(one: Records, other: Records) -> np.ndarray:
    """Mask (n,) of the rows that differ; rows with NaN in the same places are equal there."""
    first, second = (np.column_stack([each.X, each.y]) for each in (one, other))
    return np.asarray(~((first == second) | (np.isnan(first) & np.isnan(second))).all(axis=1))
