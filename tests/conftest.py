"""Settings and fixtures that all tests share: one BLAS thread, hypothesis without a clock, a federation from arrays."""

import gc
import itertools
import os
import platform
import signal

# A shell's background job ignores SIGINT, and so would every child that a test interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# Before numpy is imported.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# A Prefect server waits for its home's next driver, and every test has its own home: 3 s bound the idle servers.
os.environ.setdefault("FEDCORE_SERVER_IDLE", "3")
# Noise is keyed by the last bits of sums, which depend on the processor's instructions. With instructions that all
# processors have, a statistical test with a fixed seed has the same draw everywhere. FEDCORE_TEST_CPU=native uses this
# processor's own.
if platform.machine() == "x86_64" and os.environ.get("FEDCORE_TEST_CPU") != "native":
    os.environ.setdefault("OPENBLAS_CORETYPE", "Haswell")
    os.environ.setdefault("NPY_DISABLE_CPU_FEATURES", "X86_V4 AVX512_ICL AVX512_SPR")

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings

from fedcore.accounting.calibration import Budget
from fedcore.algorithms import METHODS, Method
from fedcore.algorithms.statistics.evaluated import evaluated
from fedcore.data.records import Records
from fedcore.federation.in_process import InProcess
from fedcore.federation.rounds import RunContext, rounds
from fedcore.ledger import file_lock
from fedcore.ledger.memory import MemoryLedger
from fedcore.losses import Squared
from fedcore.messages import Query, Releases
from fedcore.models import Objective, model_of
from fedcore.planning.evaluation import Evaluation
from fedcore.planning.plan import Plan
from fedcore.planning.problem import SiloFacts
from fedcore.randomness import driver_key
from fedcore.silo.agreement import OBJECTIVES, Agreement
from fedcore.silo.keys import SeededKeys
from fedcore.silo.private_silo import PrivateSilo
from fedcore.silo.site import Site
from fedcore.state import State
from tests.policies import write_policy
from tests.problems import problem_of

settings.register_profile("fedcore", deadline=None, derandomize=True, max_examples=60)
settings.load_profile("fedcore")
gc.disable()  # until all tests are collected: a million objects live to the end, and each look at them finds none


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with tests that start services first, or one process would be at them long after the other has ended."""
    first = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in first)


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A ledger that another holds is not waited for."""
    monkeypatch.setattr(file_lock, "PATIENCE", 0.05)


@dataclass
class Federation:
    """Silos made from arrays, and all that a plain loop over rounds needs."""

    context: RunContext
    agreement: Agreement
    silos: dict[str, PrivateSilo]
    sites: list[InProcess]

    @property
    def plan(self) -> Plan:
        return self.context.plan

    @property
    def start(self) -> State:
        return self.context.method.init(np.zeros(self.plan.problem.objective.dim))

    def ask(self, query: Query) -> Releases:
        """The participants' releases, gathered over the sites and put into the query's order."""
        return Releases.joined(query, [site.ask(query.at(site.silos)) for site in self.sites])

    def play(self, state: State | None = None) -> Iterator[tuple[Query, Releases, State]]:
        return rounds(self.context, self.start if state is None else state, self.ask)

    def final(self, state: State | None = None) -> np.ndarray:
        last = self.start if state is None else state
        for _, _, last in self.play(state):  # noqa: B007
            pass
        return self.context.method.output(last)

    def queries(self) -> list[Query]:
        """The queries of a run, recorded while it is played."""
        return [query for query, _, _ in self.play()]


def build(
    method: Method,
    data: Mapping[str, tuple[np.ndarray, np.ndarray]],
    *,
    epsilon: float | None = 1.0,
    delta: float | None = 1e-5,
    calibration: str = "exact",
    loss: Objective | None = None,
    clip: float = 1.0,
    smoothness: float = 1.0,
    diameter: float = 10.0,
    ridge: float = 0.0,
    weights: tuple[float, ...] | None = None,
    participants: int | None = None,
    seed: int = 0,
    run: str = "run",
    sites: int = 1,
    ledger=MemoryLedger,
    key=None,
    approve: bool = True,
    held: int = 0,
    evaluation: Evaluation | None = None,
    aggregator: bool = False,
) -> Federation:
    """A federation in this process: `data` maps a silo's name to its (X, y). `held`: records that each holds out."""
    records = {name: Records(np.array(X, float), np.array(y, float)) for name, (X, y) in data.items()}
    problem = problem_of(
        silos=tuple(SiloFacts(name, r.n, held) for name, r in records.items()),
        dim=model_of(loss or Squared()).weights(next(iter(records.values())).dim),
        clip=clip,
        smoothness=smoothness,
        diameter=diameter,
        participants=len(records) if participants is None else participants,
        budget=Budget(epsilon, delta, calibration),
        ridge=ridge,
        weights=weights,
        evaluation=evaluation,
        aggregator=aggregator,
    )
    asking = evaluated(method, problem)
    plan = asking.plan(problem)
    key = key or (lambda name: SeededKeys(seed))
    silos = {name: PrivateSilo(name, r, key(name), ledger(name)) for name, r in records.items()}
    agreement = Agreement(run, problem, method, loss or Squared(), plan.digest)
    groups = [list(silos.values())[i::sites] for i in range(sites)]
    backends = [InProcess(Site(group), agreement) for group in groups]
    if approve:
        for backend in backends:
            if type(method) is METHODS.get(method.name) and type(agreement.loss) in OBJECTIVES.values():
                backend.open()
            else:  # a method or loss of a test's own is installed at no silo, so it cannot be named to one
                backend._site.agree(agreement)
    return Federation(RunContext(run, plan, asking, driver_key(seed, 0, method.name)), agreement, silos, backends)


@pytest.fixture(scope="session", autouse=True)
def no_policies(tmp_path_factory) -> Iterator[Path]:
    """Silos that are opened in tests have no policy, whatever the home of whoever runs them holds."""
    folder = tmp_path_factory.mktemp("no-policies")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDCORE_POLICIES", str(folder))
        yield folder


@pytest.fixture(scope="session", autouse=True)
def no_register(tmp_path_factory) -> Iterator[Path]:
    """No test meets the register of whoever runs them; fixtures that are shared register their silos here."""
    folder = tmp_path_factory.mktemp("register")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDCORE_REGISTER", str(folder))
        yield folder


@pytest.fixture(scope="session")
def registers(tmp_path_factory) -> Iterator[Path]:
    """New empty folders, numbered: pytest's own look at the names of all before, thousands by the end."""
    folder = tmp_path_factory.mktemp("registers")

    def made() -> Iterator[Path]:
        for number in itertools.count():
            (folder / str(number)).mkdir()
            yield folder / str(number)

    return made()


@pytest.fixture(autouse=True)
def register_folder(registers, monkeypatch) -> Path:
    """The folder of the register for the time of a test: empty, as silos of tests have one name and many data."""
    folder = next(registers)
    monkeypatch.setenv("FEDCORE_REGISTER", str(folder))
    return folder


@pytest.fixture
def policies(tmp_path, monkeypatch) -> Path:
    """The folder of policies for the time of a test: one for all silos, which allows whatever tests ask for."""
    folder = tmp_path / "policies"
    write_policy(folder)
    monkeypatch.setenv("FEDCORE_POLICIES", str(folder))
    return folder


@pytest.fixture
def federate():
    """The builder of federations from arrays (`build` above)."""
    return build


@pytest.fixture
def toy():
    """Three silos of unequal sizes, d = 4, labels from a linear model with noise that differs by silo."""
    rng = np.random.default_rng(7)
    data = {}
    for number, (name, n) in enumerate({"ash": 16, "birch": 21, "cedar": 19}.items()):
        X = rng.standard_normal((n, 4))
        data[name] = (X, X @ np.array([1.0, -2.0, 0.5, number]) + 0.3 * rng.standard_normal(n))
    return data
