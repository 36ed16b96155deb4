"""The provenance of published results: command, commit, processor, date, seeds and draws. Text only, never executed."""

from __future__ import annotations

import contextlib
import datetime
import getpass
import json
import re
import socket
from pathlib import Path
from typing import Annotated, Self

from pydantic import AfterValidator, Field, model_validator

from fedcore.bounded_file import read_within
from fedcore.configfile.reading import validated
from fedcore.errors import InputError
from fedcore.hyperparameters import Count, Section
from tasks.result_file import write_atomically

DRAWS = "0.3"
"""The version of this code's simulated noise, samples, splits and participation. Results of another version are other
draws from the same distributions, so a difference between the two is no mistake."""
_PLACES = (
    (re.compile(r"(?:^|[^\w.])[/~\\](?=[\w.$~\\-])"), "an absolute path"),
    (re.compile(r"(?:^|\W)[A-Za-z]:[\\/]"), "an absolute path"),
    (re.compile(r"[\w.+-]@[\w-]"), "a user or a host"),
    (re.compile(r"://"), "an address"),
    (re.compile(r"(?:^|\W)(?:\d{1,3}\.){3}\d{1,3}(?:\W|$)"), "an address"),
)


def impersonal(text: str) -> str:
    """The text itself. Raises ValueError for characters beyond printable ASCII, and for a path, address or user in it.

    Paths are absolute ones; a user is one at a host.
    """
    if not text.isascii() or not text.isprintable():
        raise ValueError("must be printable ASCII")
    for pattern, kind in _PLACES:
        if pattern.search(text):
            raise ValueError(f"must not name {kind}")
    return text


Text = Annotated[str, Field(min_length=1, max_length=300), AfterValidator(impersonal)]


class Publication(Section):
    """The origin of figures of a study that were published by one command."""

    figures: tuple[Annotated[str, Field(pattern=r"^[a-z0-9-]{1,60}$")], ...] = Field(min_length=1)
    command: Text
    """The command that made the figures, as text."""
    commit: str = Field(pattern=r"^[0-9a-f]{8,40}$")
    """Commit of the code that made the figures; with a `source`, of that page's last change of these numbers."""
    date: datetime.date
    processor: Text | None
    """The machine's processor; None if it was not recorded."""
    seeds: tuple[Count, ...]
    """Seeds of the trials; empty if the trials are repetitions of one seed."""
    draws: str = Field(pattern=r"^\d+(\.\d+){0,2}$")
    """The version of the simulated draws (`DRAWS`)."""
    source: Text | None = None
    """The page of the repository from which older results were taken."""


class Provenance(Section):
    """The origin of all published figures of a study."""

    study: str = Field(pattern=r"^[a-z0-9-]{1,60}$")
    published: tuple[Publication, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _of_each_figure_once(self) -> Self:
        named = [figure for each in self.published for figure in each.figures]
        for figure in named:
            if named.count(figure) > 1:
                raise ValueError(f"figure {figure} was published twice")
        return self

    def of(self, figure: str) -> Publication:
        """The publication of a figure. Raises InputError for a figure that was not published."""
        for each in self.published:
            if figure in each.figures:
                return each
        raise InputError(f"study {self.study}: figure {figure} was not published")

    def replaced(self, new: Publication) -> Provenance:
        """This provenance with a new publication, which replaces earlier ones of the same figures."""
        rest = [
            each.model_copy(update={"figures": left})
            for each in self.published
            if (left := tuple(figure for figure in each.figures if figure not in new.figures))
        ]
        return Provenance(study=self.study, published=(*rest, new))


def read_provenance(path: Path) -> Provenance:
    """The provenance in a file. Raises InputError for a file that is missing, too large, or of another form."""
    try:
        values = json.loads(read_within(path))
    except FileNotFoundError:
        raise InputError(f"provenance {path} does not exist") from None
    except OSError as error:
        raise InputError(f"provenance {path} cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError):
        raise InputError(f"provenance {path} is not JSON") from None
    if not isinstance(values, dict):
        raise InputError(f"provenance {path} is not a JSON object")
    return validated(Provenance, values, f"provenance {path}")


def write_provenance(path: Path, provenance: Provenance) -> None:
    """Writes the file after it is validated as when read. Raises InputError if a text names this host or its user."""
    values = provenance.model_dump(mode="json")
    validated(Provenance, values, f"provenance {path}")
    for each in provenance.published:
        usual = {"python", "-m", "studies", "run", "--publish", "--figure", provenance.study, *each.figures}
        free = [*(word for word in each.command.split() if word not in usual), each.processor or "", each.source or ""]
        for name, kind in _own_names():
            if any(re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", text, re.IGNORECASE) for text in free):
                raise InputError(f"provenance {path}: a text names this {kind}; nothing was written")
    write_atomically(path, (json.dumps(values, indent=2) + "\n").encode())


def _own_names() -> list[tuple[str, str]]:
    """The names of this host and of its user, each with "host" or "user"."""
    host = socket.gethostname()
    names = [(host, "host"), (host.partition(".")[0], "host")]
    with contextlib.suppress(OSError, KeyError, ImportError):  # an account without a name
        names.append((getpass.getuser(), "user"))
    return [(name, kind) for name, kind in names if name]
