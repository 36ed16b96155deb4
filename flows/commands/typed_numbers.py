"""Numbers of options, read as in configs: 1_000 and 010 have two readings, and are refused."""

from __future__ import annotations

import math
from typing import Any

import typer

from fedcore.configfile.yaml_loader import complaint, core_number


def whole(least: int | None = None, most: int | None = None) -> dict[str, Any]:
    """Arguments of `typer.Option` for a whole number from `least` to `most`."""

    def parse(given: object) -> int:
        found = _read(given)
        if type(found) is not int:
            raise typer.BadParameter(f"{given!r} is not a valid integer.")
        _check(found, least, most)
        return found

    return {"parser": parse, "metavar": "INTEGER"}


def real(least: float | None = None) -> dict[str, Any]:
    """Arguments of `typer.Option` for a number, `least` or more."""

    def parse(given: object) -> float:
        found = _read(given)
        if found is None:
            raise typer.BadParameter(f"{given!r} is not a valid float.")
        if math.isnan(found):
            raise typer.BadParameter(f"{given!r} is not a number.")
        _check(found, least, None)
        return _float(given, found)

    return {"parser": parse, "metavar": "FLOAT"}


def _read(given: object) -> int | float | None:
    """The number of a text by YAML 1.2; defaults are numbers already. Raises BadParameter for two readings."""
    if not isinstance(given, str):
        return given if isinstance(given, int | float) else None
    if (reason := complaint(given)) is not None:
        raise typer.BadParameter(f"{reason}.")
    return core_number(given)


def _float(given: object, found: int | float) -> float:
    try:
        return float(found)
    except OverflowError:
        raise typer.BadParameter(f"{given!r} is more than a float holds.") from None


def _check(found: int | float, least: float | None, most: float | None) -> None:
    if (least is None or found >= least) and (most is None or found <= most):
        return
    ends = (f"{least}<=" if least is not None else "") + "x" + (f"<={most}" if most is not None else "")
    raise typer.BadParameter(f"{found} is not in the range {ends}.")
