"""Reference of the command line, from the typer application."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from extension.markers import plain


def commands() -> str:
    """Markdown of every command with its arguments and options, groups below their own heading."""
    from typer.main import get_command

    from flows.commands.app import app

    return "\n".join(_group(get_command(app), "fedcore", 2))


def _group(group: Any, path: str, level: int) -> Iterator[str]:
    for name in sorted(group.commands):
        command, full = group.commands[name], f"{path} {name}"
        if command.hidden:
            continue
        yield from ("#" * level + f" {full}", "", plain(command.help or ""), "")
        if hasattr(command, "commands"):
            yield from _group(command, full, level + 1)
        else:
            yield from _usage(command, full)


def _usage(command: Any, path: str) -> Iterator[str]:
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    shown = [each for each in command.params if each.param_type_name == "option" and not each.hidden]
    words = [path, *(_metavar(each) for each in arguments), *(["[OPTIONS]"] if shown else [])]
    yield from ("```text", " ".join(words), "```", "")
    for each in [*arguments, *shown]:
        names = _metavar(each) if each.param_type_name == "argument" else ", ".join([*each.opts, *each.secondary_opts])
        yield from (f"`{names}`", f": {plain(each.help or 'No description.')}{_default(each)}", "")


def _metavar(argument: Any) -> str:
    name = argument.metavar or argument.name.upper()
    name = f"{name}..." if argument.nargs == -1 else name
    return name if argument.required else f"[{name}]"


def _default(parameter: Any) -> str:
    value = parameter.default
    if value is None or value in (False, (), []) or callable(value):
        return ""
    return f" Default: `{value.as_posix() if isinstance(value, Path) else value}`."
