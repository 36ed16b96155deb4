"""Module search path of a process and of its children, without the working folder.

A file `pyarrow.py` beside a config is data of the folder's author, and importing it would run it. Python searches the
working folder first with `-c` and `-m`, which start the servers of `multiprocessing`. It also does so for every entry
of PYTHONPATH that is empty or relative. The search path further excludes folders of PYTHONPATH with a module that has
the name of a package of this project, such as `tasks.py`.
"""

import os
import site
import sys
from collections.abc import Mapping

PACKAGES = ("fedcore", "flows", "tasks")
PROJECT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def safe_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment of a child: PYTHONSAFEPATH, this package's folder, and absolute entries of PYTHONPATH."""
    found = [] if PROJECT in site.getsitepackages() else [PROJECT]
    return _without_working_folder(environment, found)


def keep_working_folder_out() -> None:
    """Takes the working folder, and relative entries of PYTHONPATH, out of `sys.path`.

    Children inherit that. An absolute entry of PYTHONPATH is the user's choice and stays, unless it hides a package of
    ours. The folder of this package stays at the end of the path if no other entry finds it.
    """
    entries = _entries(os.environ)
    try:
        loose = {os.getcwd(), *(os.path.abspath(path) for path in entries if not os.path.isabs(path))}
    except FileNotFoundError:  # the working folder was removed
        loose = set()
    firm = {path for path in entries if os.path.isabs(path)} | _installed()
    left = [path for path in sys.path if os.path.isabs(path) and (path in firm or path not in loose)]
    sys.path[:] = [path for path in left if path not in entries or not _hides_ours(path)]
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
    """True if Python would find a module of this folder under the name of a package of ours."""
    if os.path.realpath(folder) == os.path.realpath(PROJECT):
        return False
    return any(
        os.path.isfile(os.path.join(folder, found))
        for name in PACKAGES
        for found in (f"{name}.py", os.path.join(name, "__init__.py"))
    )


def _entries(environment: Mapping[str, str]) -> list[str]:
    value = environment.get("PYTHONPATH", "")
    return value.split(os.pathsep) if value else []


def _installed() -> set[str]:
    library = os.path.dirname(os.path.abspath(os.__file__))
    return {library, os.path.join(library, "lib-dynload"), site.getusersitepackages(), *site.getsitepackages()}
