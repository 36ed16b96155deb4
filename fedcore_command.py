"""Entry point of the program `fedcore`, under a module name that no other project uses."""

import os
import sys


def main() -> None:
    """Runs the command line (`flows.commands.entry`), of the packages beside this file and no others of their names."""
    ours = os.path.dirname(os.path.abspath(__file__))
    sys.path.insert(0, ours)
    try:
        from flows.commands.entry import main as command_line  # what hides ours is out of the path from here on
    except ImportError as error:  # another project's files lie where ours were
        print(f"fedcore: {_misplaced(error)}", file=sys.stderr)
        sys.exit(2)
    finally:
        if sys.path[0] == ours:  # before the standard library is no place for what else lies beside this file
            del sys.path[0]
        if ours not in sys.path:
            sys.path.append(ours)
    command_line()


def _misplaced(error: ImportError) -> str:
    """The sentence on a package of another project that has replaced one of ours."""
    try:
        from fedcore.process.installation import complaint
    except ImportError:
        return f"not installed whole ({error}); install fedcore-dp into an environment of its own"
    return complaint(error) or f"cannot be imported ({error})"
