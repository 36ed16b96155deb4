"""Silos with one planted privacy bug each, by authors who have not read the audit.

How to plant one more. Write a module in `tests/audit/foreign/` with a tuple `BUGS` of `tests.audit.bug.Bug`:

    Bug("half of the clip", "clipping: a record moves a sum by twice the bound",
        lambda: as_if(("fedcore.models.linear:row_norms", lambda right: lambda X: right(X) / 2)), kind="full batches")

`as_if` (same module) replaces names of the product: functions wherever they were imported, methods by
"module:Class.method"; new(old) makes the new one. Any context manager works, or `opener=`, as below. Change any code of
fedcore except `fedcore.audit`. Do not change what an audit could recognise, such as names or a constant key.
`kind` is a plan in which the bug breaks the guarantee: a key of `KINDS` in tests/audit/audited_silos.py. The plan is
made with the bug planted, so bugs of planning, accounting, ledgers and failures are welcome.
`breaks` names the class and the loss. A bug must break the guarantee for some neighbours or for some plan. It releases
more than the silo charges, or charges less than was agreed. It should do so in every run, not one in 10,000. Each is
audited in a process of its own:  .venv/bin/python -m tests.audit.foreign_runner [NAME ...]

The eight below have the older form: an opener takes (name, records, keys, ledger) and returns a `PrivateSilo` that is
not guarded. Each breaks the plan's guarantee, which holds for every position of the split, whatever the split is. mu is
the parameter of Gaussian DP; epsilons are at delta 1e-5 where 2 is charged, for the plan in `PLANS`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from hashlib import blake2b
from typing import Any

import numpy as np

from fedcore.algorithms import Method
from fedcore.arrays import Vector, pack
from fedcore.data.records import Records
from fedcore.ledger.ledger import Ledger
from fedcore.mechanisms.discrete_gaussian import Keystream
from fedcore.mechanisms.gaussian import KeyedGaussian
from fedcore.mechanisms.secret_sample import fixed_size_sample, poisson_sample, sample_stream
from fedcore.messages import Release
from fedcore.models import Objective
from fedcore.models.linear import row_norms
from fedcore.planning.phase import Phase
from fedcore.planning.plan import Plan
from fedcore.randomness import derive
from fedcore.silo.answers import Gradient, Shard
from fedcore.silo.approved_run import ApprovedRun
from fedcore.silo.keys import Keys
from fedcore.silo.private_silo import PrivateSilo
from fedcore.silo.question import RoundQuestion

Opener = Callable[[str, Records, Keys, Ledger], PrivateSilo]


class _TiledGaussian(KeyedGaussian):
    def draw(self, run_key: bytes, context: bytes, total: Vector) -> Vector:
        half = super().draw(run_key, context, total[: (total.size + 1) // 2])
        return np.concatenate([half, half])[: total.size]


def noise_repeated_over_halves(name: str, records: Records, keys: Keys, ledger: Ledger) -> PrivateSilo:
    """Half as many normals as coordinates are drawn, and used twice: j and j + d/2 share their noise.

    Each coordinate by itself has noise of the planned variance. Coordinate 0 minus coordinate d/2 of one release is
    exact. It distinguishes two data sets whose one different record differs along coordinate 0: epsilon infinite. Shows
    in all plans with two coordinates or more. With local steps the steps' mean has the same two halves; the samples are
    not exact, so the sample's own chance remains there.
    """
    silo = PrivateSilo(name, records, keys, ledger)
    silo._noise = _TiledGaussian()
    return silo


class _BoundsOfTheFile(PrivateSilo):
    def approve(self, run: str, plan: Plan, method: Method[Any], loss: Objective | None, lease: int = 0) -> None:
        super().approve(run, plan, method, loss, lease)
        answers = self._runs[run].answers
        bounds = answers["gradient"].model.bounds(self._records.X, self._records.y, plan.problem.objective.clip)
        answers["gradient"] = replace(answers["gradient"], bounds=bounds)


def clips_by_bounds_of_other_records(name: str, records: Records, keys: Keys, ledger: Ledger) -> PrivateSilo:
    """Each record is clipped by another's norm: bounds are in the file's order, records in the split's.

    A record of norm 1000 among records of norm 1 moves the sum by 500 where 1 is allowed. One release reveals its sign,
    epsilon in the thousands, for all splits that move it from its place (all but one in n). Records that all have one
    norm hide the bug. Shows in all plans, wherever norms of records differ and some are above clip / residual.
    """
    return _BoundsOfTheFile(name, records, keys, ledger)


class _Scaled(PrivateSilo):
    def __init__(self, name: str, records: Records, keys: Keys, ledger: Ledger) -> None:
        longest = row_norms(records.X).max(initial=0.0)
        X = records.X / longest if 0.0 < longest < np.inf else records.X
        super().__init__(name, Records(X, records.y, records.bound), keys, ledger)


def scales_by_longest_record(name: str, records: Records, keys: Keys, ledger: Ledger) -> PrivateSilo:
    """All rows are divided by the norm of the silo's longest one, a constant that records choose.

    Neighbours: n equal records of norm 1, and the same with one replaced by a record of norm 1e6. It shrinks the
    gradients of all others almost to zero. The sum moves by about n / 2 instead of 2 clip at most. With n = 100 and six
    full batches (noise 9.8 on a sum) mu is 12 where 0.5 is charged, epsilon above 100. Shows in all plans; more with
    more records in an answer. It is invisible where the longest record has norm 1.
    """
    return _Scaled(name, records, keys, ledger)


@dataclass(frozen=True)
class _Sampled(Gradient):
    choose: Callable[[Shard, np.ndarray], np.ndarray]

    def clipped_sum(
        self, w: Vector, shard: Shard, chosen: np.ndarray | None = None, shifts: Vector | None = None
    ) -> Vector:
        return super().clipped_sum(w, shard, None if chosen is None else self.choose(shard, chosen), shifts)


class _OtherSamples(PrivateSilo):
    """Draws its samples by `_choose`; `_question` and `_asked` are those of the answer under way."""

    _question: RoundQuestion
    _asked = 0

    def approve(self, run: str, plan: Plan, method: Method[Any], loss: Objective | None, lease: int = 0) -> None:
        super().approve(run, plan, method, loss, lease)
        answers = self._runs[run].answers
        known: dict[str, Any] = {field.name: getattr(answers["gradient"], field.name) for field in fields(Gradient)}
        answers["gradient"] = _Sampled(**known, choose=self._chosen)

    def answer(self, question: RoundQuestion, phase: Phase) -> Release:
        self._question, self._asked = question, 0
        return super().answer(question, phase)

    def _chosen(self, shard: Shard, chosen: np.ndarray) -> np.ndarray:
        self._asked += 1
        return self._choose(shard, chosen)

    def _choose(self, shard: Shard, chosen: np.ndarray) -> np.ndarray:
        raise NotImplementedError


def public_sample(question: RoundQuestion, asked: int, shard: Shard) -> np.ndarray:
    """The sample of `samples_without_run_key`, which anyone with the question can draw."""
    stream = sample_stream(b"", question.digest + asked.to_bytes(8, "little"))
    if shard.event.sampling == "poisson":
        return poisson_sample(stream, shard.event.rate, len(shard.y))
    return fixed_size_sample(stream, int(shard.count), len(shard.y))


class _PublicSamples(_OtherSamples):
    def _choose(self, shard: Shard, chosen: np.ndarray) -> np.ndarray:
        return public_sample(self._question, self._asked, shard)


def samples_without_run_key(name: str, records: Records, keys: Keys, ledger: Ledger) -> PrivateSilo:
    """The key of a sample follows from the question alone: two silos draw the same places.

    The asker knows these places.
    Amplification is void. The asker can even choose: it varies the model until a certain place is in the sample, some 1
    / rate tries, in each round. Two records at that place are then distinguished with mu sqrt(20) 1.12 = 5.0. Epsilon
    is 33 where 2 is charged for a rate of 4/41. It is 8.2 for a record whose place in the secret split is unknown.
    Shows in plans that sample (Poisson, and fixed-size samples of local steps); the more, the lower the rate and the
    more answers.
    """
    return _PublicSamples(name, records, keys, ledger)


class _FirstPiece(PrivateSilo):
    def _shard(self, question: RoundQuestion, run: ApprovedRun, phase: Phase) -> Shard:
        shard = super()._shard(question, run, phase)
        m = len(shard.y)
        return replace(shard, at=slice(0, m), X=run.X[:m], y=run.y[:m])


def pieces_all_start_at_zero(name: str, records: Records, keys: Keys, ledger: Ledger) -> PrivateSilo:
    """A shard is cut by its length and not by its start: each fresh block is the first one.

    So is each phase's shard.
    Answers charged in parallel compose in sequence: a record of the first block is in all R rounds, and mu grows by
    sqrt(R). With 100 blocks mu is 5.0 and epsilon 33 instead of 2 for a record in that block. For a record at an
    unknown place of the secret split epsilon is 5.7; with three phases at their own full epsilon each, 3.7. Below 40
    blocks, and with three phases, only a known place breaks the bound. (The accountant composes by place, and its proof
    does not use the secrecy of the split.) Shows only with fresh blocks and in several phases, from the second round or
    phase on.
    """
    return _FirstPiece(name, records, keys, ledger)


class _SharedByPhases(KeyedGaussian):
    def __init__(self, silo: _NoiseByRound) -> None:
        super().__init__()
        self._silo = silo

    def draw(self, run_key: bytes, context: bytes, total: Vector) -> Vector:
        silo = self._silo
        silo.drawn += 1
        numbers = f"{silo.question.round}.{silo.drawn}".encode()
        key = blake2b(numbers + pack(silo.question.arrays), key=run_key, digest_size=16).digest()
        generator = np.random.Generator(np.random.Philox(key=int.from_bytes(key, "little")))
        return generator.standard_normal(total.shape)


class _NoiseByRound(PrivateSilo):
    drawn = 0

    def __init__(self, name: str, records: Records, keys: Keys, ledger: Ledger) -> None:
        super().__init__(name, records, keys, ledger)
        self.question = RoundQuestion("", 1, 1, {}, b"")  # of noise that is drawn for no answer
        self._noise = _SharedByPhases(self)

    def answer(self, question: RoundQuestion, phase: Phase) -> Release:
        self.question, self.drawn = question, 0
        return super().answer(question, phase)


def noise_shared_by_phases(name: str, records: Records, keys: Keys, ledger: Ledger) -> PrivateSilo:
    """Noise is keyed by run key, model and number of the round within its phase, but not by the phase.

    The asker sends one model in round r of two phases: both sums have the same normals, each times its own standard
    deviation. The difference of the two, each divided by its own, is exact. It distinguishes any record of either phase
    whose gradient is not zero: epsilon infinite. Shows only in plans of several phases, and only where one model is
    asked about twice; an honest server hardly does so after round 1. Variances, coordinates, and all noise within one
    phase are as planned.
    """
    return _NoiseByRound(name, records, keys, ledger)


def _words(stream: Keystream, records: int) -> np.ndarray:
    words = np.zeros(records, dtype=np.uint32)
    words[: records // 2 * 2] = stream.words(max(1, records // 2)).view("<u4")[: records // 2 * 2]
    return words


class _LastAlways(_OtherSamples):
    def _choose(self, shard: Shard, chosen: np.ndarray) -> np.ndarray:
        address = f"{self._question.phase}.{self._question.round}.{self._asked}"
        key = self._runs[self._question.run].key
        words = _words(Keystream(derive(key, address, self._question.digest, "sample")), len(shard.y))
        if shard.event.sampling == "poisson":
            return np.flatnonzero(words < shard.event.rate * 2.0**32)
        return np.sort(np.argsort(words, kind="stable")[: int(shard.count)])


def last_of_odd_records_always_sampled(name: str, records: Records, keys: Keys, ledger: Ledger) -> PrivateSilo:
    """A word of 64 bits makes two coins of 32; an odd number of records leaves the last coin at zero.

    That coin always shows heads.
    The record at the last place of the split is in every sample, and its answers are charged as if by chance. With 20
    rounds at rate 4/41, mu is 5.0 and epsilon 33 for that place. Epsilon is 8.2 for a record whose place in the secret
    split is unknown. All other places are sampled correctly (of fixed-size samples, one less). Shows in plans that
    sample, Poisson or fixed-size, where the shard has an odd number of records.
    """
    return _LastAlways(name, records, keys, ledger)


class _OneSamplePerTurn(_OtherSamples):
    _first: np.ndarray

    def _choose(self, shard: Shard, chosen: np.ndarray) -> np.ndarray:
        if self._asked == 1:
            self._first = chosen
        return self._first


def one_sample_for_all_local_steps(name: str, records: Records, keys: Keys, ledger: Ledger) -> PrivateSilo:
    """The K local steps of a round share the sample of the first: rounds differ, the steps of one do not.

    Charged: K samples by coins of their own. Answered: a record is in all K steps or in none. The mean of the steps is
    a sampled Gaussian mechanism with sqrt(K) times less noise. For 3 rounds of 20 steps at rate 0.1 the exact curve of
    that pair gives epsilon 11.3 where 2 is charged. The loss is rare: about 1 in 10 rounds has the record at all. Shows
    only with local steps (K > 1) on samples; the more, the more steps and the fewer rounds.
    """
    return _OneSamplePerTurn(name, records, keys, ledger)


FOREIGN: dict[str, Opener] = {
    opener.__name__: opener
    for opener in (
        noise_repeated_over_halves,
        clips_by_bounds_of_other_records,
        scales_by_longest_record,
        samples_without_run_key,
        pieces_all_start_at_zero,
        noise_shared_by_phases,
        last_of_odd_records_always_sampled,
        one_sample_for_all_local_steps,
    )
}

FIVE: tuple[str, ...] = (
    "noise_repeated_over_halves",
    "clips_by_bounds_of_other_records",
    "scales_by_longest_record",
    "samples_without_run_key",
    "pieces_all_start_at_zero",
)
"""Bugs that an audit must find."""

_ALL = frozenset({"full", "blocks", "poisson", "local", "phases"})

SHOWS: dict[str, frozenset[str]] = {
    "noise_repeated_over_halves": _ALL,
    "clips_by_bounds_of_other_records": _ALL,
    "scales_by_longest_record": _ALL,
    "samples_without_run_key": frozenset({"poisson", "local"}),
    "pieces_all_start_at_zero": frozenset({"blocks", "phases"}),
    "noise_shared_by_phases": frozenset({"phases"}),
    "last_of_odd_records_always_sampled": frozenset({"poisson", "local"}),
    "one_sample_for_all_local_steps": frozenset({"local"}),
}
"""Kinds of plans in which each bug shows."""

Setup = tuple[str, dict[str, Any], int, int]

PLANS: dict[str, Setup] = {
    "noise_repeated_over_halves": ("mbsgd", {"rounds": 6}, 40, 16),
    "clips_by_bounds_of_other_records": ("mbsgd", {"rounds": 6}, 40, 16),
    "scales_by_longest_record": ("mbsgd", {"rounds": 6}, 100, 16),
    "samples_without_run_key": ("mbsgd", {"rounds": 20, "batch": 4}, 41, 16),
    "pieces_all_start_at_zero": ("one-pass-mbsgd", {"rounds": 100}, 400, 16),
    "noise_shared_by_phases": ("localized-mbsgd", {"rounds": (5, 3, 2), "lam": 0.1, "max_phases": 3}, 40, 16),
    "last_of_odd_records_always_sampled": ("mbsgd", {"rounds": 20, "batch": 4}, 41, 16),
    "one_sample_for_all_local_steps": (
        "fedavg",
        {"rounds": 3, "local_steps": 20, "sampling_rate": 0.1, "step": 1e-3},
        40,
        16,
    ),
}
"""Plan in which each bug is active: name of the method, hyperparameters, records, dimension."""
