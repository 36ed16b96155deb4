"""What decides the bits of a run beside its config: a stopped run goes on under the same, or not at all.

Code may change as it likes while these stay: a comment, a message, a faster way to the same bits.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from functools import cache

import numpy as np
from threadpoolctl import threadpool_info

from fedcore import __version__

ARITHMETIC = 2
"""Version of what methods, silos and mechanisms compute: formulas, order of sums, addresses and keys of draws.

Whoever changes a bit of any method's result raises it. `tests/contract/test_golden_bits.py` fails where bits change and
this does not; `python -m tests.contract.golden` then writes the new ones, and refuses to without a raised version.
"""
FORMAT = 1
"""Version of what a checkpoint holds: its tables, and how states, questions and receipts are written.

Whoever changes one of them raises it; the same test watches over states and questions.
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
    """What a checkpoint is bound to of the code."""
    return {"arithmetic": str(ARITHMETIC), "format": str(FORMAT)}


def changed(known: Mapping[str, str], now: Mapping[str, str]) -> tuple[str, str] | None:
    """The first of what a checkpoint is bound to that is another now, and that in words; None if it may go on.

    `known`: what the checkpoint says, all of it; a checkpoint that was bound to files of source has no version.
    """
    if "code" in known and "arithmetic" not in known:
        return "code", (
            f"was begun by code {known['code']}, which bound its checkpoint to its own source files; this is version "
            f"{__version__}"
        )
    for key, value in now.items():
        if known.get(key, value) != value:
            said = f"this version ({__version__}) {_WORDS[key]}"
            return key, f"cannot go on: {said} ({key} {known[key][:40]}, now {value[:40]})"
    return None


def ways_on(run: str, repetition: int, durable: bool) -> str:
    """What is left to do with a run that cannot go on, as the end of a sentence."""
    close = f", or end it for good by `fedcore budget close {run}`, which gives back what it did not spend,"
    return (
        f"resume it as it was begun, with that version of fedcore and those data{close if durable else ', or leave it'}"
        f" and begin another by repetition={repetition + 1}"
    )


@cache
def environment() -> dict[str, str]:
    """What may change the last bits of sums and draws, and is no part of fedcore: a run that goes on elsewhere is as
    private, and its ledgers repeat what they have sent, but its bits are not those of a run that was never stopped."""
    said = {"numpy": np.__version__, "processor": platform.machine()}
    for each in threadpool_info():
        if each.get("user_api") == "blas":  # its kernels are those of a kind of processor
            known = (each.get(key) for key in ("internal_api", "version", "architecture"))
            said["blas"] = " ".join(str(part) for part in known if part)
    return said
