"""Commands on a disk that is full, as a process of its own: `python full_disk.py COMMANDS`, both as JSON lists.

No file of this process can grow by as much as a byte (RLIMIT_FSIZE), which takes no right that users lack; standard
output is a pipe, which has no limit.
"""

from __future__ import annotations

import contextlib
import io
import json
import resource
import sys

from flows.commands.app import main


def called(arguments: list[str]) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of one command."""
    out, err = io.StringIO(), io.StringIO()
    sys.argv = ["fedcore", *arguments]
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main()
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
    return code, out.getvalue(), err.getvalue()


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
    print(json.dumps([called(arguments) for arguments in json.loads(sys.argv[1])]))
