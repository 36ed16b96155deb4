"""Sphinx extension of the site: generated reference pages, executed cells, tables and figures of published results.

Each part rewrites the Markdown of a page before it is parsed. Pages in the tree have a marker or a cell; the built site
has the output of the code or cell, or the content of the result file.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from extension.cells import execute
from extension.commands import commands
from extension.docstrings import escape
from extension.figures import figures
from extension.keys import keys
from extension.markers import replace
from extension.methods import answers, losses, methods
from extension.policy import policy
from extension.published import tables

if TYPE_CHECKING:
    from sphinx.application import Sphinx

GENERATORS = {
    "commands": commands,
    "keys": keys,
    "methods": methods,
    "losses": losses,
    "answers": answers,
    "policy": policy,
}


_PUBLISHED = re.compile(r"^<!-- (?:figure|published|provenance): ([^|>]+?) (?:\||-->)", re.MULTILINE)


def _rewrite(app: Sphinx, page: str, source: list[str]) -> None:
    text = replace(source[0], GENERATORS, page)
    folder = Path(app.config.published_folder or Path(app.srcdir).parent / "studies" / "published")
    for study in _PUBLISHED.findall(text):
        app.env.note_dependency(str(folder / f"{study}.csv"))  # so that a study published anew renews the page
    text = figures(tables(text, folder, page), folder, Path(app.srcdir), page)
    source[0] = execute(text, Path(app.srcdir), page)


def setup(app: Sphinx) -> dict[str, Any]:
    """Registers the rewriting of pages with Sphinx."""
    app.add_config_value("published_folder", None, "env", str)
    app.connect("autodoc-process-docstring", escape)
    app.connect("source-read", _rewrite)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
