"""Variants of a work whose honest lower bound keeps its own state: a plain loop whose actors need no message."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from benchmarks.variants import Serve, serve_dask, serve_in_process
from benchmarks.workload import WORKERS
from fedcore.experiment.experiment import Experiment

Prepare = Callable[[int, int, Path], Experiment]
"""(silos, rounds, folder) to the experiment with its silos written below the folder."""


class Loop(Protocol):
    """Some silos of an experiment (None: all), from round to round by itself."""

    def __init__(self, experiment: Experiment, names: Sequence[str] | None = None, seed: int = 0) -> None: ...

    def step(self) -> None:
        """One whole round."""


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
    """A measured work and its plain loop: functions and classes of modules, for a variant has its own process."""

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
        """The plain loop on one Dask actor per worker, each with its share of the silos: nothing travels."""
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
