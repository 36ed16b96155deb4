"""Folder of the files of Prefect's page, which its server copies there when it first starts."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

from fedcore.home import Home

BUILT = ("ui_build", "ui_v2_build")
"""Prefect's own folders of them, in its installation."""
REFERENCE = "UI_SERVE_BASE"
"""File by which the server recognises finished copies."""


def page_environment(home: Home) -> dict[str, str]:
    """Setting of a folder in this home, where the installation's own folders are another account's; else none.

    A server cannot start if it may not read a copy there, and shows no page if it may not make one.
    """
    spec = importlib.util.find_spec("prefect")
    places = [] if spec is None else list(spec.submodule_search_locations or ())
    if all(_usable(Path(place) / "server" / name) for place in places for name in BUILT):
        return {}
    return {"PREFECT_SERVER_UI_STATIC_DIRECTORY": str(home.prefect / "pages")}


def _usable(folder: Path) -> bool:
    reference = folder / REFERENCE
    if os.path.lexists(reference):
        return os.access(reference, os.R_OK)
    return os.access(folder.parent, os.W_OK)
