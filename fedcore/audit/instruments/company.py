"""Test that other silos and other runs do not change a silo's answers to the same questions.

Silos of one site share a process with all of its state. A change through another plan's runs shows state that a silo
should not have.
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
"""Number of addresses, spread over the plan's."""


def company(audited: AuditedSilo, rng: np.random.Generator) -> Finding:
    """Compares the bits of answers: under one key and question an answer has one noise and one sum.

    In a plan with one silo more, the silo is asked alone, with that silo, and between questions of another plan's run.

    statistic: answers that differ from those alone; threshold: 0; no chance.
    """
    pair = audited.beside(BESIDE)
    records, theirs = mixed_records(pair, rng), mixed_records(pair, rng)
    questions = list(_questions(pair, rng))
    alone = _answers(AuditSession(pair, records), questions)
    changed, compared = [], 0
    for company, found in (
        (
            "another silo is asked at the same site",
            _answers(AuditSession(pair, records, beside={BESIDE: theirs}), questions),
        ),
        ("it is asked in another plan as well", _among(pair, records, questions)),
    ):
        compared += len(found)
        changed += [(company, questions[at][0]) for at in range(len(questions)) if found[at] != alone[at]]
    detail = f"of {compared} answers in company {len(changed)} are others than alone"
    if changed:
        company, (phase, round) = changed[0]
        detail += f"; the first in round {phase}.{round}, where {company}"
    return Finding("company", not changed, float(len(changed)), 0.0, 0.0, detail)


def _questions(audited: AuditedSilo, rng: np.random.Generator) -> Iterator[tuple[tuple[int, int], Arrays]]:
    """Yields addresses with questions, in turn about the first model and about others."""
    queries = Queries(audited)
    for turn, address in enumerate(audited.spread(ASKED)):
        yield address, queries.far(address, rng) if turn % 2 else queries.first(address)


def _answers(session: AuditSession, questions: list[tuple[tuple[int, int], Arrays]]) -> list[bytes | None]:
    found = []
    for address, sent in questions:
        session.queries.first(address)  # learns which arrays go to each silo by itself
        found.append(session.payload(RUN, address, sent))
    return found


def _among(
    audited: AuditedSilo, records: Records, questions: list[tuple[tuple[int, int], Arrays]]
) -> list[bytes | None]:
    """Answers of a silo that also answers in a run of another plan before each of them."""
    session = AuditSession(audited, records)
    other = AuditSession(audited.in_another_plan(), records, of=session)
    other.approved("audit-other-plan")
    found = []
    for question in questions:
        if question[0] in other.audited.addresses:
            other.payload("audit-other-plan", question[0], other.queries.first(question[0]))
        found += _answers(session, [question])
    return found
