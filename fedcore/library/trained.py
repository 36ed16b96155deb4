"""What a training in a script came to: typed values, the rounds as a table, and a plot of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fedcore.arrays import Vector
from fedcore.directed_rounding import shown_up
from fedcore.experiment.config import ExperimentConfig
from fedcore.planning.plan import Plan
from fedcore.printable import in_drawing
from fedcore.silo.account import SiloAccount

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Trained:
    """A finished training.

    `weights` (d,): the model, in the order of the features, the bias last. `rounds`: a row for each round (index
    `round` of the whole run; `phase`, `floats_up` and `floats_down` until then, `epsilon` until then, and where there
    are test records `test_loss` and `test_error`). `measures`: of the last model on test records, by the names of a
    run's result (test_error, test_auc, ..). `accounts`: what the ledger of each silo says.
    """

    config: ExperimentConfig = field(repr=False)
    plan: Plan = field(repr=False)
    weights: Vector = field(repr=False)
    rounds: pd.DataFrame = field(repr=False)
    measures: Mapping[str, Any] = field(repr=False)
    accounts: tuple[SiloAccount, ...] = field(repr=False)
    noise: str = field(repr=False)
    """What is said of its noise wherever the model is shown."""

    def __str__(self) -> str:
        silos, error = self.plan.problem.n_silos, self.test_error
        shown = "" if error is None else f"test error {error:.3f}, "
        level = "no privacy" if self.epsilon is None else (
            f"accounted epsilon {shown_up(self.epsilon)} at delta {shown_up(self.delta, 3)}"
        )  # fmt: skip
        name = self.config.algorithm.name
        return f"{name} on {silos} silos: {shown}{level}, {self.plan.rounds} rounds; {self.noise}"

    @property
    def epsilon(self) -> float | None:
        """What the plan spends at the silo where it is largest; None without privacy."""
        return self.plan.epsilon_accounted if self.plan.problem.budget.private else None

    @property
    def delta(self) -> float:
        """The largest of any silo."""
        return max(account.delta for account in self.accounts)

    @property
    def test_error(self) -> float | None:
        """Part of wrong classes of the test records; None without test records, or for a real-valued label."""
        return self.measures.get("test_error")

    def plot(self, what: str | None = None, against: str = "round") -> Figure:
        """A column of `rounds` against another, or against rounds. `what`: null: test_error, or else test_loss.

        Raises KeyError for a column that is not there, as any `what` is without test records but epsilon and floats.
        """
        from matplotlib.figure import Figure

        table = self.rounds.reset_index()
        wanted = what or next((each for each in ("test_error", "test_loss") if each in table), "epsilon")
        shown = table[[against, wanted]].dropna()
        figure = Figure(figsize=(6, 4), layout="constrained")
        axes = figure.subplots()
        axes.plot(shown[against], shown[wanted], marker="." if len(shown) < 60 else None)
        level = "no privacy" if self.epsilon is None else f"epsilon {shown_up(self.epsilon)}"
        axes.set_title(in_drawing(f"{self.config.algorithm.name}, {level}; {self.noise}"), fontsize="small", wrap=True)
        axes.set_xlabel(in_drawing(against.replace("_", " ")))
        axes.set_ylabel(in_drawing(wanted.replace("_", " ")))
        axes.grid(alpha=0.3)
        return figure
