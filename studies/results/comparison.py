"""Comparison of published results with a rerun of the same trials by the registered code, to the printed digit."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from fedcore.errors import InputError
from fedcore.experiment.sweep import SweepConfig
from fedcore.home import Home
from flows.launch import launch_sweep
from flows.recorded.former_ids import RecordedRuns
from studies.figures.chosen import registered_choices, with_choices
from studies.results.figure_values import measured
from studies.results.measured import Measured, Place
from studies.results.provenance import DRAWS, Provenance
from studies.results.publication import Published
from studies.results.settings_file import read_settings
from studies.study import FigureConfig

Trial = tuple[int, int | None]
"""Seed and repetition; None: all repetitions of the seed."""


@dataclass(frozen=True)
class Difference:
    """A trial's value that differs between the publication and the rerun; None: one of them lacks it."""

    place: Place
    trial: Trial
    published: str | None
    now: str | None

    @property
    def sentence(self) -> str:
        seed, repetition = self.trial
        run = "" if repetition is None else f", repetition {repetition}"
        published = "not published" if self.published is None else f"published {self.published}"
        now = "does not come out now" if self.now is None else f"now {self.now}"
        return f"{self.place.words}, seed {seed}{run}: {published}, {now}"


def comparable(name: str, provenance: Provenance, rows: Sequence[Measured], figures: Sequence[str]) -> list[str]:
    """The figures whose published trials have this code's draws. `figures`: candidates; none: all published ones.

    Raises InputError for a figure that was not published, and if none is left.
    """
    published = list(dict.fromkeys(row.place.figure for row in rows))
    for figure in figures:
        provenance.of(figure)
    candidates = [figure for figure in published if not figures or figure in figures]
    if not candidates:
        raise InputError(f"study {name}: no results of these figures were published")
    found = [figure for figure in candidates if provenance.of(figure).draws == DRAWS]
    if not found:
        others = ", ".join(sorted({provenance.of(figure).draws for figure in candidates}))
        raise InputError(
            f"study {name}: the published numbers are of draws {others}, and this code makes draws {DRAWS}: other "
            f"draws of the same distributions, so a difference would show no mistake; publish the study anew first"
        )
    single = {row.place.figure for row in rows if row.single}
    if not single.intersection(found):
        raise InputError(f"study {name}: only means over trials were published, and a few trials have another mean")
    return [figure for figure in found if figure in single]


def compare_figure(
    figure: FigureConfig,
    sweep: SweepConfig,
    rows: Sequence[Measured],
    count: int,
    files: Published,
    console: Console | None,
) -> tuple[int, list[Difference]]:
    """Reruns the figure's first `count` published trials; returns the number of values and those that differ.

    The runs are made in a new home, which is deleted.
    """
    published = [row for row in rows if row.place.figure == figure.name and row.single]
    chosen = list(dict.fromkeys((row.seed, row.repetition) for row in published))[:count]
    if figure.chosen is not None:
        settings = [each for each in read_settings(files.settings) if each.figure == figure.name]
        named = [(each.method, each.place, each.settings) for each in settings]
        sweep = with_choices(sweep, figure.grid, registered_choices(sweep, figure.grid, named))
    sweep = of_trials(sweep, chosen)
    with _new_home() as anew:
        outcome = launch_sweep(sweep, console, yes=True)
        runs, came = RecordedRuns(anew), {result.run for result in outcome.results}
        cells = [cell for cell in sweep.cells() if runs.run(cell) in came]
        made = [row for row in measured(anew, figure, cells, outcome.results) if row.single]
    made = [row for row in made if (row.seed, row.repetition) in chosen]
    compared = [row for row in published if (row.seed, row.repetition) in chosen]
    return len(made), differences(compared, made)


def of_trials(sweep: SweepConfig, trials: Sequence[tuple[int | None, int | None]]) -> SweepConfig:
    """The sweep restricted to these seeds and repetitions, where its grid has them."""
    seeds = {seed for seed, _ in trials}
    repetitions = {repetition for _, repetition in trials}
    wanted = {"seed": seeds} if None in repetitions else {"seed": seeds, "repetition": repetitions}

    def restricted(grid: dict[str, list[object]]) -> dict[str, list[object]]:
        return {
            key: [value for value in values if value in wanted[key]] if key in wanted else values
            for key, values in grid.items()
        }

    variants = tuple(
        each if each.grid is None else each.model_copy(update={"grid": restricted(each.grid)})
        for each in sweep.variants
    )
    return sweep.model_copy(update={"grid": restricted(sweep.grid), "variants": variants})


def differences(published: Sequence[Measured], made: Sequence[Measured]) -> list[Difference]:
    """Values that differ in a printed digit, or are on one side only, in the order of publication."""
    before = {(row.place, (row.seed or 0, row.repetition)): row.value for row in published}
    now = {(row.place, (row.seed or 0, row.repetition)): row.value for row in made}
    found = []
    for place, trial in dict.fromkeys([*before, *now]):
        old, new = before.get((place, trial)), now.get((place, trial))
        if old is None or new is None or float(old) != float(new):
            found.append(Difference(place, trial, old, new))
    return found


@contextmanager
def _new_home() -> Iterator[Home]:
    """A new home in place of the present one for the block, so that no finished run is reused."""
    before = os.environ.get("FEDCORE_HOME")
    with tempfile.TemporaryDirectory(prefix="fedcore-compare-") as folder:
        os.environ["FEDCORE_HOME"] = str(Path(folder) / "home")
        try:
            yield Home.current().make()
        finally:
            os.environ.pop("FEDCORE_HOME")
            if before is not None:
                os.environ["FEDCORE_HOME"] = before
