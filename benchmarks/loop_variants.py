"""Variants of a workload whose lower bound is a plain loop with its own state, so that its actors need no messages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from benchmarks.variants import Serve, serve_dask, serve_in_process
from benchmarks.workload import WORKERS
from fedcore.experiment.experiment import Experiment

Prepare = Callable[[int, int, Path], Experiment]
"""Maps silos, rounds and a folder to the experiment, with its silos written below the folder."""


class Loop(Protocol):
    """A plain loop over some silos of an experiment (None: all), with its own state."""

    def __init__(self, experiment: Experiment, names: Sequence[str] | None = None, seed: int = 0) -> None: ...

    def step(self) -> None:
        """Does one whole round."""


class LoopActor:
    """An actor that does the plain loop for its share of the silos."""

    def __init__(self, work: LoopWork, silos: int, planned: int, home: Path, part: int) -> None:
        experiment = work.prepare(silos, planned, home)
        names = [silo.name for silo in experiment.plan.problem.silos]
        self._loop = work.loop(experiment, names[part::WORKERS], seed=part)

    def step(self) -> None:
        self._loop.step()


@dataclass(frozen=True)
class LoopWork:
    """A measured workload and its plain loop; module-level objects, because each variant runs in its own process."""

    prepare: Prepare
    loop: type[Loop]

    @property
    def variants(self) -> dict[str, Callable[..., None]]:
        return {
            "floor": self.floor,
            "in-process": self.in_process,
            "bare actors": self.bare_actors,
            "dask sites": self.dask_sites,
        }

    def floor(self, serve: Serve, home: Path, silos: int, planned: int, url: str) -> None:
        """The plain loop in one process."""
        serve(self.loop(self.prepare(silos, planned, home)).step)

    def in_process(self, serve: Serve, home: Path, silos: int, planned: int, url: str) -> None:
        """fedcore's round loop with all silos in this process."""
        serve_in_process(serve, self.prepare(silos, planned, home), home)

    def bare_actors(self, serve: Serve, home: Path, silos: int, planned: int, url: str) -> None:
        """The plain loop on one Dask actor per worker, each with its share of the silos; no messages are sent."""
        from tasks.workers.cluster import local_cluster, worker_addresses

        self.prepare(silos, planned, home)
        with local_cluster(WORKERS) as client:
            futures = [
                client.submit(LoopActor, self, silos, planned, home, part, actor=True, workers=[name], pure=False)
                for part, name in enumerate(worker_addresses(client))
            ]
            actors: list[Any] = [future.result() for future in futures]
            serve(lambda: [waiting.result() for waiting in [actor.step() for actor in actors]])

    def dask_sites(self, serve: Serve, home: Path, silos: int, planned: int, url: str) -> None:
        """fedcore's round loop with the silos on Dask workers."""
        serve_dask(serve, self.prepare(silos, planned, home), home)
