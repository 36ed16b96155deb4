"""The command line. `python -m flows.commands.app` looks for modules in the working folder first: from here on, last,
until `fedcore.process.import_path` takes it out."""

import os
import sys

if not sys.flags.safe_path and sys.path and sys.path[0] in ("", os.getcwd() if os.path.exists(".") else None):
    sys.path.append(sys.path.pop(0))
