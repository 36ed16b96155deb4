"""A site with one silo, in this process, and the texts of its refusals."""

from __future__ import annotations

import traceback

import numpy as np
import pytest

from fedcore.accounting.calibration import Budget
from fedcore.algorithms import METHODS, Mbsgd
from fedcore.data.records import Records
from fedcore.errors import SiloError
from fedcore.ledger.sqlite import SqliteLedger
from fedcore.losses import Squared
from fedcore.mechanisms.grid import Grid
from fedcore.messages import Query, Releases
from fedcore.planning.problem import SiloFacts
from fedcore.silo.agreement import Agreement
from fedcore.silo.keys import SecretKeys
from fedcore.silo.private_silo import PrivateSilo
from fedcore.silo.site import Site
from tests.problems import problem_of
from tests.wire import on_the_wire

KINDS = ["seeded", "guarded"]


class One:
    """A site with one silo, ash, over (X, y); `key` is fixed, so guarded noise repeats from test to test."""

    def __init__(
        self,
        folder,
        kind,
        X,
        y,
        *,
        method=None,
        loss=None,
        clip=1.0,
        epsilon=1.0,
        cap=None,
        run="run",
        approve=True,
        key=b"k" * 32,
    ) -> None:
        self.guarded = kind == "guarded"
        self.run, self.method = run, method or Mbsgd(rounds=5, step=0.5)
        mechanism = "discrete-gaussian" if self.guarded else "gaussian"
        X, y = np.asarray(X, float), np.asarray(y, float)
        self.problem = problem_of(
            silos=(SiloFacts("ash", len(y)),),
            dim=X.shape[1],
            clip=clip,
            smoothness=1.0,
            diameter=10.0,
            participants=1,
            budget=Budget(epsilon, 1e-5, mechanism=mechanism),
        )
        self.plan = self.method.plan(self.problem)
        self.ledger = SqliteLedger("ash", folder / "ash.sqlite", folder / "ash.anchor")
        self.silo = PrivateSilo("ash", Records(X, y), SecretKeys(key), self.ledger, cap, self.guarded)
        self.site = Site([self.silo])
        self.agreement = Agreement(run, self.problem, self.method, loss or Squared(), self.plan.digest)
        try:
            if approve and type(self.method) is METHODS.get(self.method.name):
                self.site.approve(self.agreement.to_bytes())
            elif approve:  # a method of a test's own is installed at no silo, so it cannot be named to one
                self.site.agree(self.agreement)
        except SiloError:
            self.close()
            raise

    def query(self, w, round=1, **changes) -> Query:
        arrays = changes.pop("arrays", {"w": np.asarray(w, float)})
        return Query(self.run, self.plan.digest, 1, round, ("ash",), arrays, **changes)

    def ask(self, w, round=1) -> np.ndarray:
        (release,) = Releases.from_bytes(self.answer(self.query(w, round)), self.problem.objective.dim)
        return release.payload

    def answer(self, query: Query) -> bytes:
        return self.site.answer(on_the_wire(query))

    def grid(self) -> Grid:
        share = self.plan.phases[0].by_silo["ash"]
        return Grid.of(share.sigma * share.batch, self.problem.objective.clip, share.batch, self.problem.objective.dim)

    def close(self) -> None:
        self.site.close()


def records(n=20, d=4, seed=1):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((n, d)), rng.standard_normal(n)


def refusal(ask, *arguments) -> SiloError:
    with pytest.raises(SiloError) as caught:
        ask(*arguments)
    return caught.value


def whole(made: One):
    run = made.silo._runs["run"]
    return run.X, run.y, run.answers["gradient"].bounds


def error_text(error: BaseException, asker: str) -> str:
    """Everything that an error contains: its chain, and the variables of each frame that a debugger would print."""
    found, seen, queue = [], set(), [error]
    while queue:
        each = queue.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        found += [repr(each), str(each), repr(each.__dict__), repr(getattr(each, "__notes__", ""))]
        queue += [each.__cause__, each.__context__]
        for frame, _ in traceback.walk_tb(each.__traceback__):
            if frame.f_code.co_filename != asker:
                found += [f"{name} = {value!r}" for name, value in frame.f_locals.items()]
    return "\n".join(found)
