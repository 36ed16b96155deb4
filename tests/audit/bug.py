"""What a planted bug is, for whoever plants one: a name, what it breaks, and the product's code changed for a while."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from importlib import import_module
from typing import Any
from unittest.mock import patch

PRODUCT = ("fedcore", "tasks", "flows")


@dataclass(frozen=True)
class Bug:
    """`plant()` is entered before the plan is made and left after the audit; `kind`: a key of `subjects.KINDS`, or of
    `subjects.PLANNED`, in which the bug shows. `opener`, if there is one, opens the silos instead of `PrivateSilo`.
    """

    name: str
    breaks: str
    plant: Callable[[], AbstractContextManager[Any]] = nullcontext
    kind: str = "full batches"
    opener: Callable[..., Any] | None = None


@contextmanager
def as_if(*changes: tuple[str, Callable[[Any], Any]]) -> Iterator[None]:
    """The product as if its source said so: each change is ("package.module:Name.attribute", new), new(old) the value.

    A function is replaced in every loaded module that has imported it, a method or an attribute at its class;
    properties, static and class methods as they stand there. Raises AttributeError for a name that is not there.
    """
    with ExitStack() as changed:
        for target, new in changes:
            module_name, _, path = target.partition(":")
            *above, name = path.split(".")
            module = import_module(module_name)
            owner = module
            for part in above:
                owner = getattr(owner, part)
            if above:
                old = vars(owner)[name] if name in vars(owner) else getattr(owner, name)
                changed.enter_context(patch.object(owner, name, new(old)))
                continue
            old = getattr(module, name)
            value = new(old)
            for loaded in [each for key, each in sys.modules.items() if key.split(".")[0] in PRODUCT]:
                for own in [own for own, held in list(vars(loaded).items()) if held is old]:
                    if loaded is module or callable(old):
                        changed.enter_context(patch.object(loaded, own, value))
        yield
