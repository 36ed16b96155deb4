"""Shared means of an audit's instruments: the audited silo, the auditor's randomness, the releases."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fedcore.accounting.composition import spent, worst_mu_squared
from fedcore.audit.addresses import Sent, second_release
from fedcore.audit.audit_session import AuditSession
from fedcore.audit.audited_silo import AuditedSilo
from fedcore.audit.canaries import canary_count, canary_records, scores
from fedcore.audit.finding import BOUNDS, Finding
from fedcore.audit.one_run import BOUND, one_run
from fedcore.audit.power import OneRunPower, one_run_power
from fedcore.audit.probes import answered_beyond, asked_again, takes_another_plan
from fedcore.audit.releases import Releases, gather
from fedcore.audit.scenes import equal_records
from fedcore.errors import InputError
from fedcore.ledger.ledger import Ledger
from fedcore.ledger.memory import MemoryLedger

PROBED = 600
"""Addresses asked again at a ledger of the configured kind; each costs a durable ledger a commit."""
FORGOTTEN = 4
"""Addresses of each run asked after the silo has released the run from memory."""
MOST_RUNS = 60
"""Most runs for these addresses: a durable ledger keeps every run."""


@dataclass(frozen=True, eq=False)
class Bench:
    """One audit. `ledger` makes the probed ledger; `audits`: number of audits read together."""

    audited: AuditedSilo
    rng: np.random.Generator
    ledger: Callable[[str], Ledger] = MemoryLedger
    audits: int = 1

    @cached_property
    def releases(self) -> Releases:
        """The releases that most instruments look at; made once."""
        return gather(self.audited, self.rng)

    @cached_property
    def power(self) -> OneRunPower | None:
        """Reach of the one-run bound; None where the bound does not apply."""
        return None if no_canaries(self.audited) else plan_one_run(self.audited, self.audits)

    def addresses(self) -> Finding:
        """Asks addresses again, with the same and another query; compares payloads on the wire and in ledgers.

        Probes a few addresses at a ledger of the configured kind, out of order and again after the run was forgotten.
        Compares the addresses of all releases, too. Also asks addresses outside of the plan, and offers the silo
        another plan under the run's name.
        """
        seen: list[Sent] = []
        odd: list[str] = []
        probed, number = 0, 0
        with closing(self.ledger(self.audited.silo)) as ledger:
            session = AuditSession(self.audited, equal_records(self.audited, self.rng), ledger)
            while probed < PROBED and number < MOST_RUNS:
                run, addresses = f"audit-addresses-{number}", self.audited.addresses[: PROBED - probed]
                for address in addresses[::-1] if number % 2 else _swapped(addresses):
                    seen += session.sent_once(run, address)
                seen += asked_again(session, run, addresses) + session.in_ledger(run)
                if number == 0:
                    odd += [
                        f"round {phase}.{round}, which is in no plan, was answered"
                        for phase, round in sorted(answered_beyond(session, run))
                    ]
                    if takes_another_plan(session, run):
                        odd.append(f"run {run} was agreed to once more, with another plan")
                session.forget(run)
                seen += asked_again(session, run, addresses[:FORGOTTEN], other_first=True) + session.in_ledger(run)
                session.forget(run)
                probed, number = probed + len(addresses), number + 1
        return second_release([*seen, *self.releases.sent], odd)

    def one_run(self) -> Finding:
        """Runs one whole training on canaries with random signs, and bounds epsilon from below."""
        return check_one_run(self.audited, self.rng, self.power or plan_one_run(self.audited, self.audits))


def _swapped(addresses: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The addresses with neighbours swapped: second, first, fourth, third, and so on."""
    return [address for at in range(0, len(addresses), 2) for address in addresses[at : at + 2][::-1]]


def no_canaries(audited: AuditedSilo) -> str | None:
    """Reason why a one-run audit of this silo is impossible; None if it is possible."""
    if audited.sampled:
        return "answers are about secret samples, and a score would have to know who took part"
    if audited.answers > 1:
        return "a message is the mean of several answers, and later ones depend on the noise of earlier ones"
    return audited.answer.no_canaries


def plan_one_run(audited: AuditedSilo, audits: int = 1) -> OneRunPower:
    """Best possible result of a one-run audit of this silo, without running it.

    Raises InputError where there is none.
    `audits`: number of lower bounds printed together; each has confidence 1 - BOUNDS / audits (Bonferroni).
    """
    if (reason := no_canaries(audited)) is not None:
        raise InputError(f"a one-run audit does not apply: {reason}")
    mu = math.sqrt(worst_mu_squared(audited.events))
    accounted = spent(audited.events, audited.delta)
    return one_run_power(canary_count(audited), audited.delta, accounted, mu, BOUNDS / audits)


def check_one_run(audited: AuditedSilo, rng: np.random.Generator, power: OneRunPower) -> Finding:
    """Runs one whole training on canaries with random signs, and bounds epsilon from below.

    In a plan with rounds of several kinds: all rounds of the audited kind, about the first model.
    """
    canaries = canary_records(audited, "audit-one-run", rng)
    session = AuditSession(audited, canaries.records)
    # Answers of other rounds about canaries are in later models, but in no event accounted here, so they are not asked.
    transcript = session.still("audit-one-run") if audited.in_company else session.train("audit-one-run")
    if any(len(sums) != 1 for sums in transcript.sums):
        sentence = "an answer was made of other sums than the method asked for"
        return Finding(BOUND, False, math.nan, power.accounted, power.false_alarm, sentence)
    guessed = scores(audited, canaries, transcript)
    return one_run(guessed, canaries.signs, power.guesses, audited.delta, power.accounted, power.false_alarm)
