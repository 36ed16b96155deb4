"""The same runs in one process: silos opened from copies of their folders, and the models compared to the last bit."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedcore.arrays import Vector
from fedcore.errors import InputError
from fedcore.experiment.experiment import Experiment
from fedcore.experiment.sweep import load_sweep
from fedcore.federation.in_process import InProcess
from fedcore.federation.rounds import rounds
from fedcore.home import Home
from fedcore.messages import Query, Releases
from fedcore.remote.membership import Membership
from fedcore.silo.opening import SiteSpec, open_site
from fedcore.silo.site import Site

PLACES = ("FEDCORE_HOME", "FEDCORE_REGISTER", "FEDCORE_POLICIES", "FEDCORE_ANCHORS")
"""Variables that lead to files of a home or a register."""


@dataclass(frozen=True)
class Compared:
    """Models of one run, of silos apart and of the same silos in one process."""

    run: str
    epsilon: float
    apart: Vector
    together: Vector

    @property
    def equal(self) -> bool:
        """True if the models have the same bits."""
        return self.apart.tobytes() == self.together.tobytes()

    @property
    def digests(self) -> tuple[str, str]:
        """Beginnings of the SHA-256 of both models' float64 bytes."""
        apart, together = (hashlib.sha256(w.tobytes()).hexdigest()[:16] for w in (self.apart, self.together))
        return apart, together


@contextmanager
def _environment(places: Mapping[str, str]) -> Iterator[None]:
    """Sets a party's places for the block, and no other: a person's own variables would lead to other policies."""
    before = {name: value for name, value in os.environ.items() if name in PLACES}
    for name in PLACES:
        os.environ.pop(name, None)
    os.environ.update(places)
    try:
        yield
    finally:
        for name in PLACES:
            os.environ.pop(name, None)
        os.environ.update(before)


def compared(
    config: Path, driver: Mapping[str, str], silos: Mapping[str, Mapping[str, str]], models: Path
) -> list[Compared]:
    """The runs of the sweep `config`, each beside its model below `models`. Raises InputError, SiloError.

    `driver`: variables of a home that has the federation's cards. `silos`: by name, variables that locate a silo's
    home and register; both are copies from before the first run, where the originals were. This process owns them.
    """
    with _environment(driver):
        home = Home.current()
        experiments = [Experiment.prepare(cell, home.silos) for cell in load_sweep(config).cells(str(config))]
        with ExitStack() as opened:
            sites = {}
            for name, places in silos.items():
                with _environment(places):
                    own = Home.current()
                    source = Membership.of(own, name).source(own)
                    sites[name] = open_site(SiteSpec((source,), 0, "sqlite", own.ledger_folders, guarded=True))
                opened.callback(sites[name].close)
            found = []
            for experiment in experiments:
                together = _model(experiment, list(sites.values()))
                found.append(
                    Compared(
                        experiment.run,
                        float(experiment.config.privacy.epsilon or 0.0),
                        _stored(models / experiment.run / "model.json"),
                        together,
                    )
                )
        return found


def _model(experiment: Experiment, sites: Sequence[Site]) -> Vector:
    """The model (d,) of a run of these sites, which stay open."""
    backends = [InProcess(site, experiment.agreement, lambda site: None, lease=1) for site in sites]
    for backend in backends:
        backend.open()

    def ask(query: Query) -> Releases:
        return Releases.joined(query, [backend.ask(query.at(backend.silos)) for backend in backends])

    context = experiment.context
    state = context.method.init(experiment.start())
    for _, _, after in rounds(context, state, ask):
        state = after
    for backend in backends:
        backend.close_run(experiment.run)
        backend.close()
    return np.asarray(context.method.output(state), dtype=np.float64)


def _stored(path: Path) -> Vector:
    try:
        return np.array(json.loads(path.read_text())["w"], dtype=np.float64)
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"{path}: it is no model of a finished run ({error})") from None
