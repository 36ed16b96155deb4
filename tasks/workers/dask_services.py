"""The Dask processes that `fedcore up` starts: `python -m tasks.workers.dask_services scheduler|workers ...`.

An argument gives the path of their keys, not the keys: every account of a machine can read arguments.
"""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

from fedcore.process_start import begin
from tasks.workers.credentials import read
from tasks.workers.nodes import serve_scheduler, serve_workers


def main() -> None:
    """Runs the scheduler or the workers, as the arguments choose, until SIGTERM or SIGINT."""
    begin()
    parser = argparse.ArgumentParser(prog="python -m tasks.workers.dask_services", description=__doc__)
    parser.add_argument("--keys", type=Path, required=True)
    kinds = parser.add_subparsers(dest="kind", required=True)
    scheduler = kinds.add_parser("scheduler")
    scheduler.add_argument("--port", type=int, required=True)
    workers = kinds.add_parser("workers")
    workers.add_argument("--scheduler", required=True)
    workers.add_argument("--workers", type=int, required=True)
    workers.add_argument("--folder", type=Path, required=True)
    workers.add_argument("--death-timeout", type=float, required=True)
    arguments = parser.parse_args()
    keys = read(arguments.keys)
    if arguments.kind == "scheduler":
        asyncio.run(serve_scheduler(keys, arguments.port))
    else:
        asyncio.run(
            serve_workers(keys, arguments.scheduler, arguments.workers, arguments.folder, arguments.death_timeout)
        )


if __name__ == "__main__":
    main()
