"""The deployments that `fedcore up` serves: `run/run` and `sweep/sweep`, each flow run in a process of its own."""

from __future__ import annotations

from typing import Any

from prefect import serve

from flows.experiment import run_flow
from flows.sweep import sweep_flow


def main() -> None:
    """Serves until it is ended. A flow run that is retried on the page comes here and resumes its run."""
    # One function for callers that wait and for coroutines: here it is the former.
    served: list[Any] = [
        run_flow.to_deployment("run", description=run_flow.__doc__),
        sweep_flow.to_deployment("sweep", description=sweep_flow.__doc__),
    ]
    serve(
        *served,
        pause_on_shutdown=False,
        print_starting_message=False,
        limit=2,
    )


if __name__ == "__main__":
    main()
