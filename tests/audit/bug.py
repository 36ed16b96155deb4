"""A planted bug: its name, the guarantee that it breaks, and a temporary change of the product's code."""

from __future__ import annotations

import inspect
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import Any
from unittest.mock import patch

PRODUCT = ("fedcore", "tasks", "flows")
Change = tuple[str, Callable[[Any], Any]]


@dataclass(frozen=True)
class Bug:
    """A planted bug. `plant()` is entered before the plan is made and left after the audit.

    `kind`: a key of `audited_silos.KINDS` or `audited_silos.PLANNED`, in which the bug shows. `opener`: opens the silos
    in place of `PrivateSilo`, if given.
    """

    name: str
    breaks: str
    plant: Callable[[], AbstractContextManager[Any]] = nullcontext
    kind: str = "full batches"
    opener: Callable[..., Any] | None = None


@contextmanager
def as_if(*changes: Change) -> Iterator[None]:
    """Replaces names of the product in the block: each change is ("package.module:Name", new).

    new(old) makes the value.
    A function is replaced in every loaded module that has imported it, a method or an attribute at its class.
    Properties, static and class methods are replaced as such. Raises AttributeError for a missing name.
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


def edit(target: str, *edits: tuple[str, str]) -> Change:
    """A change for `as_if`: the function at `target` with each text replaced by another.

    `target`: "package.module:Class.name".
    Raises AttributeError for a text that does not occur exactly once. Texts are those of the function by itself,
    without the indentation of its class.
    """

    def new(old: Any) -> Any:
        inner = old
        if isinstance(old, property):
            inner = old.fget
        elif isinstance(old, cached_property):
            inner = old.func
        elif isinstance(old, classmethod | staticmethod):
            inner = old.__func__
        source = textwrap.dedent(inspect.getsource(inner))
        for before, after in edits:
            if source.count(before) != 1:
                raise AttributeError(f"{target} has the text {before!r} {source.count(before)} times")
            source = source.replace(before, after)
        code = compile(source, f"<{target}>", "exec", flags=annotations.compiler_flag)
        scope: dict[str, Any] = {}
        exec(code, inspect.unwrap(inner).__globals__, scope)
        (made,) = scope.values()
        if isinstance(made, cached_property):
            made.__set_name__(None, target.rpartition(".")[2])
        return made

    return new_at(target, new)


def new_at(target: str, new: Callable[[Any], Any]) -> Change:
    """A change for `as_if`: `new` makes the value at `target` from the old one."""
    return target, new


def bug(name: str, breaks: str, kind: str, *changes: Change) -> Bug:
    """A bug of these changes, all at once."""
    return Bug(name, breaks, lambda: as_if(*changes), kind)
