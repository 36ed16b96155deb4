"""Where Python looks for modules: never in the working folder, neither in this process nor in what it starts.

A file `pyarrow.py` beside a config is data of whoever wrote the folder, and importing it would run it. Python looks
there first with `-c` and `-m`, which is how `multiprocessing` starts its servers, and for every entry of PYTHONPATH
that is empty or relative. Nor is it looked at in a folder of PYTHONPATH with a `tasks.py` or another module that is
called as a package of this project.
"""

import os
import site
import sys
from collections.abc import Mapping

PACKAGES = ("fedcore", "flows", "tasks")
PROJECT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def safe_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment for a child: PYTHONSAFEPATH, the folder of this package, and of PYTHONPATH what is absolute."""
    found = [] if PROJECT in site.getsitepackages() else [PROJECT]
    return _without_working_folder(environment, found)


def keep_working_folder_out() -> None:
    """Takes the working folder, and what PYTHONPATH names relative to it, out of `sys.path`; children inherit that.

    An absolute entry of PYTHONPATH is the user's word and stays, unless it hides a package of ours. The folder of this
    package stays at the end of the path, if it was found there by no other way.
    """
    entries = _entries(os.environ)
    try:
        loose = {os.getcwd(), *(os.path.abspath(path) for path in entries if not os.path.isabs(path))}
    except FileNotFoundError:  # the working folder was removed
        loose = set()
    firm = {path for path in entries if os.path.isabs(path)} | _installed()
    kept = [path for path in sys.path if os.path.isabs(path) and (path in firm or path not in loose)]
    sys.path[:] = [path for path in kept if path not in entries or not _hides_ours(path)]
    if PROJECT not in sys.path:
        sys.path.append(PROJECT)
    safe = _without_working_folder(os.environ, [])
    if "PYTHONPATH" not in safe:
        os.environ.pop("PYTHONPATH", None)
    os.environ.update(safe)


def _without_working_folder(environment: Mapping[str, str], first: list[str]) -> dict[str, str]:
    named = [path for path in _entries(environment) if os.path.isabs(path) and not _hides_ours(path)]
    paths = dict.fromkeys([*first, *named])
    safe = {name: value for name, value in environment.items() if name != "PYTHONPATH"} | {"PYTHONSAFEPATH": "1"}
    return safe | ({"PYTHONPATH": os.pathsep.join(paths)} if paths else {})


def _hides_ours(folder: str) -> bool:
    """Whether Python would find a module in this folder where a package of ours is asked for."""
    if os.path.realpath(folder) == os.path.realpath(PROJECT):
        return False
    return any(
        os.path.isfile(os.path.join(folder, found))
        for name in PACKAGES
        for found in (f"{name}.py", os.path.join(name, "__init__.py"))
    )


def _entries(environment: Mapping[str, str]) -> list[str]:
    said = environment.get("PYTHONPATH", "")
    return said.split(os.pathsep) if said else []


def _installed() -> set[str]:
    library = os.path.dirname(os.path.abspath(os.__file__))
    return {library, os.path.join(library, "lib-dynload"), site.getusersitepackages(), *site.getsitepackages()}
