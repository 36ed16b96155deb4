"""The command line. Each command imports the engines that it needs, so `plan` and `--help` stay quick."""

from __future__ import annotations

import sys

from fedcore.process.import_path import keep_working_folder_out

keep_working_folder_out()  # before anything else is imported

import contextlib
import gc
import os
from typing import Annotated, Any

# Before NumPy is loaded: many BLAS threads per process fight for the cores.
for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import typer

from fedcore import __version__
from fedcore.errors import BusyError, InputError, SiloError
from fedcore.home import Home
from fedcore.memory import keep_memory
from fedcore.process.private_files import write_privately
from fedcore.process_start import UNFORESEEN
from flows.commands.accounts.budget import app as budget
from flows.commands.advise import advise
from flows.commands.arguments import errors
from flows.commands.audit import audit
from flows.commands.conf import app as conf
from flows.commands.federations.federation import app as federation
from flows.commands.federations.relay import relay
from flows.commands.federations.silo import app as silo
from flows.commands.machine import down, password, up
from flows.commands.noise.privacy import app as privacy
from flows.commands.plan import plan
from flows.commands.policy import app as policy
from flows.commands.run import resume, run, sweep
from flows.commands.runs import runs
from flows.commands.schedule import app as schedule
from flows.commands.show import algorithms, report
from flows.commands.shuffler import shuffler
from flows.commands.tables import check, init
from flows.commands.tune import tune
from flows.failures import CUT_OFF, cut_off, full, output_fails, unforeseen

app = typer.Typer(
    name="fedcore",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Private federated learning without a trusted server: every vector that leaves a silo is differentially "
    "private for each of its records. Start with `fedcore plan conf/experiment/digits.yaml`, then `fedcore run` it.",
)
for _group in (privacy, budget, policy, conf, schedule, federation, silo):
    app.add_typer(_group)
for _command in (
    init,
    check,
    advise,
    tune,
    audit,
    run,
    sweep,
    plan,
    resume,
    runs,
    report,
    algorithms,
    shuffler,
    relay,
    up,
    down,
    password,
):
    app.command()(_command)
app.command("retry", help="As `resume`: of a sweep, only cells that failed or did not run.")(resume)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"fedcore {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Options before a command. The help text is that of `app`."""


STOPPED = 130
"""Exit code of a command that Ctrl-C or SIGTERM ended."""
USAGE: Any = typer.BadParameter.__bases__[0]
"""Base class of typer's errors for unknown options, missing arguments and unknown commands."""


def main(commands: typer.Typer = app, name: str = "fedcore") -> None:
    """Runs a command line and exits with its code.

    Exit codes: 0 success; 1 an audit alarmed, or a study differs from its publication; 2 the input has a fault; 3 a
    silo or run failed; 70 an unexpected exception; 75 busy; 130 stopped; 141 the reader of standard output is gone.
    """
    write_privately()
    keep_memory()
    # The engines' modules live to the end; searching them for reference cycles takes a fifth of the import time.
    gc.set_threshold(50_000, 20, 50)
    code = _carried_out(commands, name)
    if code == STOPPED:  # typer makes a silent exit of Ctrl-C
        # flows.training is imported by commands that train only; other commands leave nothing to resume.
        resumable = "; `fedcore runs` lists what can be resumed" if "flows.training" in sys.modules else ""
        _print(f"stopped{resumable}", "yellow")
    if (unwritten := output_fails()) is not None and code == 0:
        code = _unprinted(unwritten)
    launch = sys.modules.get("flows.launch")
    if launch is not None and launch.server_lost:
        with contextlib.suppress(OSError):
            sys.stderr.flush()
        os._exit(code)
    gc.freeze()  # otherwise the interpreter's exit walks through all imported objects: a second and more
    sys.exit(code)


def _carried_out(commands: typer.Typer, name: str) -> int:
    """Runs the command, prints its errors and returns its exit code; raises nothing."""
    try:
        if Home.current().closed():
            _print(
                f"run folder {Home.current().root} could be read by others; now only its owner can read it", "yellow"
            )
        return int(commands(standalone_mode=False, prog_name=name) or 0)
    except USAGE as error:
        if sentence := usage(error):
            _print(sentence)
        return 2
    except (InputError, SiloError, BusyError) as error:
        if _was_stopped():  # the error is a consequence of the signal
            return STOPPED
        _print(str(error))
        return 2 if isinstance(error, InputError) else 3 if isinstance(error, SiloError) else 75
    except KeyboardInterrupt:
        return STOPPED
    except SystemExit as end:
        if cut_off(end.__context__):
            return CUT_OFF
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except Exception as error:
        if _was_stopped():
            return STOPPED
        if cut_off(error):
            output_fails()
            return CUT_OFF
        if (unwritten := output_fails() or full(error)) is not None:
            return _unprinted(unwritten)
        if isinstance(error, ImportError):
            from fedcore.process.installation import complaint  # reads what is installed: not at every start

            if (cause := complaint(error)) is not None:
                _print(cause)
                return 2
        _print(unforeseen(error))
        return UNFORESEEN


def _print(sentence: str, style: str = "red") -> None:
    """Prints a sentence on standard error, if that can still be written."""
    with contextlib.suppress(OSError):
        errors.print(sentence, style=style, highlight=False, markup=False, soft_wrap=True)


def _unprinted(error: OSError) -> int:
    """Prints that standard output cannot be written, unless its reader is gone; the exit code."""
    if cut_off(error):
        output_fails()
        return CUT_OFF
    _print(f"standard output cannot be written ({error.strerror})")
    return 2


def usage(error: Any) -> str:
    """The sentence of a `USAGE` error, without typer's box; empty if help was printed instead."""
    sentence, context = " ".join(error.format_message().split()).rstrip("."), error.ctx
    if not sentence or context is None or sentence.endswith("?"):  # it suggests a name already
        return sentence
    keys = hasattr(error, "option_name") and any(each.name == "overrides" for each in context.command.params)
    hint = "; keys of a config have no dashes, as privacy.epsilon=2" if keys else ""
    return f"{sentence}{hint}; `{context.command_path} --help` shows the usage"


def _was_stopped() -> bool:
    signals = sys.modules.get("flows.driver.signals")
    return signals is not None and signals.stopped_by() is not None


if __name__ == "__main__":
    main()
