"""Private federated learning without a trusted server: the science, without workflow engines.

`train` and `plan` are for scripts and notebooks (`fedcore.library`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedcore.errors import InputError, ModelWarning, SiloError
    from fedcore.library.trained import Trained
    from fedcore.library.training import plan, train

__version__ = "0.2.0"
__all__ = ["InputError", "ModelWarning", "SiloError", "Trained", "__version__", "plan", "train"]


def __getattr__(name: str) -> Any:
    """Imports a public name on its first use, since `fedcore` is imported before each module."""
    if name in ("InputError", "ModelWarning", "SiloError"):
        from fedcore import errors

        return getattr(errors, name)
    if name == "Trained":
        from fedcore.library.trained import Trained

        return Trained
    if name in ("plan", "train"):
        from fedcore.library import training

        return getattr(training, name)
    raise AttributeError(f"module 'fedcore' has no attribute {name!r}")
