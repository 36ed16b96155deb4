"""Tables and lines of `fedcore budget show`: ledgers, their runs, and accounts of the register."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from fedcore.directed_rounding import in_full, shown_down, shown_up

if TYPE_CHECKING:
    from rich.table import Table


def accounts_table(accounts: list[dict[str, Any]]) -> Table:
    """Table with a row per ledger: runs, releases, charge and spending of all its runs."""
    from flows.reports.table import plain_table

    table = plain_table()
    for head in ("silo", "data version", "runs", "open", "releases", "charged", "spent", "delta", "unit", "whole silo"):
        table.add_column(head, justify="left" if head in ("silo", "data version", "unit") else "right")
    for each in accounts:
        runs = each["runs"]
        table.add_row(
            each["silo"],
            each["data_version"][:12],
            str(len(runs)),
            str(sum(run["state"] == "open" for run in runs)),
            str(sum(run["releases"] for run in runs)),
            _number(each["epsilon_charged"]),
            _number(each["epsilon_spent"]),
            "none" if each["delta"] is None else shown_up(each["delta"], 3),
            (each["unit"] or "none").split()[0],
            _number(each["epsilon_whole_silo"]),
        )
    return table


def runs_table(accounts: list[dict[str, Any]]) -> Table:
    """Table of one silo's runs by phase."""
    from flows.reports.table import plain_table

    table = plain_table()
    units = dict.fromkeys(each["unit"].split()[0] for each in accounts if each["unit"] is not None)
    for head in ("run", "state", "phase", "rounds", " or ".join(units) or "records", "charged", "spent"):
        table.add_column(head, justify="left" if head in ("run", "state") else "right")
    for run in (run for each in accounts for run in each["runs"]):
        whole = (_number(run[key]) for key in ("epsilon_charged", "epsilon_spent"))
        table.add_row(run["run"], run["state"], "all", "", "", *whole)
        for phase in run["phases"]:
            cells = str(phase["phase"]), _ranges(phase["rounds"]), "-".join(map(str, phase["records"]))
            table.add_row("", "", *cells, "", _number(phase["epsilon_spent"]))
    return table


def policy_lines(account: dict[str, Any]) -> list[str]:
    """A line for each policy that the ledger has recorded, the last one in full."""
    lines = [f"entry {each['entry']}: policy {each['sha256'][:12]}, replaced" for each in account["policies"][:-1]]
    for each in account["policies"][-1:]:
        held = json.dumps(each["policy"], sort_keys=True)
        lines.append(f"entry {each['entry']}: policy {each['sha256'][:12]}, recorded last: {held}")
    return lines


def caps_lines(account: dict[str, Any]) -> list[str]:
    """Lines on the caps of a silo's account, over all data versions; empty before the first cap."""
    found = (account["account"] or account)["caps"]
    if found is None:
        return []
    lines = [
        f"caps of silo {account['silo']}: Renyi order {found['order']:.8g}, implied by the first one, for life; "
        f"divergences of all runs at it: {_number(found['divergence'])}"
    ]
    for each in found["in_force"]:
        lines.append(
            f"  recorded last: epsilon {in_full(each['epsilon'])} at delta {shown_up(each['delta'], 3)} "
            f"({each['rule']}), by its rule {_number(each['spent'])} is charged; rule rdp has room for a divergence of "
            f"{shown_down(each['room'])}"
        )
    claimed = found["claimed"]
    if claimed is None:
        return [*lines, "  nothing is claimed: a run was approved without a cap, or under another rule"]
    several = f"; of {len(found['recorded'])}, what was sent under an earlier one keeps that one's claim"
    largest = (
        f"  claimed: epsilon {in_full(claimed['epsilon'])} at delta {shown_up(claimed['delta'], 3)}, the largest cap "
        "ever in force"
    )
    return [*lines, largest + several * (len(found["recorded"]) > 1)]


def account_lines(accounts: list[dict[str, Any]]) -> list[str]:
    """Lines about the accounts of registered silos, and the register's head."""
    found = {each["silo"]: each["account"] for each in accounts if each["account"] is not None}
    lines = []
    for silo, account in found.items():
        counts = f"{len(account['data_versions'])} data version(s), {account['runs']} run(s)"
        charged = f"epsilon {_number(account['epsilon_charged'])} charged at delta {shown_up(account['delta'], 3)}"
        lines.append(f"account of silo {silo}, all versions of its data: {counts}, {charged}")
        lines += [f"  entry {each['entry']}: {each['declared']}" for each in account["declared"]]
    if found:
        head = next(iter(found.values()))["head"]
        lines.append(f"register: head {head}; write it down elsewhere, `fedcore budget verify --head` compares")
    return lines


def _number(value: float | None) -> str:
    """An epsilon rounded up to five digits."""
    return "none" if value is None else shown_up(value, 5)


def _ranges(numbers: list[int]) -> str:
    """Ascending numbers as text, consecutive ones as `first-last`."""
    parts: list[list[int]] = []
    for each in numbers:
        if parts and each == parts[-1][-1] + 1:
            parts[-1] = [parts[-1][0], each]
        else:
            parts.append([each])
    return ", ".join("-".join(map(str, part)) for part in parts)
