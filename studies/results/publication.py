"""Publication of a study's results: CSV, provenance, settings and plots in the tree, and the rows behind advice."""

from __future__ import annotations

import datetime
import platform
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fedcore.advice.shipped import PROVENANCE, ROWS, advice_rows, as_bytes
from fedcore.errors import InputError
from fedcore.experiment.identity import code_version
from fedcore.home import Home
from studies.figures.rows import gathered
from studies.results.figure_values import measured
from studies.results.measured import Measured
from studies.results.provenance import DRAWS, Provenance, Publication, read_provenance, write_provenance
from studies.results.results_file import read_results, write_results
from studies.results.settings_file import read_settings, settings_of, write_settings
from studies.running import Drawn
from studies.study import StudyConfig
from tasks.result_file import write_atomically

ROOT = Path(__file__).parents[2]
PUBLISHED = ROOT / "studies" / "published"
_WRITTEN = ("studies/published", "fedcore/advice/rows.json", "fedcore/advice/rows.provenance.json")


@dataclass(frozen=True)
class Published:
    """The files of a study's published results."""

    name: str
    folder: Path = field(default_factory=lambda: PUBLISHED)

    @property
    def results(self) -> Path:
        return self.folder / f"{self.name}.csv"

    @property
    def provenance(self) -> Path:
        return self.folder / f"{self.name}.json"

    @property
    def extras(self) -> Path:
        """The folder of plots and settings."""
        return self.folder / self.name

    @property
    def settings(self) -> Path:
        return self.extras / "settings.json"


def publish(home: Home, name: str, study: StudyConfig, drawn: Sequence[Drawn], commit: str, to: Published) -> None:
    """Writes the figures' results, in place of earlier published ones.

    Raises InputError, before it writes anything, for runs of other code than the present one.
    """
    for each in drawn:
        other = sorted({result.code for result in each.results} - {code_version()})
        if other:
            raise InputError(
                f"figure {each.figure.name}: its runs were made by code {', '.join(other)}, this is {code_version()}; "
                "set FEDCORE_HOME to an empty folder and run the study there"
            )
    figures = tuple(each.figure.name for each in drawn)
    rows = [row for each in drawn for row in measured(home, each.figure, each.cells, each.results)]
    origin = Publication(
        figures=figures,
        command=command(name, figures, len(figures) == len(study.figures)),
        commit=commit,
        date=datetime.datetime.now(datetime.UTC).date(),
        processor=processor(),
        seeds=tuple(sorted({row.seed for row in rows if row.seed is not None})),
        draws=DRAWS,
    )
    provenance = Provenance(study=name, published=(origin,))
    before: tuple[Measured, ...] = ()
    if to.results.exists():
        before = read_results(to.results)
        provenance = read_provenance(to.provenance).replaced(origin)
    to.extras.mkdir(parents=True, exist_ok=True)
    write_provenance(to.provenance, provenance)
    write_results(to.results, [*(row for row in before if row.place.figure not in figures), *rows])
    _publish_settings(drawn, figures, to)
    for each in drawn:
        for plot in sorted(each.folder.glob("*.png")):
            part = "" if plot.stem == "plot" else f"-{plot.stem.removeprefix('plot-')}"
            shutil.copyfile(plot, to.extras / f"{each.figure.name}{part}.png")


def publish_advice(folder: Path, figures: Sequence[str], provenance: Provenance) -> None:
    """Writes these figures' rows for `fedcore advise`, and their provenance. `folder`: the study's in a home."""
    new = [row for row in gathered(folder) if row.figure in figures]
    others = [row for row in advice_rows() if row.figure not in figures]
    write_provenance(PROVENANCE, provenance)
    write_atomically(ROWS, as_bytes(tuple(sorted([*others, *new], key=lambda row: (row.figure, row.facts.epsilon)))))


def _publish_settings(drawn: Sequence[Drawn], figures: Sequence[str], to: Published) -> None:
    new = [each for made in drawn for each in settings_of(made.figure.name, made.choices)]
    if new:
        before = read_settings(to.settings) if to.settings.exists() else ()
        write_settings(to.settings, [*(each for each in before if each.figure not in figures), *new])


def command(name: str, figures: Sequence[str], whole: bool) -> str:
    """The command that makes these figures, or the whole study, again."""
    options = "" if whole else "".join(f" --figure {figure}" for figure in figures)
    return f"python -m studies run {name}{options}"


def committed() -> str:
    """The commit of the tree. Raises InputError without Git, and for changes other than published results."""
    changed = _git("status", "--porcelain", "--", ".", *(f":(exclude){path}" for path in _WRITTEN))
    if changed:
        first = changed.splitlines()[0][3:]
        raise InputError(f"published results are of a commit, and {first} differs from it; commit first")
    return _git("rev-parse", "HEAD").strip()


def processor() -> str:
    """The processor's model and the machine's architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return ", ".join([*models[:1], platform.machine() or "unknown"])


def _git(*words: str) -> str:
    try:
        done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        raise InputError("published results are of a commit: run --publish in a clone with Git") from None
    return done.stdout
