"""Does any account say less than was released? Charges over the whole life of a ledger, worked out again.

A ledger of the auditor's own is opened, closed, gone on with, restored from an older copy and reconciled; one of an
older version is migrated; two versions of a silo's data share an account in a register. After each step charges,
statements and the site's account are compared with what the releases' events cost at least
(`fedcore.audit.accounts.cost`).
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from fedcore.audit.accounts.caps import capped
from fedcore.audit.accounts.durable import durable
from fedcore.audit.accounts.in_memory import in_memory
from fedcore.audit.accounts.known_account import SLACK, KnownAccount
from fedcore.audit.accounts.migrated import migrated
from fedcore.audit.accounts.versions import registered
from fedcore.audit.audited_silo import AuditedSilo
from fedcore.audit.finding import Finding
from fedcore.directed_rounding import in_full
from fedcore.errors import InputError, SiloError


def accounts(audited: AuditedSilo, rng: np.random.Generator) -> Finding:
    """Counts what is charged, stated or told below the least that the releases cost, and caps that admit too much.

    statistic: such places; threshold: 0. There is no chance in it.
    """
    known = KnownAccount(audited)
    _planned(known)
    with tempfile.TemporaryDirectory() as folder:
        for life in (durable, migrated, capped, in_memory, registered):
            its = KnownAccount(audited)
            try:
                life(its, rng, Path(folder, life.__name__))
            except (SiloError, InputError) as error:  # what a correct ledger refuses here is awaited where it is asked
                its.holds(str(error), False)
            known.said += its.said
            known.compared += its.compared
    many = len(known.said)
    detail = f"{many} of {known.compared} charges, statements and refusals are below what was released"
    if many:
        detail += f"; the first: {known.said[0]}"
    return Finding("accounts", not many, float(many), 0.0, 0.0, detail)


def _planned(known: KnownAccount) -> None:
    """The plan keeps to the delta and epsilon that were agreed; of shuffled runs another epsilon, of all silos, is."""
    problem = known.audited.plan.problem
    agreed = 1.0 / known.audited.n**2 if problem.budget.fixed_delta is None else problem.budget.fixed_delta
    delta = known.audited.delta
    known.holds(f"delta is {in_full(delta)}, and {in_full(agreed)} is agreed", delta <= agreed * SLACK)
    target = problem.budget.epsilon
    if target is None or problem.trust.shuffle is not None:
        return
    if problem.evaluation is not None and problem.evaluation.epsilon is not None:
        target = max(target, problem.evaluation.epsilon)
    known.covers("the plan", known.planned, target, delta)
