"""The command line. `python -m flows.commands.app` looks for modules in the working folder first: from here on, in the
folder of this package instead, last."""

import os
import sys

if not sys.flags.safe_path and sys.path and sys.path[0] in ("", os.getcwd() if os.path.exists(".") else None):
    sys.path.pop(0)
    sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
