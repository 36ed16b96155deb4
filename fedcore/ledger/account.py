"""A durable ledger's account as plain values, for its operator and for third parties who recompute it."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from typing import Any

from fedcore.accounting.composition import spent, worst_mu_squared
from fedcore.accounting.filters import Charge
from fedcore.accounting.gaussian import epsilon_of
from fedcore.accounting.whole_silo import whole_silo_epsilon
from fedcore.ledger.caps import caps_shown
from fedcore.ledger.ledger import Row
from fedcore.ledger.sqlite import SqliteLedger
from fedcore.planning.problem import unit_of


def account(ledger: SqliteLedger) -> dict[str, Any]:
    """Charges and releases by run and phase, with their totals; an infinite epsilon is None.

    `epsilon_charged` counts open runs with their full plans and closed ones with their releases; `epsilon_spent` counts
    releases only. Both are at the smallest delta of the runs (`_delta`). Over several runs mu^2 add. That is exact for
    full batches, and an upper bound for secret samples, which count as if each had covered all records.

    `epsilon_whole_silo`: of all releases so far, for replacing all records. None where charges exceed the releases
    recorded here, or where some releases are of Poisson samples, which compose only for a plan fixed beforehand.
    `caps`: those of the account (`caps_shown`). `policies`: those of the silo's operator, by number of entry; the last
    one is in force. `unit`: records or persons; None where nothing was charged.
    """
    charges = ledger.charges()
    approved = [run for run in charges if ledger.is_run(run)]
    rows = {run: ledger.rows(run) for run in approved}
    lost = [charge for name, charge in charges.items() if not ledger.is_run(name)]
    delta = _delta([charges[run].delta for run in approved], lost, ledger.runs - len(approved))
    # Each run splits the records anew: the worst ranges of two runs may share a record, so runs add.
    released = math.fsum(worst_mu_squared(row.event for row in of_run) for of_run in rows.values())
    runs: list[dict[str, Any]] = [
        {
            "run": run,
            "state": "closed" if ledger.is_closed(run) else "open",
            "delta": charges[run].delta,
            "epsilon_charged": _charged(charges[run]),
            "releases": len(rows[run]),
            "epsilon_spent": _finite(spent((row.event for row in rows[run]), charges[run].delta)),
            "phases": _phases(rows[run], charges[run].delta),
        }
        for run in approved
    ]
    charged = math.fsum(charge.mu_squared for charge in charges.values())
    totals: dict[str, Any] = {
        "epsilon_charged": 0.0 if math.isnan(delta) else _epsilon(charged, delta),
        "epsilon_spent": 0.0 if math.isnan(delta) else _epsilon(released, delta),
    }
    if len(runs) == len(charges) == 1:
        totals = {key: runs[0][key] for key in totals}
    return {
        "silo": ledger.silo,
        "data_version": ledger.version,
        "unit": _unit(ledger),
        "delta": _finite(delta),
        **totals,
        "epsilon_whole_silo": _whole_silo(ledger, rows, charges, delta),
        "lost": [charge.json for charge in lost],
        "caps": caps_shown(ledger.caps, [list(charges.values())]),
        "policies": recorded_policies(ledger),
        "runs": runs,
    }


def _delta(of_runs: list[float], lost: list[Charge], lost_runs: int) -> float:
    """Smallest delta of the runs; the mean of the lost ones if all approvals were lost; NaN if none was charged."""
    given = math.fsum(charge.delta for charge in lost) / max(1, lost_runs)
    return min(of_runs) if of_runs else given if given > 0 else math.nan


def _whole_silo(
    ledger: SqliteLedger, rows: dict[str, list[Row]], charges: dict[str, Charge], delta: float
) -> float | None:
    """Whole-silo epsilon: mu^2 adds over every release of every run (`fedcore.accounting.whole_silo`)."""
    for run, charge in charges.items():
        released = worst_mu_squared(row.event for row in rows.get(run, ()))
        if (run not in rows or ledger.is_closed(run)) and charge.mu_squared > released * (1.0 + 1e-9):
            return None
    events = [row.event for of_run in rows.values() for row in of_run]
    if any(event.sampling == "poisson" for event in events):
        return None
    return _finite(whole_silo_epsilon(events, delta)) if events else 0.0


def _phases(rows: list[Row], delta: float) -> list[dict[str, Any]]:
    """Answered rounds, first and last record (from 1, in the run's split) and epsilon of each phase by itself.

    Epsilons of phases over disjoint records do not add.
    """
    by_phase: dict[int, list[Row]] = {}
    for row in rows:
        by_phase.setdefault(row.phase, []).append(row)
    return [
        {
            "phase": phase,
            "rounds": sorted(row.round for row in mine),
            "records": [min(row.event.start for row in mine) + 1, max(row.event.stop for row in mine)],
            "epsilon_spent": _finite(spent((row.event for row in mine), delta)),
        }
        for phase, mine in sorted(by_phase.items())
    ]


def export(ledger: SqliteLedger) -> dict[str, Any]:
    """All events with addresses and digests but no released values, for a third party's accounting.

    `start` and `stop` are positions in the silo's own split of the run. Events of one run add where positions overlap;
    runs always add. Floats are written with all their digits; a charge without noise is the string "inf".
    """
    charges = ledger.charges()
    runs = []
    for run in filter(ledger.is_run, charges):
        releases = [
            {
                "phase": row.phase,
                "round": row.round,
                **asdict(row.event),
                "query_sha256": row.query_digest.hex(),
                "payload_sha256": row.payload_digest.hex(),
            }
            for row in ledger.rows(run)
        ]
        runs.append(
            {
                "run": run,
                "plan": ledger.plan(run),
                "state": "closed" if ledger.is_closed(run) else "open",
                "charge": _charge(charges[run]),
                "releases": releases,
            }
        )
    lost = [_charge(charge) for name, charge in charges.items() if not ledger.is_run(name)]
    return {
        "silo": ledger.silo,
        "data_version": ledger.version,
        "unit": _unit(ledger),
        "lost": lost,
        "caps": caps_shown(ledger.caps, [list(charges.values())]),
        "policies": recorded_policies(ledger),
        "runs": runs,
    }


def recorded_policies(ledger: SqliteLedger) -> list[dict[str, Any]]:
    """Every policy of the silo's operator, with the number of its entry and its digest."""
    return [
        {"entry": number, "sha256": digest, "policy": json.loads(text)} for number, digest, text in ledger.policies()
    ]


def _unit(ledger: SqliteLedger) -> str | None:
    """Unit of the ledger's charges, records or persons; None before the first charge, which may be for either."""
    return unit_of(ledger.person) if ledger.charges() else None


def _charge(charge: Charge) -> dict[str, Any]:
    return {name: str(value) if value == math.inf else value for name, value in charge.json.items()}


def _charged(charge: Charge) -> float | None:
    """Epsilon of one run's charge: the smaller of its two bounds, which are equal for full batches."""
    return _finite(min(epsilon_of(math.sqrt(charge.mu_squared), charge.delta), charge.epsilon))


def _epsilon(mu_squared: float, delta: float) -> float | None:
    return _finite(epsilon_of(math.sqrt(mu_squared), delta))


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
