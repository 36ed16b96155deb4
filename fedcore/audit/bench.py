"""What the instruments of one audit share: the audited, the auditor's randomness, the releases that most look at."""

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
"""Addresses that are asked again at the ledger that the config names. Each costs a durable ledger a commit."""
FORGOTTEN = 4
"""Of each run, which are asked after the silo has let go of it."""
MOST_RUNS = 60
"""In which they are asked: a durable ledger keeps every run."""


@dataclass(frozen=True, eq=False)
class Bench:
    """One audit. `ledger` makes the one whose addresses are probed; `audits`: audits that are read together."""

    audited: AuditedSilo
    rng: np.random.Generator
    ledger: Callable[[str], Ledger] = MemoryLedger
    audits: int = 1

    @cached_property
    def releases(self) -> Releases:
        """The releases that most instruments look at; asked for once."""
        return gather(self.audited, self.rng)

    @cached_property
    def power(self) -> OneRunPower | None:
        """What the one-run bound can show at best; None where it does not apply."""
        return None if no_canaries(self.audited) else plan_one_run(self.audited, self.audits)

    def addresses(self) -> Finding:
        """Asks addresses again, with the same query and with another; compares payloads on the wire and in the ledger.

        A few at a ledger of the config's kind, out of order and once more after the run was forgotten, and those of all
        releases. Also asks addresses that are in no plan, and has the silo agree to another plan in the run's name.
        """
        seen: list[Sent] = []
        odd: list[str] = []
        asked, number = 0, 0
        with closing(self.ledger(self.audited.silo)) as ledger:
            session = AuditSession(self.audited, equal_records(self.audited, self.rng), ledger)
            while asked < PROBED and number < MOST_RUNS:
                run, addresses = f"audit-addresses-{number}", self.audited.addresses[: PROBED - asked]
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
                asked, number = asked + len(addresses), number + 1
        return second_release([*seen, *self.releases.sent], odd)

    def one_run(self) -> Finding:
        """One whole training on canaries with random signs, and the lower bound that it shows."""
        return check_one_run(self.audited, self.rng, self.power or plan_one_run(self.audited, self.audits))


def _swapped(addresses: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The second before the first, the fourth before the third, and so on."""
    return [address for at in range(0, len(addresses), 2) for address in addresses[at : at + 2][::-1]]


def no_canaries(audited: AuditedSilo) -> str | None:
    """Why a one-run audit cannot be made of this audited; None if it can."""
    if audited.sampled:
        return "answers are about secret samples, and a score would have to know who took part"
    if audited.answers > 1:
        return "a message is the mean of several answers, and later ones depend on the noise of earlier ones"
    return audited.answer.no_canaries


def plan_one_run(audited: AuditedSilo, audits: int = 1) -> OneRunPower:
    """What a one-run audit of this silo can show at best; nothing is run. Raises InputError where there is none.

    `audits`: how many lower bounds are printed together; each has confidence 1 - BOUNDS / audits (Bonferroni).
    """
    if (why := no_canaries(audited)) is not None:
        raise InputError(f"a one-run audit does not apply: {why}")
    mu = math.sqrt(worst_mu_squared(audited.events))
    accounted = spent(audited.events, audited.delta)
    return one_run_power(canary_count(audited), audited.delta, accounted, mu, BOUNDS / audits)


def check_one_run(audited: AuditedSilo, rng: np.random.Generator, power: OneRunPower) -> Finding:
    """One whole training on canaries with random signs, and the lower bound that it shows.

    Where rounds are of several kinds: all rounds of the audited one, about the first model.
    """
    canaries = canary_records(audited, "audit-one-run", rng)
    session = AuditSession(audited, canaries.records)
    # What other rounds say of canaries is in later models, and in no event that is accounted here: these are not asked.
    transcript = session.still("audit-one-run") if audited.in_company else session.train("audit-one-run")
    if any(len(sums) != 1 for sums in transcript.sums):
        sentence = "an answer was made of other sums than the method asked for"
        return Finding(BOUND, False, math.nan, power.accounted, power.false_alarm, sentence)
    guessed = scores(audited, canaries, transcript)
    return one_run(guessed, canaries.signs, power.guesses, audited.delta, power.accounted, power.false_alarm)
