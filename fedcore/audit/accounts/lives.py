"""Test that no account is below the releases: charges over a ledger's life, computed again.

A ledger of the auditor's own is opened, closed, continued, restored from an older copy and reconciled. One of an older
version is migrated; two versions of a silo's data share an account in a register. After each step charges, statements
and the site's account are compared with the least cost of the releases' events (`fedcore.audit.accounts.cost`).
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
    """Counts charges and statements below the least cost of the releases, and caps that admit too much.

    statistic: number of such places; threshold: 0; no chance.
    """
    known = KnownAccount(audited)
    _planned(known)
    with tempfile.TemporaryDirectory() as folder:
        for life in (durable, migrated, capped, in_memory, registered):
            its = KnownAccount(audited)
            try:
                life(its, rng, Path(folder, life.__name__))
            except (SiloError, InputError) as error:  # each life catches the refusals of a correct ledger
                its.holds(str(error), False)
            known.faults += its.faults
            known.compared += its.compared
    many = len(known.faults)
    detail = f"{many} of {known.compared} charges, statements and refusals are below what was released"
    if many:
        detail += f"; the first: {known.faults[0]}"
    return Finding("accounts", not many, float(many), 0.0, 0.0, detail)


def _planned(known: KnownAccount) -> None:
    """Checks that the plan stays within the agreed delta and epsilon.

    Shuffled runs are exempt from the latter: their epsilon is that of all silos.
    """
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
