"""The command line. `python -m flows.commands.app` puts the working folder first on the import path. This module
removes it, and adds the folder that holds this package last."""

import os
import sys

if not sys.flags.safe_path and sys.path and sys.path[0] in ("", os.getcwd() if os.path.exists(".") else None):
    sys.path.pop(0)
    sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
