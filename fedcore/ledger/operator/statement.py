"""What the register says of a silo's account as plain values: totals over all versions of its data, declarations."""

from __future__ import annotations

import math
from typing import Any

from fedcore.accounting.gaussian import epsilon_of
from fedcore.ledger.caps import caps_shown
from fedcore.ledger.operator.accounts import said_time, total
from fedcore.ledger.operator.register import Register


def statement(register: Register | None, silo: str) -> dict[str, Any] | None:
    """The account of a silo; None where the register has none.

    `epsilon_charged`: at the smallest delta of its runs, of the versions that share with the one for which it is most;
    None where it is infinite. `caps`: those of the account (`caps_shown`).
    `declared`: what the operator said, each with the number of its entry.
    """
    account = None if register is None else register.accounts.find(silo)
    if register is None or account is None:
        return None
    versions = account.versions.values()
    deltas = [run.charge.delta for version in versions for run in version.runs.values()]
    delta = min(deltas, default=0.0)
    sums = [
        total([charge for other in account.sharing(version.name) for charge in other.charges]) for version in versions
    ]
    most = max((each.mu_squared for each in sums), default=0.0)
    charges = [[each for other in account.sharing(version.name) for each in other.charges] for version in versions]
    epsilon = epsilon_of(math.sqrt(most), delta) if delta > 0 else 0.0 if most == 0 else math.inf
    return {
        "data_versions": list(account.versions),
        "runs": sum(version.count for version in versions),
        "epsilon_charged": epsilon if math.isfinite(epsilon) else None,
        "delta": delta,
        "clock": said_time(account.latest),
        "clock_ahead": account.ahead and said_time(account.ahead),
        "caps": caps_shown(account.caps, charges),
        "declared": [{"entry": number, "declared": said} for number, said in account.said],
        "head": register.head,
    }
