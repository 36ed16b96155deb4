"""The terminal as commands write to it: what others wrote is text there, no markup of rich and no
order to a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderHook
from rich.measure import Measurement
from rich.segment import Segment

from fedcore.printable import on_terminal

LEAST, USUAL = 20, 80
"""Columns: COLUMNS=0, which some programs set, would print nothing at all."""


class Terminal(Console):
    """A console that takes [bold] for markup, and :smile: for a picture, only where it is asked to."""

    def __init__(self, *, markup: bool = False, emoji: bool = False, **options: Any) -> None:
        super().__init__(markup=markup, emoji=emoji, **options)
        if self.width < LEAST:
            self.width = USUAL
        self.push_render_hook(_Escaping())

    def say(self, text: str) -> None:
        """The text as it is, however wide the terminal."""
        self.print(text, highlight=False, markup=False, emoji=False, soft_wrap=True)


class _Escaping(RenderHook):
    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        return [_Escaped(each) for each in renderables]


class _Escaped:
    """Segments of text with control characters as escapes; orders that rich itself gives are no text."""

    def __init__(self, inner: ConsoleRenderable) -> None:
        self._inner = inner

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        for segment in console.render(self._inner, options):
            yield segment if segment.control else Segment(on_terminal(segment.text), segment.style)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement.get(console, options, self._inner)
