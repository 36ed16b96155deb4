"""A site under attack: valid agreements of all methods and objectives, and one entry point that checks every output."""

from __future__ import annotations

import hashlib
import json
import resource
import signal
import time
from collections import Counter
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from fedcore.accounting.calibration import Budget
from fedcore.algorithms import (
    AcceleratedMbsgd,
    ColumnMoments,
    Diff2,
    Diff2Bvr,
    DpFcrn,
    Fedavg,
    Fedprox,
    Fedsgd,
    LargestEigenvalue,
    LocalizedAccelerated,
    LocalizedMbsgd,
    LocalizedSubgradient,
    Mbsgd,
    MbSubgradient,
    NoisedNewton,
    OnePassAcceleratedMbsgd,
    OnePassMbsgd,
    Scaffold,
    SecondMoments,
)
from fedcore.arrays import canonical_json, unpack
from fedcore.data.records import Records
from fedcore.errors import SiloError
from fedcore.ledger.memory import MemoryLedger
from fedcore.ledger.sqlite import SqliteLedger
from fedcore.losses import Absolute, Convolution, DrawnConvolution, Hinge, Huber, Logistic, Moreau, Quantile, Squared
from fedcore.losses.poisson import Poisson
from fedcore.messages import Query, receipts_of
from fedcore.models import OneHiddenLayer, RegressionNetwork, SoftmaxRegression
from fedcore.planning.participation import Binomial
from fedcore.planning.plan import Plan
from fedcore.planning.problem import SiloFacts
from fedcore.planning.sensitivity.moments import half_diameter
from fedcore.silo.agreement import Agreement
from fedcore.silo.keys import SecretKeys
from fedcore.silo.private_silo import PrivateSilo
from fedcore.silo.question import Forms, forms_of
from fedcore.silo.site import Site
from tests.faults.mutations import rescaled
from tests.faults.release_oracle import Oracle
from tests.problems import problem_of

SIZES = {"ash": 24, "birch": 32, "elm": 24}
HERE = ("ash", "birch")
FEATURES = 3
KINDS = [(False, "memory"), (False, "sqlite"), (True, "sqlite"), (True, "memory")]
"""Guarded or not, and the form of the ledgers."""

# method, objective, weights, changes of the problem
SOUND: list[tuple[Any, Any, int, dict[str, Any]]] = [
    (Mbsgd(rounds=5), Logistic(), 3, {}),
    (Mbsgd(rounds=4, batch=8), Squared(), 3, {"clip": 2.0}),
    (Mbsgd(rounds=3), Poisson(), 3, {"clip": 2.0}),
    (Mbsgd(rounds=6), OneHiddenLayer(3, 2), 15, {"smoothness": np.inf, "clip": 0.5}),
    (OnePassMbsgd(rounds=4), Huber(width=0.5), 3, {"participants": 2}),
    (LocalizedMbsgd(rounds=3, max_phases=2), SoftmaxRegression(3), 9, {"ridge": 0.01}),
    (LocalizedMbsgd(rounds=(3, 2), batch=4, max_phases=3), Logistic(), 3, {}),
    (LocalizedAccelerated(rounds=4, lam=0.5, max_phases=2), Moreau(Hinge(), 1.5), 3, {"smoothness": 1.5}),
    (LocalizedSubgradient(rounds=3, max_phases=2), Hinge(), 3, {"smoothness": np.inf}),
    (MbSubgradient(rounds=4, lam=0.1), Absolute(), 3, {"smoothness": np.inf}),
    (MbSubgradient(rounds=3), Quantile(tau=0.3), 3, {"smoothness": np.inf, "ridge": 0.5}),
    (Mbsgd(rounds=4), Convolution(Absolute(), 0.3, 3), 3, {"smoothness": 2.0}),
    (Mbsgd(rounds=4), DrawnConvolution(Hinge(), 0.3, 2.0, 3), 3, {"smoothness": 2.0, "drawn_points": True}),
    (Scaffold(rounds=9, local_steps=2, sampling_rate=0.25, step=0.1, warm=True), Logistic(), 3, {"participants": 2}),
    (Scaffold(rounds=4, local_steps=2, sampling_rate=1.0, step=0.1), SoftmaxRegression(2), 6, {}),
    (Fedavg(rounds=4, local_steps=3, sampling_rate=0.25, step=0.1), Logistic(), 3, {"ridge": 0.1}),
    (Fedprox(rounds=4, local_steps=2, sampling_rate=0.5, step=0.1), Huber(), 3, {}),
    (Fedsgd(rounds=4, sampling_rate=0.5, step=0.1), OneHiddenLayer(2, 2), 12, {"smoothness": np.inf}),
    (SecondMoments(3, 1.5), None, 9, {"clip": half_diameter(1.5), "smoothness": np.inf, "diameter": np.inf}),
    (LargestEigenvalue(1.5), None, 1, {"clip": 1.125, "smoothness": np.inf, "diameter": np.inf}),
    (ColumnMoments(3), None, 6, {"clip": ColumnMoments(3).half_diameter, "smoothness": np.inf, "diameter": np.inf}),
    (Mbsgd(rounds=4), Logistic(), 3, {"participants": (1, 3), "weights": (0.5, 1.0, 1.5)}),
    (Fedavg(rounds=4, local_steps=2, sampling_rate=0.25, step=0.1), Logistic(), 3, {"participants": Binomial(0.5)}),
    (AcceleratedMbsgd(rounds=5, stage_scale=0.1), Logistic(), 3, {"ridge": 0.1}),
    (OnePassAcceleratedMbsgd(rounds=4, lam=0.2), SoftmaxRegression(2), 6, {"participants": 2}),
    (Mbsgd(rounds=None, step="theory", average="theory"), Logistic(), 3, {"smoothness": 0.25, "ridge": 0.3}),
    (Diff2(rounds=6, period=3), Logistic(), 3, {}),
    (Diff2Bvr(rounds=4, period=2, local_steps=3, batch=8), SoftmaxRegression(3), 9, {"ridge": 0.1}),
    (Mbsgd(rounds=4), OneHiddenLayer(2, 2, "softplus"), 12, {"smoothness": np.inf, "clip": 0.5}),
    (Mbsgd(rounds=4), RegressionNetwork(2, "softplus", Huber(width=0.5)), 9, {"smoothness": np.inf, "clip": 0.5}),
    (NoisedNewton(rounds=5, period=2, balance=1.7), Logistic(), 3, {"smoothness": 0.25, "ridge": 0.1}),
    (DpFcrn(rounds=4, local_steps=3, kept=0.6), Logistic(), 3, {"smoothness": 0.25}),
    (DpFcrn(rounds=3, local_steps=3, average="shifted", sampling="record"), Squared(), 3, {"participants": 2}),
]
NONE = {0, 4, 12}
"""Places in SOUND of runs that seeded silos are asked for without noise besides."""


@cache
def sound(place: int, guarded: bool) -> tuple[Agreement, Plan]:
    """The agreement of this place in SOUND, of run `sound-<place>`, and its plan."""
    method, loss, dim, changes = SOUND[place]
    mechanism = "discrete-gaussian" if guarded else "gaussian"
    values = {"clip": 1.0, "smoothness": 1.0, "diameter": 6.0, "participants": 3} | changes
    problem = problem_of(
        tuple(SiloFacts(name, n) for name, n in SIZES.items()),
        dim=dim,
        budget=Budget(1.0 + place / 100, 1e-4, mechanism=mechanism),
        **values,
    )
    plan = method.plan(problem)
    return Agreement(f"sound-{place}", problem, method, loss, plan.digest), plan


@cache
def forms(place: int, guarded: bool) -> Forms:
    agreement, plan = sound(place, guarded)
    return forms_of(agreement.method, plan)


class TooLong(BaseException):
    """Raised by the clock, past everything that takes errors for answers."""


@contextmanager
def limited(seconds: int):
    """Raises TooLong in this thread after so many seconds of computing, or ten times as many by the clock.

    Others that compute on this machine, or write to its disk, do not count.
    """

    def late(*_: Any) -> None:
        raise TooLong(f"no end within {seconds} s")

    before = [(number, signal.signal(number, late)) for number in (signal.SIGPROF, signal.SIGALRM)]
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.alarm(10 * seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.alarm(0)
        for number, handler in before:
            signal.signal(number, handler)


class Attacked:
    """A site of two silos under a watch; `tally` counts over all sites what was sent and what came of it."""

    def __init__(self, folder: Path, guarded: bool, ledger: str, tally: Counter[str], seconds: int = 60) -> None:
        self._folder, self.guarded, self._ledger, self.tally = folder, guarded, ledger, tally
        self.seconds = seconds
        self.oracle = Oracle()
        self.agreements: dict[str, bytes] = {}
        self.sent: list[bytes] = [b"[]"]
        self._opened = 0
        self.open()

    def open(self) -> None:
        """Opens the site; a guarded one has new keys each time, like random ones."""
        self._opened += 1
        self.ledgers: dict[str, Any] = {}
        silos = []
        for number, name in enumerate(HERE):
            rng = np.random.default_rng(number)
            records = Records(rng.standard_normal((SIZES[name], FEATURES)), rng.choice([-1.0, 0.0, 1.0], SIZES[name]))
            ledger: Any = MemoryLedger(name)
            if self._ledger == "sqlite":
                ledger = SqliteLedger(name, self._folder / f"{name}.sqlite", self._folder / f"{name}.anchor")
            self.ledgers[name] = ledger
            key = (b"%d" % (self._opened if self.guarded else 0)).ljust(32, b"k")
            silos.append(PrivateSilo(name, records, SecretKeys(key), ledger, guarded=self.guarded))
        self.site = Site(silos)
        self.control = 0
        self.forgotten: set[str] = set()

    def restart(self) -> None:
        """Closes and opens the site, repeats all approvals, and restores the releases of ledgers in memory."""
        self.site.close()
        self.open()
        for run, agreement in self.agreements.items():
            self.site.approve(agreement)
            mine = {key: value for key, value in self.oracle.left.items() if key[1] == run}
            head = [[silo, phase, round] for silo, _, phase, round in mine]
            digests = b"".join(asked + hashlib.sha256(payload).digest() for asked, payload in mine.values())
            self.site.restore(run, json.dumps(head).encode() + b"\n" + digests)
        if self._ledger == "memory":
            self.oracle.closed.clear()  # a ledger in memory loses the closing; only the driver's checkpoint has it

    def send(self, what: str, act: Any, *arguments: Any) -> Any:
        """The site's answer to an arrival; None if it refused, with a public sentence."""
        self.tally["sent"] += 1
        self.tally[f"sent: {what}"] += 1
        data = arguments[-1] if arguments else None
        if type(data) is bytes:
            self.sent[:] = [*self.sent[-30:], data]
        past = decoded(what, data)
        self.tally["decoded"] += past
        memory, began = peak(), time.process_time()
        refusal: BaseException | None = None
        result = None
        try:
            with limited(self.seconds):
                result = act(*arguments)
        except Exception as error:
            refusal = error
        took = time.process_time() - began
        grown = peak() - memory
        self.tally["slowest, ms"] = max(self.tally["slowest, ms"], int(1000 * took))
        assert what == "agreement" or took < 5, f"{took:.1f} s for a {what}"
        # The PLD accountant for subsampled Gaussians may take memory that depends on the plan only.
        assert grown < (900 if what == "agreement" else 100), f"{grown} MB for a {what}"
        if refusal is not None:
            check_refusal(refusal, what)
            self.tally[f"{what}: {refusal.code}: {refusal.sentence}"] += 1
            self.tally["refused"] += 1
            return None
        self.tally["accepted"] += 1
        return result

    def approve(self, agreement: bytes) -> bool:
        """True if the site approved the agreement."""
        if self.send("agreement", self.site.approve, agreement) is None:
            return False
        rebuilt = Agreement.from_bytes(agreement)
        run = self.oracle.approved(agreement, rebuilt.method.plan(rebuilt.problem).as_json())
        self.agreements[run] = agreement
        self.forgotten.discard(run)
        return True

    def ask(self, query: bytes) -> int:
        """The checked releases in the site's answer to this query."""
        bundle = self.send("query", self.site.answer, query)
        if bundle is None:
            return -1
        found = self.oracle.answered(query, bundle, self.ledgers)
        self.tally["releases"] += found
        self.tally["queries with a release"] += found > 0
        return found

    def answers_still(self) -> None:
        """A valid query of a control run, after a refusal."""
        made, plan = control(self.guarded)
        run = f"control-{self._opened}"
        if not self.control:
            data = Agreement(run, made.problem, made.method, made.loss, plan.digest).to_bytes()
            self.site.approve(data)
            self.oracle.approved(data, plan.as_json())
            self.agreements[run] = data
        self.control += 1
        query = Query(run, plan.digest, 1, self.control, HERE, {"w": np.full(3, 0.1)}).to_bytes()
        assert self.oracle.answered(query, self.site.answer(query), self.ledgers) == 2

    def close(self) -> None:
        self.site.close()


@cache
def control(guarded: bool) -> tuple[Agreement, Plan]:
    method, problem = Mbsgd(rounds=10**5), sound(0, guarded)[0].problem
    plan = method.plan(problem)
    return Agreement("control", problem, method, Logistic(), plan.digest), plan


def sound_query(random: Random, place: int, guarded: bool, run: str | None = None) -> tuple[list[Any], dict, float]:
    """Head, arrays (a silo's own as name@silo) and the domain's radius of a sound question, at any address."""
    agreement, plan = sound(place, guarded)
    phase = random.choice(plan.phases)
    round = random.randint(1, phase.rounds)
    form = forms(place, guarded)[phase.index, phase.kind(round)]
    names = random.choice([["ash", "birch"], ["birch", "ash"], ["ash", "birch", "elm"], ["birch"], ["elm", "ash"]])
    radius = agreement.problem.objective.diameter / 2
    arrays = {}
    for name in form.common:
        w = np.array([random.gauss(0, 1) for _ in range(form.dim)])
        arrays[name] = w * random.random() * radius / np.linalg.norm(w)
    for name in form.own:
        for silo in names:
            if silo in HERE:
                arrays[f"{name}@{silo}"] = np.array([random.gauss(0, 1) for _ in range(form.dim)])
    head = [run or agreement.run, plan.digest, phase.index, round, names]
    return head, arrays, min(radius, 1e9)


def claimed(data: bytes) -> bytes:
    """The agreement with the digest of its own plan, which any writer can compute; unchanged if it has no plan."""
    try:
        found = Agreement.from_bytes(data)
        with limited(60):
            digest = found.method.plan(found.problem).digest
        return Agreement(found.run, found.problem, found.method, found.loss, digest).to_bytes()
    except Exception:
        return data


def varied(random: Random, place: int, guarded: bool, run: str) -> bytes:
    """A valid agreement with other numbers, many of which also make valid plans."""
    tree = json.loads(sound(place, guarded)[0].to_bytes())
    tree[0] = run
    return claimed(canonical_json(rescaled(random, tree)).encode())


READERS = {
    "query": Query.from_bytes,
    "agreement": Agreement.from_bytes,
    "receipts": receipts_of,
    "model": unpack,
    "run": lambda run: run.encode() if type(run) is str else int("none"),
}


def decoded(what: str, data: Any) -> bool:
    """True if the reader of its kind accepts the data."""
    try:
        READERS[what](data)
    except (ValueError, TypeError):
        return False
    return True


def peak() -> int:
    """The largest memory of this process so far, MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


CODES = {
    "plan",
    "query",
    "agreement",
    "receipts",
    "model",
    "size",
    "width",
    "noise",
    "replayed",
    "committed",
    "closed",
    "guarded",
    "open",
}
"""All refusal codes that an arrival may cause. `failed` is not among them: it marks an unforeseen error."""


def check_refusal(error: BaseException, what: str) -> None:
    """Raises AssertionError unless the error is a SiloError with a public sentence and no other content."""
    assert type(error) is SiloError, f"{type(error).__name__} for a {what}: {error!r}"
    assert error.__cause__ is None and error.__context__ is None, f"{error} carries {error.__context__!r}"
    assert error.silo in SIZES and error.code in CODES, f"{error.code}: {error}"
    assert error.sentence.isprintable() and 0 < len(error.sentence) <= 600
    assert error.args == (error.silo, error.code, error.sentence) and not getattr(error, "__notes__", None)
