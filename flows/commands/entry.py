"""Where the program `fedcore` begins: what is imported before the command line can fail is little, and what fails there
ends with 70 too, not with the 1 of an alarm."""

from __future__ import annotations

import sys

from fedcore.process.import_path import keep_working_folder_out

keep_working_folder_out()  # before anything else is imported


def main() -> None:
    """Runs the command line (`flows.commands.app`), whose exit codes it has."""
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
    """The exit code of a failed import, after a sentence on standard error: 2 if the installation is the cause."""
    from fedcore.process.installation import complaint

    if (sentence := complaint(error)) is None:
        return _unforeseen(error)
    print(f"fedcore: {sentence}", file=sys.stderr)
    return 2


def _unforeseen(error: Exception) -> int:
    """The exit code, after the sentence for it, on standard error."""
    from fedcore.process_start import UNFORESEEN

    try:
        from fedcore.printable import on_terminal
        from flows.failures import unforeseen

        print(on_terminal(unforeseen(error)), file=sys.stderr)
    except Exception:  # what the log needs is what cannot be imported
        print(f"fedcore cannot be started ({type(error).__name__}: {ascii(str(error))[:300]})", file=sys.stderr)
    return UNFORESEEN


if __name__ == "__main__":
    main()
