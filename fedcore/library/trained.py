"""The result of a training in a script: model, rounds, privacy budget, plot, file."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fedcore.arrays import Matrix, Vector
from fedcore.data.labels import class_ids_or_nan
from fedcore.directed_rounding import shown_up
from fedcore.errors import InputError, ModelWarning
from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.result import no_better
from fedcore.experiment.served.phase_model import PhaseModel
from fedcore.experiment.statistics import largest_composed
from fedcore.library.mixed_tables import mixed_table
from fedcore.library.saved import read, write
from fedcore.library.statement import Statement
from fedcore.library.tables import NUMBERED, features_of, labels_of, named_columns
from fedcore.planning.plan import Plan
from fedcore.printable import in_drawing
from fedcore.silo.account import SiloAccount

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure
    from sklearn.base import BaseEstimator


@dataclass(frozen=True, repr=False, eq=False)
class Trained:
    """A finished training: a fitted model with scikit-learn's interface, and its privacy cost.

    `weights` (d,): the model, in the order of the features, the bias last. `rounds`: a row for each round, by its
    number `round` in the run: `phase`; `floats_up`, `floats_down` and `epsilon` until then; with test records
    `test_loss` and `test_error`. `measures`: measures of the last model on test records, by the names of a run's result
    (test_error, test_auc, ..). `accounts`: each silo's account by its ledger, including releases before training.
    `statistics`: the plan of those releases; None if there were none.
    """

    config: ExperimentConfig
    plan: Plan
    model: PhaseModel
    rounds: pd.DataFrame
    measures: Mapping[str, Any]
    accounts: tuple[SiloAccount, ...]
    noise: str
    """Sentence about the noise (secret or simulated) that accompanies each display of the model."""
    statistics: Plan | None = None

    def __repr__(self) -> str:
        return self._statement.as_call()

    def __str__(self) -> str:
        return self._statement.in_words()

    def _repr_html_(self) -> str:
        return self._statement.in_html()

    @property
    def _statement(self) -> Statement:
        return Statement(
            method=self.config.algorithm.name,
            unit=self.plan.problem.unit,
            rounds=self.plan.rounds,
            epsilon=self.epsilon,
            delta=self.delta,
            measures=self.measures,
            shortfall=self.shortfall,
            accounts=self.accounts,
            table=self.rounds,
            noise=self.noise,
        )

    @property
    def weights(self) -> Vector:
        """The model (d,), in the order of the features, the bias last."""
        return self.model.w

    @cached_property
    def epsilon(self) -> float | None:
        """Largest accounted epsilon of any silo, with earlier releases; None without privacy."""
        return largest_composed(self.plan, self.statistics) if self.plan.problem.budget.private else None

    @property
    def delta(self) -> float:
        """Largest delta of any silo."""
        return max(account.delta for account in self.accounts)

    @property
    def test_error(self) -> float | None:
        """Share of wrong classes on the test records; None without them or for a real label."""
        return self.measures.get("test_error")

    @property
    def shortfall(self) -> str | None:
        """A sentence if the model is no better on test records than a constant, else None."""
        for error, alone, constant in (
            ("test_error", "majority_error", "most frequent class"),
            ("test_rmse", "mean_rmse", "mean"),
        ):
            if error in self.measures and alone in self.measures:
                return no_better(self.measures[error], self.measures[alone], constant)
        return None

    @cached_property
    def estimator(self) -> BaseEstimator:
        """The model as a fitted scikit-learn pipeline, for scikit-learn's own tools.

        It takes raw records (n, n_features_in_), with columns in the order of `feature_names_in_`.
        """
        return self.model.estimator(prepared=True)

    @property
    def classes_(self) -> npt.NDArray[Any]:
        """The label's values in their order. Raises AttributeError for a real-valued label."""
        if self.model.classes is None:
            raise AttributeError("a model of a real-valued label has no classes_")
        return np.array(self.estimator.classes_ if hasattr(self.estimator, "classes_") else self.model.classes)

    @property
    def feature_names_in_(self) -> npt.NDArray[np.object_]:
        """Names of the columns (n_features_in_,); x0, x1, .. of arrays."""
        return np.array(self.model.feature_names, dtype=object)

    @property
    def n_features_in_(self) -> int:
        """Columns of a raw record."""
        return len(self.model.feature_names)

    @property
    def coef_(self) -> Matrix:
        """Coefficients of a linear model, in scikit-learn's shapes.

        The shape is (1, k) for two classes, (C, k) for C classes, (k,) for a number. Coefficients apply to columns as
        in training: after `scale` if it was given, else raw, up to the factor that shortens a record. Raises
        AttributeError for a network.
        """
        return self._linear[0]

    @property
    def intercept_(self) -> npt.NDArray[np.float64] | float:
        """Intercept beside `coef_`: (1,), (C,), or a number."""
        return self._linear[1]

    @property
    def _linear(self) -> tuple[Matrix, Any]:
        if self.model.hidden is not None:
            raise AttributeError("a network has no coef_ and no intercept_; its weights are in `weights`")
        coef, intercept = self.model.linear()
        return (coef, intercept) if self.model.classes is not None else (coef[0], float(intercept[0]))

    def predict(self, X: Any) -> npt.NDArray[Any]:
        """Predicts the class, or number in the label's units, of each row of X (n, k) as (n,).

        Columns of a DataFrame are matched by name, those of an array in the order of `feature_names_in_`. Raises
        InputError for other columns; for a missing value in a column without `missing`; for a cell that is no category
        in a column without `other`, or if no cell of several is a category. Other such cells count as other, as in
        training, with a ModelWarning.
        """
        return np.asarray(self.estimator.predict(self._records(X)))

    @property
    def predict_proba(self) -> Callable[[Any], Matrix]:
        """Function from X (n, k) to the probabilities (n, classes), in the order of `classes_`.

        Exists for losses that predict probabilities, as logistic and softmax. Others raise AttributeError, as
        scikit-learn's models without it do.
        """
        if not self.config.model.loss.link.probable:
            raise AttributeError(f"a model of loss {self.config.model.loss.name!r} has no predict_proba")
        return self._probabilities

    def _probabilities(self, X: Any) -> Matrix:
        return np.asarray(self.estimator.predict_proba(self._records(X)))

    def score(self, X: Any, y: Any) -> float:
        """Share of right classes, or R^2 for a real-valued label, as scikit-learn's `score`."""
        import pyarrow as pa
        from sklearn.metrics import r2_score

        found, (truth, _) = self.predict(X), labels_of("y", y)
        if len(found) != len(truth):
            raise InputError(f"X has {len(found)} records and y {len(truth)}")
        if (classes := self.model.classes) is None:
            return float(r2_score(truth, found))
        mine, theirs = (class_ids_or_nan(pa.chunked_array([pa.array(each)]), classes) for each in (found, truth))
        if np.isnan(theirs).any():
            raise InputError("y has labels that are none of the model's classes_")
        return float(np.mean(mine == theirs))

    def save(self, path: str | Path) -> None:
        """Writes this object to one JSON file for `Trained.load`; replaces an existing file.

        The file holds no code. Raises InputError if it cannot be written.
        """
        write(Path(path), {field.name: getattr(self, field.name) for field in fields(self)})

    @staticmethod
    def load(path: str | Path) -> Trained:
        """Reads a file that `save` wrote. Raises InputError for any other file or version."""
        return Trained(**read(Path(path)))

    def plot(self, what: str | None = None, against: str = "round") -> Figure:
        """Plots a column of `rounds` against another, by default against the round.

        `what`: the column; None: test_error, else test_loss, else epsilon. Raises KeyError for a column that is not
        there, as test_error and test_loss without test records.
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

    def _records(self, X: Any) -> Any:
        """X as the estimator's input, its columns in order. Raises InputError."""
        names, schema = self.model.feature_names, self.model.schema
        if schema is not None and any(each.categories or each.missing is not None for each in schema):
            return mixed_table("X", X, schema, stacklevel=3)
        named = named_columns("X", X)
        numbered = names == tuple(f"{NUMBERED}{place}" for place in range(len(names)))
        if named is not None and numbered and named[0] != names:
            raise InputError("X: the model was trained on arrays, whose columns have no names; give X.to_numpy()")
        features = features_of("X", X, names, "the model")
        if features.names is None and features.X.shape[1] != len(names):
            raise InputError(f"X: {features.X.shape[1]} features where the model has {len(names)}")
        if features.names is None and not numbered and self.config.data.source == "files":
            message = "X has no names of columns; they are taken in the order of feature_names_in_"
            warnings.warn(message, ModelWarning, stacklevel=3)
        features.check_finite("X")
        return features.X
