"""Questions outside of the plan that a silo must refuse: another answer, address or plan; losses."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedcore.audit.addresses import Sent
from fedcore.audit.audit_session import AuditSession
from fedcore.errors import SiloError


def asked_again(
    session: AuditSession, run: str, addresses: Sequence[tuple[int, int]], other_first: bool = False
) -> list[Sent]:
    """Asks each address as `still` did, and with other arrays, or these first; returns the payloads.

    A refusal has no payload.
    """
    seen = []
    for address in addresses:
        first, other = session.queries.first(address), session.queries.other(address)
        questions = [first, other] if other else [first]
        for sent in questions[::-1] if other_first else questions:
            payload = session.payload(run, address, sent)
            if payload is not None:
                seen.append(Sent(session.audited.silo, run, *address, payload))
    return seen


def answered_beyond(session: AuditSession, run: str) -> list[tuple[int, int]]:
    """Addresses next to the plan's that were answered to the nearest address's question.

    A correct silo has none.
    """
    phases = session.audited.plan.phases
    near = {(phase.index, at): (phase.index, phase.rounds) for phase in phases for at in _after(phase.rounds)}
    near |= {(phase.index, 0): (phase.index, 1) for phase in phases}
    near |= {(0, 1): (1, 1), (len(phases) + 1, 1): (len(phases), 1)}
    payloads = {address: session.payload(run, address, session.queries.first(like)) for address, like in near.items()}
    return [address for address, payload in payloads.items() if payload is not None]


def takes_another_plan(session: AuditSession, run: str) -> bool:
    """True if the silo agrees to another plan under the name of this run, to which it has already agreed."""
    other = AuditSession(session.audited.in_another_plan(), session.records, lease=session.lease, of=session)
    try:
        other.approved(run)
    except SiloError:
        return False
    return True


def refusal_of_losses(session: AuditSession, run: str) -> tuple[str, str]:
    """Code and sentence of a guarded silo's refusal to show exact losses.

    Raises ValueError if it shows them.
    """
    try:
        session.losses(run, np.zeros(session.audited.plan.problem.objective.dim))
    except SiloError as error:
        return error.code, error.sentence
    raise ValueError("a guarded silo shows exact losses")


def _after(rounds: int) -> tuple[int, ...]:
    return rounds + 1, rounds + 2, rounds + 5, 2 * rounds + 1
