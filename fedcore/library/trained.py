"""What a training in a script came to: a model that predicts, its rounds as a table, its budget, a plot, a file."""

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
    """A finished training: a fitted model as scikit-learn has them, and what it cost.

    `weights` (d,): the model, in the order of the features, the bias last. `rounds`: a row for each round (index
    `round` of the whole run; `phase`, `floats_up` and `floats_down` until then, `epsilon` until then, and where there
    are test records `test_loss` and `test_error`). `measures`: of the last model on test records, by the names of a
    run's result (test_error, test_auc, ..). `accounts`: what the ledger of each silo says, with what it released before
    training (`statistics`, the plan of that; None).
    """

    config: ExperimentConfig
    plan: Plan
    model: PhaseModel
    rounds: pd.DataFrame
    measures: Mapping[str, Any]
    accounts: tuple[SiloAccount, ...]
    noise: str
    """What is said of its noise wherever the model is shown."""
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
        """What is spent at the silo where it is largest, by training and what was released before it; None without
        privacy."""
        return largest_composed(self.plan, self.statistics) if self.plan.problem.budget.private else None

    @property
    def delta(self) -> float:
        """The largest of any silo."""
        return max(account.delta for account in self.accounts)

    @property
    def test_error(self) -> float | None:
        """Part of wrong classes of the test records; None without test records, or for a real-valued label."""
        return self.measures.get("test_error")

    @property
    def shortfall(self) -> str | None:
        """A sentence where the model is no better on the test records than always answering the same, else None."""
        for error, alone, constant in (
            ("test_error", "majority_error", "most frequent class"),
            ("test_rmse", "mean_rmse", "mean"),
        ):
            if error in self.measures and alone in self.measures:
                return no_better(self.measures[error], self.measures[alone], constant)
        return None

    @cached_property
    def estimator(self) -> BaseEstimator:
        """The model as a fitted scikit-learn pipeline of raw records (n, n_features_in_), in the order of
        `feature_names_in_`: for what scikit-learn does with fitted estimators."""
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
        """Coefficients of a linear model, as scikit-learn shapes them: (1, k) of two classes, (C, k), (k,) of a number.

        On columns as training has them: with `scale` after it, else raw, up to the factor by which a record is
        shortened. Raises AttributeError of a network.
        """
        return self._linear[0]

    @property
    def intercept_(self) -> npt.NDArray[np.float64] | float:
        """What goes with `coef_`: (1,), (C,), or a number."""
        return self._linear[1]

    @property
    def _linear(self) -> tuple[Matrix, Any]:
        if self.model.hidden is not None:
            raise AttributeError("a network has no coef_ and no intercept_; its weights are in `weights`")
        coef, intercept = self.model.linear()
        return (coef, intercept) if self.model.classes is not None else (coef[0], float(intercept[0]))

    def predict(self, X: Any) -> npt.NDArray[Any]:
        """The class of each record of X (n, n_features_in_), or its number in the label's own units (n,).

        Columns of a DataFrame are taken by their names, those of an array in the order of `feature_names_in_`. Raises
        InputError for other columns, and for values that are missing where the schema has no `missing`; for cells that
        are no category where the schema has no `other`, or where of several records none is one. Other such cells count
        as other, as in training, and a ModelWarning says so.
        """
        return np.asarray(self.estimator.predict(self._records(X)))

    @property
    def predict_proba(self) -> Callable[[Any], Matrix]:
        """Of X (n, n_features_in_): probabilities (n, classes), in the order of `classes_`, as training saw them.

        There for losses that predict probabilities, as logistic and softmax; else AttributeError, as of scikit-learn's
        models without it.
        """
        if not self.config.model.loss.link.probable:
            raise AttributeError(f"a model of loss {self.config.model.loss.name!r} has no predict_proba")
        return self._probabilities

    def _probabilities(self, X: Any) -> Matrix:
        return np.asarray(self.estimator.predict_proba(self._records(X)))

    def score(self, X: Any, y: Any) -> float:
        """Part of the records whose class is right, or R^2 of a real-valued label: as scikit-learn's."""
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
        """Writes all of it to one file of JSON, in place of what is there. `Trained.load` reads it; no code is in it.

        Raises InputError where the file cannot be written.
        """
        write(Path(path), {field.name: getattr(self, field.name) for field in fields(self)})

    @staticmethod
    def load(path: str | Path) -> Trained:
        """What `save` wrote. Raises InputError for any other file, and for one of another version's form."""
        return Trained(**read(Path(path)))

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

    def _records(self, X: Any) -> Any:
        """X as the estimator takes it, its columns in order. Raises InputError."""
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
            said = "X has no names of columns; they are taken in the order of feature_names_in_"
            warnings.warn(said, ModelWarning, stacklevel=3)
        features.check_finite("X")
        return features.X
