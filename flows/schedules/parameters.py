"""Parameters of schedules, kept a second time: Prefect 3.8 drops them when a schedule is paused or resumed on its page.

Its API takes what a change does not name for an empty mapping, and the schedule would go on with the deployment's own
parameters: with another experiment.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedcore.home import Home
from flows.schedules.kept import KINDS, deployment
from flows.services.leases import read_json, write_json

if TYPE_CHECKING:
    from uuid import UUID

    from prefect.client.orchestration import SyncPrefectClient


def kept_path(home: Home) -> Path:
    return home.services / "schedules.json"


def kept_parameters(home: Home, schedule: UUID) -> Mapping[str, Any]:
    """Parameters that the schedule had when it was last seen with any; empty if it never was."""
    found = (read_json(kept_path(home)) or {}).get(str(schedule))
    return found if isinstance(found, dict) else {}


class ParametersWatch:
    """Keeps the parameters of every schedule, and gives them back to one that has lost them."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._kept: dict[str, Any] = read_json(kept_path(home)) or {}

    def look(self, client: SyncPrefectClient) -> list[str]:
        """Ids of schedules whose parameters were given back. Raises what the client raises, and OSError."""
        seen, restored = dict[str, Any](), list[str]()
        for kind in KINDS:
            served = deployment(client, kind)
            for each in served.schedules:
                known = self._kept.get(str(each.id))
                if each.parameters:
                    seen[str(each.id)] = each.parameters
                elif known:
                    seen[str(each.id)] = known
                    client.update_deployment_schedule(served.id, each.id, parameters=known)
                    restored.append(str(each.id))
        if seen != self._kept:
            write_json(kept_path(self._home), seen)
            self._kept = seen
        return restored
