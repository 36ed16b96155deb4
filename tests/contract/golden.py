"""Golden bits in `golden-bits.json`: results of every method, mechanism and draw in small runs.

    python -m tests.contract.golden

writes the file anew, once ARITHMETIC or FORMAT of `fedcore/experiment/stored/binding.py` is raised for the change; new
methods and losses need no raise. Stopped runs are bound to these versions. If a bit changed under the same version, a
run could continue to a result that no version computes.

Other processors round sums and exponentials otherwise, and guarded noise is keyed by exact sums. Bits are therefore
compared only where results are exact everywhere. These are draws at given addresses, and a run's first answers about
records and models whose sums are dyadic numbers. Whole courses of simulated silos, whose draws depend on addresses
alone, are compared as numbers, to `CLOSE`; a changed formula moves them by more.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from fedcore.accounting.calibration import Budget
from fedcore.algorithms import ALGORITHMS, METHODS
from fedcore.algorithms.statistics.evaluated import evaluated
from fedcore.arrays import pack
from fedcore.data.records import Records
from fedcore.experiment.stored import binding
from fedcore.federation.in_process import InProcess
from fedcore.federation.rounds import RunContext, rounds
from fedcore.ledger.memory import MemoryLedger
from fedcore.losses import LOSSES, Absolute, Convolution, Hinge, Logistic, Moreau, Squared
from fedcore.mechanisms.gaussian import KeyedGaussian, SeededGaussian
from fedcore.mechanisms.grid import Grid, GridGaussian
from fedcore.mechanisms.secret_sample import fixed_size_sample, poisson_sample, sample_stream
from fedcore.messages import Receipt, packed_receipts
from fedcore.models import model_of
from fedcore.models.network import OneHiddenLayer
from fedcore.models.regression_network import RegressionNetwork
from fedcore.models.softmax import SoftmaxRegression
from fedcore.optim.random_mask import random_mask
from fedcore.planning.evaluation import Evaluation, guarded_held_out, held_out
from fedcore.planning.phases.restarts import drawn_place
from fedcore.planning.plan import Plan
from fedcore.planning.problem import Problem, SiloFacts
from fedcore.randomness import derive, driver_key, generator, participants, public_key, simulation_key
from fedcore.silo.agreement import Agreement
from fedcore.silo.keys import Keys, SecretKeys, SeededKeys
from fedcore.silo.private_silo import PrivateSilo
from fedcore.silo.site import Site
from fedcore.state import dump_state
from tasks import run_store
from tests.contract.methods import quick
from tests.problems import problem_of

FILE = Path(__file__).with_name("golden-bits.json")
COMMAND = "python -m tests.contract.golden"
CLOSE = 1e-7
"""Tolerance relative to a course's largest number; processors differ by about 1e-13."""
SILOS = {"ash": 16, "birch": 32, "cedar": 16}
PLAN = "9" * 64
"""Digest of every plan here: a plan's own numbers may differ in a last bit of a logarithm."""
_KEYS: dict[bool, Keys] = {True: SecretKeys(b"s" * 32), False: SeededKeys(5)}
"""Keys of guarded silos, and of simulated ones."""
SQUARED, SOFTMAX = Squared(), SoftmaxRegression(3)


@dataclass(frozen=True)
class Case:
    """One small run. `dyadic`: with records and labels whose sums are exact at the model 0."""

    method: Any
    loss: Any = SQUARED
    evaluation: Evaluation | None = None
    aggregator: bool = False
    participants: int = 3
    dim: int = 4

    def problem(self, guarded: bool = False, private: bool = True) -> Problem:
        statistic = not self.method.trains
        mechanism = "discrete-gaussian" if guarded else "gaussian"
        held = 4 if self.evaluation is not None else 0
        width = self.method.numbers if statistic else model_of(self.loss).weights(self.dim)
        return problem_of(
            silos=tuple(SiloFacts(name, n, held) for name, n in SILOS.items()),
            dim=width,
            clip=self.method.half_diameter if statistic else 8.0,
            smoothness=1.0,
            diameter=16.0,
            participants=self.participants,
            budget=Budget(None, 1e-5, "exact", mechanism, 2.0 if private else None),
            evaluation=self.evaluation,
            aggregator=self.aggregator,
        )

    def records(self, dyadic: bool) -> dict[str, Records]:
        """Rows no longer than 1: no gradient is clipped at the model 0, where clipping would round."""
        found, draws = {}, np.random.Generator(np.random.Philox(key=11))
        for name, n in SILOS.items():
            X = draws.integers(-7, 8, size=(n, self.dim)) / (16.0 if dyadic else 15.0)
            classes = self.loss.classes if hasattr(self.loss, "classes") else 2
            y = draws.integers(0, classes, size=n) * 1.0
            if classes == 2:
                y = 2.0 * y - 1.0 if not hasattr(self.loss, "classes") else y
            found[name] = Records(X, y, 1.0)
        return found

    def silos(self, dyadic: bool, guarded: bool = False) -> list[PrivateSilo]:
        return [
            PrivateSilo(name, records, _KEYS[guarded], MemoryLedger(name), guarded=guarded)
            for name, records in self.records(dyadic).items()
        ]

    def played(self, silos: list[PrivateSilo], problem: Problem) -> Iterator[tuple[Any, list[Any], Any]]:
        """Queries, releases and states, from the model 0; networks start with no unit on its corner."""
        method = evaluated(self.method, problem)
        plan = method.plan(problem)
        loss = self.loss if self.method.trains else None
        backend = InProcess(Site(silos), Agreement("golden", problem, self.method, loss, PLAN))
        backend._site.agree(backend._agreement)
        start = np.zeros(problem.objective.dim)
        if isinstance(self.loss, OneHiddenLayer | RegressionNetwork):
            start = 0.4 * np.random.Generator(np.random.Philox(key=12)).standard_normal(problem.objective.dim)
        context = RunContext("golden", plan, method, driver_key(5, 0, "golden"))
        yield from rounds(context, context.method.init(start), backend.ask)


def cases() -> dict[str, Case]:
    """Every registered method, and one run for each other choice: losses, models, evaluation, aggregator."""
    found = {name: Case(quick(name)) for name in ALGORITHMS}
    # The choice of the drawn point depends on the last bits of a question.
    found["diff2-bvr"] = Case(replace(quick("diff2-bvr"), model="last"))
    found |= {f"{name} of samples": Case(replace(quick(name), batch=3)) for name in ("mbsgd", "localized-mbsgd")}
    found |= {
        "column-moments": Case(METHODS["column-moments"](4)),
        "second-moments": Case(METHODS["second-moments"](4, 1.0)),
        "largest-eigenvalue": Case(METHODS["largest-eigenvalue"](1.0)),
        "two silos a round": Case(quick("mbsgd"), participants=2),
        "a trusted aggregator": Case(quick("mbsgd"), aggregator=True),
        "held-out records": Case(quick("mbsgd"), Logistic(), Evaluation(1.0, "phase", 2, 4)),
        "softmax": Case(quick("mbsgd"), SOFTMAX),
        "a network": Case(quick("mbsgd"), OneHiddenLayer(3, 2, "softplus")),
        "a network of relu": Case(quick("diff2"), OneHiddenLayer(2, 2)),
        "a network of numbers": Case(quick("mbsgd"), RegressionNetwork(2, "softplus")),
    }
    unknown = METHODS.keys() - {case.method.name for case in found.values()}
    if unknown:
        raise RuntimeError(f"no golden run of {', '.join(sorted(unknown))}: add one to `cases` of {__file__}")
    return found


def first_answers(case: Case, guarded: bool) -> str:
    """SHA-256 (hex) of the releases of the first round, and of its question and addresses."""
    problem, total = case.problem(guarded), hashlib.sha256()
    query, releases, _ = next(case.played(case.silos(True, guarded), problem))
    total.update(query.to_bytes())
    for release in releases:
        total.update(release.payload.tobytes())
    return total.hexdigest()


def course(case: Case) -> list[float]:
    """The last model, or the released statistics, to 12 digits, of simulated silos."""
    problem = case.problem()
    for _, _, state in case.played(case.silos(False), problem):  # noqa: B007
        pass
    if not case.method.trains:
        return rounded(dump_state(state)["moments"])
    return rounded(evaluated(case.method, problem).output(state))


def rounded(values: Any) -> list[float]:
    return [float(f"{value:.12g}") for value in np.ravel(values)]


def is_exact(case: Case) -> bool:
    """True if the first answer is the only one of its round, about the model 0 or a statistic.

    A second answer is about a rounded model. Softmax and networks take exponentials, and eigenvalues are found by
    steps.
    """
    if not isinstance(case.loss, Squared | Logistic) or case.method.name == "largest-eigenvalue":
        return False
    return evaluated(case.method, case.problem()).plan(case.problem()).phases[0].at(1).schedule.answers == 1


def one_step(case: Case) -> Case:
    """The case with one local step, where that is allowed, so that a round's first answer is its only one."""
    try:
        return replace(case, method=replace(case.method, local_steps=1))
    except (TypeError, ValueError):  # the method has no local steps, or at least two
        return case


def draws() -> dict[str, str]:
    """Bits of draws at the addresses given here."""
    key, context, total = b"r" * 32, b"an address", np.array([0.5, -0.25, 8.0, 0.0, -1.0])
    grid = Grid.of(3.0, 1.0, 64, 5)
    stream = sample_stream(key, context)
    mask = random_mask(3, "ash", 1, 2, 12, 5)
    return {
        "derived keys": derive(key, "ash", 7, b"bytes").hex(),
        "keys of simulated silos": simulation_key(3, 1, "ash", "mbsgd").hex(),
        "keys of public draws": public_key(3).hex(),
        "keys of drivers": driver_key(3, 1, "mbsgd").hex(),
        "silos of a round": " ".join(participants(tuple("abcdefgh"), 3, public_key(3), 1, 2)),
        "generators": generator(key, "ash", 1).standard_normal(4).tobytes().hex(),
        "seeded noise": SeededGaussian().draw(key, context, total).tobytes().hex(),
        "noise keyed by sums": KeyedGaussian().draw(key, context, total).tobytes().hex(),
        "guarded noise": GridGaussian().noised(key, context, total, grid).tobytes().hex(),
        "Poisson samples": str(poisson_sample(stream, 0.3, 40).tolist()),
        "samples of fixed size": str(fixed_size_sample(stream, 7, 40).tolist()),
        "guarded held-out records": str(guarded_held_out("ash", 20, 4).tolist()),
        "guarded splits": str(_KEYS[True].order(key, "ash", 20, 4).tolist()),
        "seeded samples": str(poisson_sample(_KEYS[False].sample_stream(key, context), 0.3, 40).tolist()),
        "seeded held-out records": str(held_out("ash", 20, 4).tolist()),
        "seeded splits": str(_KEYS[False].order(key, "ash", 20, 4).tolist()),
        "random masks": np.asarray(mask).tobytes().hex(),
        "drawn models": str([drawn_place(seed, 1000) for seed in range(5)]),
    }


def formulas() -> dict[str, list[float]]:
    """Values and derivatives of losses at four scores."""
    z = np.array([-2.0, -0.4, 0.3, 1.6])
    kinds = [loss() for loss in LOSSES.values()]
    kinds += [Moreau(loss=Hinge(), weight=0.8), Convolution(loss=Absolute(), reach=0.8, dim=4)]
    found = {}
    for loss in kinds:
        name = type(loss).__name__ + (f" of {type(loss.loss).__name__}" if hasattr(loss, "loss") else "")
        y = np.tile(loss.labels.pair[::-1], 2)
        found[name] = rounded([loss.value(z, y), loss.residual(z, y)])
    return found


def forms() -> dict[str, str]:
    """Digests of a checkpoint's form: tables, receipts, and by method its first state and question."""
    receipts = [Receipt("ash", 1, 2, b"q" * 32, b"p" * 32), Receipt("birch", 1, 2, b"r" * 32, b"s" * 32)]
    found = {
        "tables": hashlib.sha256(run_store._SCHEMA.encode()).hexdigest(),
        "receipts": hashlib.sha256(packed_receipts(receipts)).hexdigest(),
    }
    for name in ALGORITHMS:
        case = Case(quick(name))
        problem = case.problem()
        method = evaluated(case.method, problem)
        context = RunContext("golden", method.plan(problem), method, driver_key(5, 0, "golden"))
        state = method.init(np.zeros(problem.objective.dim))
        query = context.query(state)
        total = hashlib.sha256(pack(dump_state(state)))
        total.update(b"" if query is None else query.to_bytes())
        found[name] = total.hexdigest()
    return found


def computed() -> dict[str, Any]:
    """All golden values of the present code."""
    made = cases()
    with patch.object(Plan, "digest", property(lambda plan: PLAN)):
        seeded = {name: first_answers(one_step(case), False) for name, case in made.items() if is_exact(one_step(case))}
        guarded = {name: first_answers(one_step(made[name]), True) for name in seeded if not made[name].aggregator}
        courses = {name: course(case) for name, case in made.items()}
        written = forms()
    return {
        "arithmetic": binding.ARITHMETIC,
        "format": binding.FORMAT,
        "draws": draws(),
        "first answers": seeded,
        "first guarded answers": guarded,
        "courses": courses,
        "losses": formulas(),
        "forms": written,
    }


KINDS = {
    "draws": "arithmetic",
    "first answers": "arithmetic",
    "first guarded answers": "arithmetic",
    "courses": "arithmetic",
    "losses": "arithmetic",
    "forms": "format",
}
"""Version that binds each kind of golden values."""


def differences(golden: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yields (kind, name, binding version) of all values that changed or are gone; not of new ones."""
    for kind, version in KINDS.items():
        for name, value in golden[kind].items():
            if not _same(value, now[kind].get(name)):
                yield kind, name, version


def faults(golden: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Sentences about what a change still has to do; empty if golden values and versions are right."""
    found = []
    for version in ("arithmetic", "format"):
        changed = [f"{kind} of {name}" for kind, name, theirs in differences(golden, now) if theirs == version]
        raised = now[version] > golden[version]
        constant = f"{version.upper()} in fedcore/experiment/stored/binding.py"
        if now[version] < golden[version]:
            found.append(f"{constant} is {now[version]}, and was {golden[version]} before: it is only raised")
        elif changed and not raised:
            found.append(
                f"bits changed ({', '.join(changed)}): raise {constant}, then write the new ones by `{COMMAND}`. If "
                "they should be what they were, the change is a mistake"
            )
        elif raised:
            found.append(f"{constant} is {now[version]}, the golden bits are of {golden[version]}: `{COMMAND}`")
    new = [f"{kind} of {name}" for kind in KINDS for name in now[kind] if name not in golden[kind]]
    if new:
        found.append(f"no golden bits yet ({', '.join(new)}): `{COMMAND}`")
    return found


def rewritten(golden: Mapping[str, Any] | None, now: Mapping[str, Any]) -> dict[str, Any]:
    """The file's new content. Raises ValueError for a change under the same version."""
    for fault in [] if golden is None else faults(golden, now):
        if COMMAND not in fault or "bits changed" in fault:
            raise ValueError(fault)
    return dict(now)


def _same(golden: Any, now: Any) -> bool:
    if not isinstance(golden, list) or not isinstance(now, list):
        return bool(golden == now)
    if len(golden) != len(now):
        return False
    return bool(np.allclose(now, golden, rtol=0.0, atol=CLOSE * max(map(abs, golden), default=1.0)))


def main(compute: Callable[[], dict[str, Any]] = computed, file: Path = FILE) -> int:
    golden = json.loads(file.read_text()) if file.exists() else None
    try:
        made = rewritten(golden, compute())
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    file.write_text(json.dumps(made, indent=1, sort_keys=True) + "\n")
    print(f"{file}: golden bits of arithmetic {made['arithmetic']}, format {made['format']}")
    return 0


if __name__ == "__main__":
    sys.exit(f"usage: {COMMAND}, without arguments" if sys.argv[1:] else main())
