"""Process of a home's MLflow pages: `python -m flows.services.mlflow_page`, with access check.

Runs are written into MLflow's database without a server (`tasks.mlflow`); this one serves browsers.
"""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

from fedcore.home import Home
from fedcore.process_start import begin
from flows.services.door import Door, added_hosts, allowed_hosts
from flows.services.secret import secret

BODIES = ("application/octet-stream", "application/x-protobuf")
"""Content types of MLflow's clients beside JSON: artifacts and traces. A page cannot send them without a preflight."""


def main(root: str, descriptor: str) -> None:
    """Serves the home at `root` on the inherited listening socket `descriptor`, until SIGTERM."""
    import uvicorn

    from tasks.mlflow.database import pages

    home, listening = Home(Path(root)), socket.socket(fileno=int(descriptor))
    listening.set_inheritable(False)
    host, port = listening.getsockname()[:2]
    hosts = allowed_hosts(port)
    if added_hosts():  # MLflow checks hosts against a list of its own
        os.environ["MLFLOW_SERVER_ALLOWED_HOSTS"] = ",".join(sorted(hosts))
        schemes = ("http", "https")
        os.environ["MLFLOW_SERVER_CORS_ALLOWED_ORIGINS"] = ",".join(f"{s}://{name}" for s in schemes for name in hosts)
    app = Door(pages(home.mlflow_uri, home.mlflow_artifacts), hosts=hosts, secret=secret(home), bodies=BODIES)
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        log_level="warning",
        access_log=False,
        proxy_headers=False,
        timeout_graceful_shutdown=1,
    )
    uvicorn.Server(config).run(sockets=[listening])


if __name__ == "__main__":
    begin()
    main(*sys.argv[1:])
