"""All instruments on one silo of a plan, through the real site and silo, on synthetic records."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedcore.audit.addresses import second_release
from fedcore.audit.canaries import (
    Pair,
    canary_count,
    canary_records,
    clipping_pair,
    known_means,
    known_records,
    scores,
    silent_records,
)
from fedcore.audit.clipping import clipping
from fedcore.audit.finding import BOUNDS, TESTS, Finding
from fedcore.audit.one_run import one_run
from fedcore.audit.participation import check_sampling
from fedcore.audit.power import OneRunPower, one_run_power
from fedcore.audit.reuse import reuse
from fedcore.audit.transcript import Sitting, Subject, Transcript, auditable, row_order, sampled
from fedcore.audit.variance import residuals_needed, variance
from fedcore.errors import InputError
from fedcore.privacy.composition import worst_mu_squared
from fedcore.privacy.ledger import Ledger, MemoryLedger

TESTS_OF_CHANCE = 4
"""Variance, clipping of one record and of all, reuse: each may alarm at a correct silo with a quarter of TESTS.

Where answers are about samples: variance and sampling rate, with a quarter each.
"""
ALPHA = TESTS / TESTS_OF_CHANCE
PROBED = 20
"""Addresses that are asked three times. Each costs a durable ledger one commit."""
COMPARED = 130
"""Most answers of each side of a pair: three times as many rows fit into one comparison."""


@dataclass(frozen=True)
class Audit:
    """Findings of one audit, and what its one-run part could have shown at best (None: it has none)."""

    silo: str
    n: int
    dim: int
    findings: tuple[Finding, ...]
    power: OneRunPower | None

    @property
    def passed(self) -> bool:
        return all(finding.passed for finding in self.findings)

    def as_json(self) -> dict[str, Any]:
        """Plain JSON values. Everything in it comes from synthetic records."""
        return {
            "silo": self.silo, "n": self.n, "dim": self.dim, "records": "synthetic", "adjacency": "replace-one",
            "passed": self.passed, "findings": [finding.as_json() for finding in self.findings],
            "one_run_power": None if self.power is None else self.power.as_json(),
            "false_alarm_tests": TESTS, "false_alarm_bounds": BOUNDS,
        }  # fmt: skip


def check_variance(subject: Subject, rng: np.random.Generator) -> Finding:
    """Trains on known records, over as many runs as the test's power needs, and tests the noise's variance.

    Where answers are about samples the records have no gradient: then the exact mean is 0, whoever takes part.
    """
    needed, dim = residuals_needed(ALPHA), subject.plan.problem.dim
    residuals: list[np.ndarray] = []
    while (missing := needed - sum(part.size for part in residuals)) > 0:
        records = silent_records(subject) if sampled(subject) else known_records(subject, rng)
        sitting = Sitting(subject, records, f"audit-variance-{len(residuals)}")
        # Whole phases would be more than enough for a wide model.
        transcript = sitting.train(limit=math.ceil(missing / dim))
        means = np.zeros_like(transcript.payload) if sampled(subject) else known_means(subject, records, transcript)
        residuals.append(transcript.residuals(means))
    return variance(np.concatenate(residuals), ALPHA)


def check_pair(subject: Subject, rng: np.random.Generator) -> tuple[Finding, Finding]:
    """Clipping, and reused noise: both sides of a canary pair and another run, under one key, one server of zeros.

    Both sides are asked the same queries at the same addresses, so noise that does not depend on the sum it masks
    would be the same in both.
    """
    run, at = "audit-pair", subject.events[0].start
    pair = clipping_pair(subject, row_order(subject, run)[at : at + 1], rng)
    without = Sitting(subject, pair.without, run).repeat(COMPARED)
    canary = Sitting(subject, pair.canary, run).repeat(COMPARED)
    other = Sitting(subject, silent_records(subject), "audit-pair-again").repeat(COMPARED)
    inside = np.array([event.start <= at < event.stop for event in without.events])
    # Elsewhere both sides hold the same records, and the same question about them repeats its bytes, as it should.
    residuals = [
        without.residuals(pair.means(subject, -1.0, without, inside)),
        canary.residuals(pair.means(subject, 1.0, canary, inside))[inside],
        other.residuals(np.zeros_like(other.payload)),
    ]
    return _shift(pair, without, canary, inside), reuse(np.concatenate(residuals), ALPHA)


def check_crowd(subject: Subject, rng: np.random.Generator) -> Finding:
    """Clipping of all records at once: n neighbours apart, so a shift of n times the sensitivity is allowed.

    Noise stays that of one release, so this sees a clipping bound that is only somewhat too large; one record cannot.
    """
    pair = clipping_pair(subject, np.arange(subject.n), rng)
    without = Sitting(subject, pair.without, "audit-crowd").repeat(COMPARED)
    canary = Sitting(subject, pair.canary, "audit-crowd").repeat(COMPARED)
    return _shift(pair, without, canary, np.ones(len(without.events), dtype=bool))


def _shift(pair: Pair, without: Transcript, canary: Transcript, inside: np.ndarray) -> Finding:
    """The clipping test on the answers `inside` (A,), with as many differing records as the pair has in each."""
    counts, crowd = without.counts[inside], len(pair.rows) > 1
    differing = counts if crowd else np.ones_like(counts)
    sensitivity = np.array([event.sensitivity for event in without.events])[inside] * counts * differing
    noise = math.sqrt(2) * without.sigma[inside] * counts
    shift = (canary.sums - without.sums)[inside]
    return clipping(shift, pair.direction, noise, sensitivity, ALPHA, "all records" if crowd else "one record")


def check_addresses(subject: Subject, rng: np.random.Generator, ledger: Ledger) -> Finding:
    """Asks addresses again, with the same query and with another; compares payloads on the wire and in the ledger."""
    sitting = Sitting(subject, known_records(subject, rng), "audit-addresses", ledger)
    return second_release(sitting.probe(PROBED))


def plan_one_run(subject: Subject, bounds: int = 1) -> OneRunPower:
    """What a one-run audit of this silo can show at best; nothing is run. Raises InputError as `auditable`.

    `bounds`: how many lower bounds are printed together; each has confidence 1 - BOUNDS / bounds (Bonferroni).
    """
    subject = auditable(subject)
    if sampled(subject):
        raise InputError("this plan draws secret samples: a one-run audit knows no score for them (not built yet)")
    mu = math.sqrt(worst_mu_squared(subject.events))
    return one_run_power(
        canary_count(subject), subject.delta, subject.plan.silo_epsilon(subject.silo), mu, BOUNDS / bounds
    )


def check_one_run(subject: Subject, rng: np.random.Generator, power: OneRunPower) -> Finding:
    """One whole training on canaries with random signs, and the lower bound that it shows."""
    canaries = canary_records(subject, "audit-one-run", rng)
    transcript = Sitting(subject, canaries.records, "audit-one-run").train()
    guessed = scores(subject, canaries, transcript)
    return one_run(guessed, canaries.signs, power.guesses, subject.delta, power.accounted, power.false_alarm)


def audit(
    subject: Subject, rng: np.random.Generator, ledger: Callable[[str], Ledger] = MemoryLedger, bounds: int = 1
) -> Audit:
    """Runs every instrument once; `ledger` makes the one whose addresses are probed. Raises InputError, SiloError.

    `bounds`: audits whose lower bounds are read together, for instance one per silo. Of a plan with secret samples only
    the noise's variance, the sampling rate and second releases are looked at: for the other instruments one would have
    to know who took part.
    """
    subject = auditable(subject)
    if sampled(subject):
        few = (
            check_variance(subject, rng),
            check_sampling(subject, ALPHA),
            check_addresses(subject, rng, ledger(subject.silo)),
        )
        return Audit(subject.silo, subject.n, subject.plan.problem.dim, few, None)
    power = plan_one_run(subject, bounds)
    clipped, reused = check_pair(subject, rng)
    findings = (
        check_variance(subject, rng),
        clipped,
        check_crowd(subject, rng),
        check_sampling(subject, ALPHA),
        reused,
        check_addresses(subject, rng, ledger(subject.silo)),
        check_one_run(subject, rng, power),
    )
    return Audit(subject.silo, subject.n, subject.plan.problem.dim, findings, power)
