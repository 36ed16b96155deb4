"""Thousands of releases for the tests of noise: of two silos, several data sets and runs, two plans.

A residual is release minus exact mean over planned sigma. At a correct silo all residuals are independent standard
normals. Each instrument tests one way in which they could fail to be.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from fedcore.audit.addresses import Sent
from fedcore.audit.audit_session import AuditSession
from fedcore.audit.audited_silo import AuditedSilo
from fedcore.audit.probes import asked_again
from fedcore.audit.scenes import mixed_records, silent_records
from fedcore.audit.transcript import Transcript
from fedcore.mechanisms.grid import FINENESS

RELEASES = 4096
"""Releases of one audit.

If one in 256 has no noise, all are missed with probability 1e-7; one in 1,000, with 2 percent."""
FEWEST = 1024
"""Least releases of one audit, for a very wide model or many local steps."""
SUMS = 8192
"""Most noised sums of one audit, for messages of several sums."""
NUMBERS = 2**23
"""Most residuals of one audit, 64 MB."""
SCENES = (
    "no gradients",
    "no gradients, another silo",
    "mixed records",
    "mixed records in training",
    "another plan",
    "models at the edge",
)

SHARED = 2
"""Index of the data set that has the key and the queries of the first one."""
OTHER_PLAN = 4


@dataclass(frozen=True, eq=False)
class Draw:
    """The secret sample of one exact sum: `taken` by place of the shard, `rows` the record at each place."""

    scene: int
    run: int
    address: tuple[int, int]
    ask: int
    sampling: str
    rate: float
    taken: np.ndarray
    rows: np.ndarray


@dataclass(frozen=True, eq=False)
class Releases:
    """N releases in the order of their questions: `residuals` (N, d), and the origin of each, (N,).

    `scene`: index into SCENES. `place`: index of its address in the plan. `exact` (N, d): in units of the planned
    sigma. `size`: total size of the secret samples. `unit`: the question's factor on the planned sigma. `ahead`: true
    if exact sums are fixed before the noise is drawn; the noise of a first local step moves the second sum. `odd_rows`:
    faults of the ledgers' rows. `step`: largest distance, in units of the planned sigma, by which a grid may have moved
    a residual from a continuous one; 0 without a grid.
    """

    residuals: np.ndarray
    exact: np.ndarray
    scene: np.ndarray
    run: np.ndarray
    phase: np.ndarray
    place: np.ndarray
    size: np.ndarray
    unit: np.ndarray
    draws: tuple[Draw, ...]
    sent: tuple[Sent, ...]
    odd_rows: tuple[str, ...]
    answered: int
    ahead: bool
    step: float

    @property
    def count(self) -> int:
        return len(self.residuals)

    @cached_property
    def index(self) -> dict[tuple[int, int, int], int]:
        """Index of the release of a scene, run and place."""
        keys = zip(self.scene.tolist(), self.run.tolist(), self.place.tolist(), strict=True)
        return {key: at for at, key in enumerate(keys)}

    def pairs(self, scene: int = 0, run: int = 0, place: int = 0, at: int | None = None) -> np.ndarray:
        """Pairs (P, 2) of releases whose scene, run and place differ by these numbers.

        `at`: of this scene only.
        """
        found = [
            (first, self.index[s + scene, r + run, p + place])
            for (s, r, p), first in self.index.items()
            if (at is None or s == at) and (s + scene, r + run, p + place) in self.index
        ]
        return np.array(found, dtype=int).reshape(-1, 2)


def wanted(audited: AuditedSilo) -> int:
    """Number of releases in an audit of this silo."""
    return max(FEWEST, min(RELEASES, NUMBERS // audited.dim, SUMS // audited.answers))


def gather(audited: AuditedSilo, rng: np.random.Generator) -> Releases:
    """Asks the silo under test for all releases. Raises SiloError as a site does."""
    parts: list[tuple[int, int, Transcript]] = []
    draws: list[Draw] = []
    sent: list[Sent] = []
    odd: list[str] = []
    answered = 0
    for scene, session, server, share in _sessions(audited, rng):
        left, run = math.ceil(wanted(audited) * share), 0
        while left > 0:
            name = f"audit-{server}-{run}"
            if server == "train":
                transcript = session.train(name, left)
            else:
                transcript = session.still(name, left) if server == "still" else session.far(name, left, rng)
            left -= max(1, len(transcript.payload))
            answered += len(transcript.payload) + len(transcript.beside)
            parts.append((scene, run, transcript))
            draws += _draws(session, scene, run, transcript)
            odd += _odd_rows(session, transcript)
            of = f"{SCENES[scene]}: "
            seen = session.sent(transcript) + (asked_again(session, name, transcript.addresses) if scene == 0 else [])
            sent += [one._replace(run=of + one.run) for one in seen + session.in_ledger(name)]
            session.forget(name)
            run += 1
    return _joined(audited, parts, draws, sent, odd, answered)


def _sessions(audited: AuditedSilo, rng: np.random.Generator) -> Iterator[tuple[int, AuditSession, str, float]]:
    """Scene, session, server (`AuditSession.still`, `train`, `far`), and share of the releases."""
    silent, other = silent_records(audited), replace(audited, key=rng.bytes(32))
    yield 0, AuditSession(audited, silent), "still", 0.25
    yield 1, AuditSession(other, silent), "still", 0.2
    # This scene shares key and queries with the first. With confident predictions a later local step's sum would be
    # zero in both.
    yield SHARED, AuditSession(audited, mixed_records(audited, rng, gentle=audited.answers > 1)), "still", 0.2
    yield 3, AuditSession(audited, mixed_records(audited, rng)), "train", 0.2
    yield OTHER_PLAN, AuditSession(audited.in_another_plan(), silent), "still", 0.05
    yield 5, AuditSession(audited, mixed_records(audited, rng)), "far", 0.1


def _draws(session: AuditSession, scene: int, run: int, transcript: Transcript) -> Iterator[Draw]:
    for address, event, sums in zip(transcript.addresses, transcript.events, transcript.sums, strict=True):
        if event.sampling == "full":
            continue
        rows = session.order(transcript.run)[event.start : event.stop]
        for ask, one in enumerate(sums):
            taken = np.ones(len(rows), dtype=bool)
            if one.chosen is not None:
                taken[:] = False
                taken[one.chosen] = True
            yield Draw(scene, run, address, ask, event.sampling, event.rate, taken, rows)


def _odd_rows(session: AuditSession, transcript: Transcript) -> list[str]:
    """Faults of the ledger's rows of a run: each release must have one row, with its planned event."""
    planned = dict(zip(transcript.addresses, transcript.events, strict=True))
    beside = ((one.phase, one.round) for one in transcript.beside)
    planned |= {address: session.audited.event(address) for address in beside}
    rows = {(row.phase, row.round): row.event for row in session.written(transcript.run)}
    where = f"run {transcript.run}, round "
    odd = [
        f"{where}{phase}.{round} " + ("has no row" if (phase, round) not in rows else "is charged for another event")
        for (phase, round), event in planned.items()
        if rows.get((phase, round)) != event
    ]
    return odd + [f"{where}{at[0]}.{at[1]} was never asked" for at in rows if at not in planned]


def _joined(
    audited: AuditedSilo,
    parts: list[tuple[int, int, Transcript]],
    draws: list[Draw],
    sent: list[Sent],
    odd: list[str],
    answered: int,
) -> Releases:
    places = {address: at for at, address in enumerate(audited.addresses)}

    def labels(of: int) -> np.ndarray:
        return np.repeat([part[of] for part in parts], [len(part[2].payload) for part in parts]).astype(int)

    exact = np.concatenate([part.exact / part.sigma[:, None] for _, _, part in parts])
    residuals = np.concatenate([part.residuals for _, _, part in parts])
    scene, run = labels(0), labels(1)
    addresses = [address for _, _, part in parts for address in part.addresses]
    place = np.array([places[address] for address in addresses])
    size = np.array(
        [
            sum(0 if one.chosen is None else len(one.chosen) for one in sums)
            for _, _, part in parts
            for sums in part.sums
        ]
    )
    # One key, one query and one exact sum rightly repeat their noise: an empty sample adds up to zero in both.
    distinct = (scene != SHARED) | ~np.concatenate([part.blank for _, _, part in parts])
    phase = np.array([address[0] for address in addresses])
    unit = np.concatenate([part.unit for _, _, part in parts])
    return Releases(
        residuals[distinct],
        exact[distinct],
        scene[distinct],
        run[distinct],
        phase[distinct],
        place[distinct],
        size[distinct],
        unit[distinct],
        tuple(draws),
        tuple(sent),
        tuple(odd),
        answered,
        audited.answers == 1,
        _step(audited),
    )


def _step(audited: AuditedSilo) -> float:
    """Half a step for the rounded sum and half for its noise, of each independent sum in a message."""
    on_grid = audited.plan.problem.budget.mechanism == "discrete-gaussian"
    return FINENESS * math.sqrt(audited.answers) if on_grid else 0.0
