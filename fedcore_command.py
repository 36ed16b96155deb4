"""Where the program `fedcore` is found: by a name that is nobody else's, whatever modules PYTHONPATH names besides."""

import os
import sys


def main() -> None:
    """Runs the command line (`flows.commands.entry`), of the packages beside this file and no others of their names."""
    ours = os.path.dirname(os.path.abspath(__file__))
    sys.path.insert(0, ours)
    try:
        from flows.commands.entry import main as command_line  # what hides ours is out of the path from here on
    finally:
        if sys.path[0] == ours:  # before the standard library is no place for what else lies beside this file
            del sys.path[0]
        if ours not in sys.path:
            sys.path.append(ours)
    command_line()
