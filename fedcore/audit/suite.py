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
    """One way to look: `refuses` says in a sentence why not at a audited, `look` at what share of a false alarm.

    `chance`: whether a correct silo can make it alarm; then it takes part in sharing `finding.TESTS`.
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
"""In the order in which they are shown. The bound's false alarm is its own, `finding.BOUNDS`."""

ALPHA = TESTS / sum(instrument.chance for instrument in INSTRUMENTS)
"""Each instrument with chance may alarm at a correct silo with so much; those that do not apply leave theirs unused."""


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
    """The instrument's finding, or one that says in a sentence why there is nothing to measure here.

    A silo that refuses what the plan asks, or fails at it, is an alarm, and so is a step that is none of the plan.
    """
    why = instrument.refuses(bench.audited)
    if why is not None:
        return Finding(instrument.name, True, math.nan, math.nan, 0.0, why)
    try:
        return instrument.look(bench, ALPHA / bench.audits)
    except (SiloError, InputError) as error:  # every question of an audit is one that a correct silo answers
        return Finding(instrument.name, False, math.nan, math.nan, 0.0, f"the silo did not go on: {error}")


def audit(
    audited: AuditedSilo, rng: np.random.Generator, ledger: Callable[[str], Ledger] = MemoryLedger, audits: int = 1
) -> Audit:
    """Runs every instrument once; `ledger` makes the one whose addresses are probed. Raises InputError, SiloError.

    `audits`: audits that are read together, for instance one per silo; their error probabilities share the totals.
    """
    bench = Bench(auditable(audited), rng, ledger, audits)
    findings = tuple(look(instrument, bench) for instrument in INSTRUMENTS)
    return Audit(audited.silo, audited.n, audited.dim, findings, bench.power)
