"""All instruments on one silo of a plan, through the real site and silo, on synthetic records."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedcore.audit.accounts.lives import accounts
from fedcore.audit.audited_silo import AuditedSilo, auditable
from fedcore.audit.bench import Bench, no_canaries
from fedcore.audit.finding import BOUNDS, TESTS, Finding
from fedcore.audit.instruments.bias import bias
from fedcore.audit.instruments.charges import charges
from fedcore.audit.instruments.clipping import all_records, one_record
from fedcore.audit.instruments.company import company
from fedcore.audit.instruments.independence import related_coordinates, related_releases
from fedcore.audit.instruments.keys import keys
from fedcore.audit.instruments.lattice import lattice
from fedcore.audit.instruments.normality import distribution, single_releases
from fedcore.audit.instruments.outcomes import outcomes
from fedcore.audit.instruments.overlap import overlap, samples
from fedcore.audit.instruments.participation import participation
from fedcore.audit.instruments.reuse import reuse
from fedcore.audit.instruments.sensitivity import sensitivity
from fedcore.audit.instruments.sums import exact_sums
from fedcore.audit.instruments.tails import tails
from fedcore.audit.instruments.variance import variance, variance_by_part
from fedcore.audit.power import OneRunPower
from fedcore.errors import InputError, SiloError
from fedcore.ledger.ledger import Ledger
from fedcore.ledger.memory import MemoryLedger


def _always(audited: AuditedSilo) -> str | None:
    return None


def _not_sampled(audited: AuditedSilo) -> str | None:
    return None if audited.sampled else "no sampled answers in this plan: nothing to test"


def _no_plain_plan(audited: AuditedSilo) -> str | None:
    try:
        audited.without_noise()
    except InputError as error:
        return f"this method has no plan without noise: {error}"
    return None


@dataclass(frozen=True)
class Instrument:
    """One test of an audit.

    `refuses`: reason not to test a silo, or None. `look`: runs the test at a false alarm probability.
    `chance`: true if a correct silo can make it alarm; it then takes a share of `finding.TESTS`.
    """

    name: str
    look: Callable[[Bench, float], Finding]
    refuses: Callable[[AuditedSilo], str | None] = _always
    chance: bool = True


INSTRUMENTS = (
    Instrument("variance", lambda bench, level: variance(bench.releases.residuals, level)),
    Instrument("variance by part", lambda bench, level: variance_by_part(bench.releases, level)),
    Instrument("exact mean", lambda bench, level: bias(bench.releases, level)),
    Instrument("single releases", lambda bench, level: single_releases(bench.releases, level)),
    Instrument("distribution", lambda bench, level: distribution(bench.releases, level)),
    Instrument("fineness", lambda bench, level: lattice(bench.audited, bench.releases, level)),
    Instrument("tails", lambda bench, level: tails(bench.audited, level)),
    Instrument("reused noise", lambda bench, level: reuse(bench.releases.residuals, level, bench.releases.step)),
    Instrument("related releases", lambda bench, level: related_releases(bench.releases, level)),
    Instrument("related coordinates", lambda bench, level: related_coordinates(bench.releases, level)),
    Instrument("clipping, one record", lambda bench, level: one_record(bench.audited, bench.rng, level)),
    Instrument("clipping, all records", lambda bench, level: all_records(bench.audited, bench.rng, level)),
    Instrument("exact sums", lambda bench, _: exact_sums(bench.audited, bench.rng), _no_plain_plan, chance=False),
    Instrument("sensitivity", lambda bench, _: sensitivity(bench.audited, bench.rng), _no_plain_plan, chance=False),
    Instrument("sampling rate", lambda bench, level: participation(bench.releases, level), _not_sampled),
    Instrument("samples", lambda bench, level: samples(bench.releases, level), _not_sampled),
    Instrument("overlap of samples", lambda bench, level: overlap(bench.releases, level), _not_sampled),
    Instrument("keys", lambda bench, level: keys(bench.audited, bench.rng, level)),
    Instrument("outcomes", lambda bench, _: outcomes(bench.audited, bench.rng), chance=False),
    Instrument("company", lambda bench, _: company(bench.audited, bench.rng), chance=False),
    Instrument("second release", lambda bench, _: bench.addresses(), chance=False),
    Instrument("charges", lambda bench, _: charges(bench.releases), chance=False),
    Instrument("accounts", lambda bench, _: accounts(bench.audited, bench.rng), chance=False),
    Instrument("one-run bound", lambda bench, _: bench.one_run(), no_canaries, chance=False),
)
"""All instruments, in the order of the output; the one-run bound has `finding.BOUNDS` as false alarm."""

ALPHA = TESTS / sum(instrument.chance for instrument in INSTRUMENTS)
"""False alarm probability of each instrument with chance; those that do not apply leave theirs unused."""


@dataclass(frozen=True)
class Audit:
    """Findings of one audit, and the reach of its one-run part (None: it has none)."""

    silo: str
    n: int
    dim: int
    findings: tuple[Finding, ...]
    power: OneRunPower | None

    @property
    def passed(self) -> bool:
        return all(finding.passed for finding in self.findings)

    def as_json(self) -> dict[str, Any]:
        """Plain JSON values. All of them come from synthetic records."""
        return {
            "silo": self.silo,
            "n": self.n,
            "dim": self.dim,
            "records": "synthetic",
            "adjacency": "replace-one",
            "passed": self.passed,
            "findings": [finding.as_json() for finding in self.findings],
            "one_run_power": None if self.power is None else self.power.as_json(),
            "false_alarm_tests": TESTS,
            "false_alarm_bounds": BOUNDS,
        }


def look(instrument: Instrument, bench: Bench) -> Finding:
    """The instrument's finding, or one whose sentence explains why nothing is measured here.

    It alarms also where a silo refuses a question of the plan or fails at it, or where a step is not in the plan.
    """
    reason = instrument.refuses(bench.audited)
    if reason is not None:
        return Finding(instrument.name, True, math.nan, math.nan, 0.0, reason)
    try:
        return instrument.look(bench, ALPHA / bench.audits)
    except (SiloError, InputError) as error:  # a correct silo answers every question of an audit
        return Finding(instrument.name, False, math.nan, math.nan, 0.0, f"the silo did not go on: {error}")


def audit(
    audited: AuditedSilo, rng: np.random.Generator, ledger: Callable[[str], Ledger] = MemoryLedger, audits: int = 1
) -> Audit:
    """Runs every instrument once; `ledger` makes the probed ledger. Raises InputError, SiloError.

    `audits`: number of audits read together, for instance one per silo; their error probabilities share the totals.
    """
    bench = Bench(auditable(audited), rng, ledger, audits)
    findings = tuple(look(instrument, bench) for instrument in INSTRUMENTS)
    return Audit(audited.silo, audited.n, audited.dim, findings, bench.power)
