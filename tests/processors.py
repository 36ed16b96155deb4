"""Environments of child processes that take this processor for another one: instructions of OpenBLAS and NumPy."""

from __future__ import annotations

import os
from collections.abc import Mapping

CHOICES = ("OPENBLAS_CORETYPE", "NPY_DISABLE_CPU_FEATURES")
"""Variables by which a process uses fewer instructions than its processor has; tests/conftest.py sets both."""


def on(coretype: str | None = None, *without: str) -> Mapping[str, str]:
    """This process's environment, with other instructions.

    `coretype`: kernels of OpenBLAS; None: of this processor. `without`: beginnings of names of features that NumPy
    leaves unused; none: all of this processor's are used.
    """
    from numpy._core._multiarray_umath import __cpu_dispatch__

    unused = " ".join(name for name in __cpu_dispatch__ if name.startswith(without)) if without else ""
    chosen = {name: value for name, value in zip(CHOICES, (coretype, unused), strict=True) if value}
    return {name: value for name, value in os.environ.items() if name not in CHOICES} | chosen
