"""Binding of a checkpoint: the versions and values, beside the config, that determine a run's bits.

A stopped run goes on only if these are unchanged. Code may change while they stay: a comment, a message, a faster way
to the same bits.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from functools import cache

import numpy as np
from threadpoolctl import threadpool_info

from fedcore import __version__

ARITHMETIC = 4
"""Version of the computations of methods, silos and mechanisms: formulas, order of sums, addresses and keys of draws.

Raise it with every change in a bit of any method's result. `tests/contract/test_golden_bits.py` fails if bits change
and the version does not. `python -m tests.contract.golden` then writes the new bits; it refuses an unchanged version.
"""
FORMAT = 1
"""Version of a checkpoint's content: its tables, and the form of states, questions and receipts.

Raise it with every change in one of these; the same test covers states and questions.
"""

_WORDS = {
    "arithmetic": "computes rounds by other formulas, or other draws, than the version that made its checkpoint",
    "format": "writes checkpoints in another form than the version that made this one",
    "plan": "makes another plan of the same config (sizes of silos, noise, rounds) than its checkpoint was made with",
    "constants": "prepares records with other constants than its checkpoint was made with",
    "silos": "finds other records where its data are than its checkpoint was made with",
    "config": "reads its config as another one than its checkpoint was made with",
}


def versions() -> dict[str, str]:
    """Versions of the code to which a checkpoint is bound."""
    return {"arithmetic": str(ARITHMETIC), "format": str(FORMAT)}


def changed(known: Mapping[str, str], now: Mapping[str, str]) -> tuple[str, str] | None:
    """The first changed key of a checkpoint's binding, and the change in words; None if the run may go on.

    `known`: the whole binding of the checkpoint. A checkpoint that was bound to source files has no version.
    """
    if "code" in known and "arithmetic" not in known:
        return "code", (
            f"was begun by code {known['code']}, which bound its checkpoint to its own source files; this is version "
            f"{__version__}"
        )
    for key, value in now.items():
        if known.get(key, value) != value:
            change = f"this version ({__version__}) {_WORDS[key]}"
            return key, f"cannot go on: {change} ({key} {known[key][:40]}, now {value[:40]})"
    return None


def ways_on(run: str, repetition: int, durable: bool) -> str:
    """Remaining options for a run that cannot go on, as the end of a sentence."""
    close = f", or end it for good by `fedcore budget close {run}`, which gives back what it did not spend,"
    return (
        f"resume it as it was begun, with that version of fedcore and those data{close if durable else ', or leave it'}"
        f" and begin another by repetition={repetition + 1}"
    )


@cache
def environment() -> dict[str, str]:
    """Libraries and processor that may change the last bits of sums and draws.

    A run that goes on under others is as private, and its ledgers repeat their releases. But its bits are not those of
    a run that was never stopped.
    """
    found = {"numpy": np.__version__, "processor": platform.machine()}
    for each in threadpool_info():
        if each.get("user_api") == "blas":  # its kernels are those of a kind of processor
            known = (each.get(key) for key in ("internal_api", "version", "architecture"))
            found["blas"] = " ".join(str(part) for part in known if part)
    return found
