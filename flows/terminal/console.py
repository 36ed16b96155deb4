"""Console of the commands. It prints foreign text literally: neither as rich's markup nor as control sequences."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderHook
from rich.measure import Measurement
from rich.segment import Segment

from fedcore.printable import on_terminal

LEAST, USUAL = 20, 80
"""Columns: least width, and the width used below it. COLUMNS=0, which some programs set, would print nothing."""


class Terminal(Console):
    """A console that interprets markup such as [bold] and emoji such as :smile: only on request."""

    def __init__(self, *, markup: bool = False, emoji: bool = False, **options: Any) -> None:
        super().__init__(markup=markup, emoji=emoji, **options)
        if self.width < LEAST:
            self.width = USUAL
        self.push_render_hook(_Escaping())

    def print_plain(self, text: str) -> None:
        """Prints the text literally and unwrapped."""
        self.print(text, highlight=False, markup=False, emoji=False, soft_wrap=True)


class _Escaping(RenderHook):
    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        return [_Escaped(each) for each in renderables]


class _Escaped:
    """Renders text with control characters escaped; rich's own control segments stay."""

    def __init__(self, inner: ConsoleRenderable) -> None:
        self._inner = inner

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        for segment in console.render(self._inner, options):
            yield segment if segment.control else Segment(on_terminal(segment.text), segment.style)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement.get(console, options, self._inner)
