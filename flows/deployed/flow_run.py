"""Process of one due flow run: the deployments start `python -m flows.deployed.flow_run ID`."""

from __future__ import annotations

import os
import sys
from uuid import UUID

from fedcore.errors import InputError
from fedcore.home import Home
from fedcore.process_start import begin
from flows.schedules.orders import carried_out


def main(flow_run: str) -> None:
    """Carries out a deployment's flow run as recorded at home, with the server's free fields."""
    from prefect.client.orchestration import get_client
    from prefect.states import Failed

    from flows.flow_runs import flow_of, take_up
    from flows.services.environment import prefect_settings

    home = Home.current()
    with prefect_settings(home, os.environ["PREFECT_API_URL"]), get_client(sync_client=True) as client:
        found = client.read_flow_run(UUID(flow_run))
        try:
            kind, parameters = carried_out(home, found)
        except InputError as error:
            client.set_flow_run_state(found.id, Failed(message=f"refused: {error}"), force=True)
            return
        take_up(client, flow_of(kind), found, parameters)


if __name__ == "__main__":
    begin()
    main(*sys.argv[1:])
