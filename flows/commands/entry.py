"""Entry point of the program `fedcore`, which imports little before the command line.

If the import of the command line fails, the exit code is 70 or 2. Python's own code 1 would mean an alarm.
"""

from __future__ import annotations

import sys

from fedcore.process.import_path import keep_working_folder_out

keep_working_folder_out()  # before anything else is imported


def main() -> None:
    """Runs the command line (`flows.commands.app`) and exits with its code."""
    try:
        from flows.commands.app import main as command_line
    except KeyboardInterrupt:
        sys.exit(130)
    except ImportError as error:
        sys.exit(_not_installed(error))
    except Exception as error:
        sys.exit(_unforeseen(error))
    command_line()


def _not_installed(error: ImportError) -> int:
    """Prints a sentence for a failed import; the exit code, 2 for a faulty installation, else 70."""
    from fedcore.process.installation import complaint

    if (sentence := complaint(error)) is None:
        return _unforeseen(error)
    print(f"fedcore: {sentence}", file=sys.stderr)
    return 2


def _unforeseen(error: Exception) -> int:
    """Prints a sentence for an unexpected exception, and returns its exit code."""
    from fedcore.process_start import UNFORESEEN

    try:
        from fedcore.printable import on_terminal
        from flows.failures import unforeseen

        print(on_terminal(unforeseen(error)), file=sys.stderr)
    except Exception:  # the modules that write the log cannot be imported
        print(f"fedcore cannot be started ({type(error).__name__}: {ascii(str(error))[:300]})", file=sys.stderr)
    return UNFORESEEN


if __name__ == "__main__":
    main()
