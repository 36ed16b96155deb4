"""The Dask processes that `fedcore up` keeps: `python -m tasks.workers.dask_services scheduler|workers ...`.

Their keys are named by a path, for arguments are read by every account of a machine.
"""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

from fedcore.process_start import begin
from tasks.workers.credentials import read
from tasks.workers.nodes import serve_scheduler, serve_workers


def main() -> None:
    """Runs what the arguments name until SIGTERM or SIGINT."""
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
    asked = parser.parse_args()
    keys = read(asked.keys)
    if asked.kind == "scheduler":
        asyncio.run(serve_scheduler(keys, asked.port))
    else:
        asyncio.run(serve_workers(keys, asked.scheduler, asked.workers, asked.folder, asked.death_timeout))


if __name__ == "__main__":
    main()
