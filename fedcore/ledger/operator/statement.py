"""A silo's account in the register as plain values: totals over all versions of its data, and declarations."""

from __future__ import annotations

import math
from typing import Any

from fedcore.accounting.gaussian import epsilon_of
from fedcore.ledger.caps import caps_shown
from fedcore.ledger.operator.accounts import time_text, total
from fedcore.ledger.operator.register import Register


def statement(register: Register | None, silo: str) -> dict[str, Any] | None:
    """The account of a silo; None if it is not registered.

    `epsilon_charged`: at the smallest delta of its runs. It sums the versions that share the account, for the version
    where that sum is largest; None if infinite. `caps`: those of the account (`caps_shown`). `declared`: the operator's
    declarations, each with the number of its entry.
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
        "clock": time_text(account.latest),
        "clock_ahead": account.ahead and time_text(account.ahead),
        "caps": caps_shown(account.caps, charges),
        "declared": [{"entry": number, "declared": sentence} for number, sentence in account.declarations],
        "head": register.head,
    }
