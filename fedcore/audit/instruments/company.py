"""Does what a silo sends depend on what else goes on? The same question to it alone, with others, and among other runs.

Silos of one site that are asked the same are summed in one pass, and share a process with all that it keeps. A silo
keeps more of a run than it should where runs of another plan change its answers.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fedcore.arrays import Arrays
from fedcore.audit.audit_session import AuditSession
from fedcore.audit.audited_silo import AuditedSilo
from fedcore.audit.finding import Finding
from fedcore.audit.queries import Queries
from fedcore.audit.scenes import mixed_records
from fedcore.data.records import Records

BESIDE, RUN = "audit-companion", "audit-company"
ASKED = 24
"""Addresses, spread over the plan's."""


def company(audited: AuditedSilo, rng: np.random.Generator) -> Finding:
    """Compares the bits of answers: under one key and question an answer has one noise and one sum.

    In a plan with one silo more, the silo is asked alone, with that one, and while it is asked in a run of another
    plan. statistic: answers that are others than alone; threshold: 0. There is no chance in it.
    """
    pair = audited.beside(BESIDE)
    records, theirs = mixed_records(pair, rng), mixed_records(pair, rng)
    asked = list(_asked(pair, rng))
    alone = _answers(AuditSession(pair, records), asked)
    changed, compared = [], 0
    for what, found in (
        (
            "another silo is asked at the same site",
            _answers(AuditSession(pair, records, beside={BESIDE: theirs}), asked),
        ),
        ("it is asked in another plan as well", _among(pair, records, asked)),
    ):
        compared += len(found)
        changed += [(what, asked[at][0]) for at in range(len(asked)) if found[at] != alone[at]]
    detail = f"of {compared} answers in company {len(changed)} are others than alone"
    if changed:
        what, (phase, round) = changed[0]
        detail += f"; the first in round {phase}.{round}, where {what}"
    return Finding("company", not changed, float(len(changed)), 0.0, 0.0, detail)


def _asked(audited: AuditedSilo, rng: np.random.Generator) -> Iterator[tuple[tuple[int, int], Arrays]]:
    """Addresses with questions: about the first model, and about others, in turn."""
    queries = Queries(audited)
    for turn, address in enumerate(audited.spread(ASKED)):
        yield address, queries.far(address, rng) if turn % 2 else queries.first(address)


def _answers(session: AuditSession, asked: list[tuple[tuple[int, int], Arrays]]) -> list[bytes | None]:
    found = []
    for address, sent in asked:
        session.queries.first(address)  # which tells what goes to each silo by itself
        found.append(session.payload(RUN, address, sent))
    return found


def _among(audited: AuditedSilo, records: Records, asked: list[tuple[tuple[int, int], Arrays]]) -> list[bytes | None]:
    """Answers of a silo that has agreed to a run of another plan before, and answers in it before each of them."""
    session = AuditSession(audited, records)
    other = AuditSession(audited.in_another_plan(), records, of=session)
    other.approved("audit-other-plan")
    found = []
    for question in asked:
        if question[0] in other.audited.addresses:
            other.payload("audit-other-plan", question[0], other.queries.first(question[0]))
        found += _answers(session, [question])
    return found
