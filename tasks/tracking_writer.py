"""What tracking needs apart from MLflow: a queue that loses nothing, and a model as a plain estimator."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedcore.data.pca import Projection
from fedcore.models.config import Normalise
from tasks.served_network import network_classifier

if TYPE_CHECKING:
    from pandas import DataFrame
    from sklearn.base import BaseEstimator
    from sklearn.preprocessing import FunctionTransformer

Status = Literal["FINISHED", "FAILED", "KILLED"]
Table = Mapping[str, Sequence[Any]]

FLUSH_SECONDS = 1.0
LONGEST_PAUSE = 2.0


@dataclass(frozen=True)
class PhaseModel:
    """A model and the public constants that lead from a raw record to its predictors.

    `w` float64 (d,), the bias last if there is one; `classes` are the values of the label, the first for -1
    and the second for +1, None for a real-valued label. `multinomial`: softmax regression, `w` holds such weights
    for one class after another (C d,); with `hidden` units between, `w` is as in `fedcore.models.network`.
    """

    w: NDArray[np.float64]
    bias: bool
    feature_names: tuple[str, ...]
    classes: tuple[str | int, ...] | None
    divide_by: float = 1.0
    feature_bound: float = 1.0
    projection: Projection | None = None
    multinomial: bool = False
    hidden: int | None = None
    normalise: Normalise = "record"

    def __post_init__(self) -> None:
        if self.projection is not None and self.classes is None:
            raise ValueError("a projection before a real-valued label is not built")
        expected = sum(rows * columns for rows, columns in self.layers)
        if self.w.shape != (expected,):
            raise ValueError(f"w has shape {self.w.shape}, but features, bias and classes ask for ({expected},)")

    @property
    def layers(self) -> tuple[tuple[int, int], ...]:
        """(outputs, weights of each) of every layer: one layer of linear models, with an output per class of softmax
        regression, else one; two of a network, where the last weight of the second one's outputs is their bias."""
        features = (len(self.feature_names) if self.projection is None else self.projection.dim) + self.bias
        outputs = len(self.classes or ()) if self.multinomial else 1
        return ((outputs, features),) if self.hidden is None else ((self.hidden, features), (outputs, self.hidden + 1))

    @property
    def weights_shape(self) -> list[int] | list[list[int]]:
        """What results say of `w`: the shape of its only layer, or those of both."""
        return list(self.layers[0]) if self.hidden is None else [list(layer) for layer in self.layers]

    @classmethod
    def blank(cls) -> PhaseModel:
        """The smallest model there is."""
        return cls(np.zeros(1), bias=False, feature_names=("x",), classes=(0, 1))

    def example(self) -> DataFrame:
        """One made-up record, all zeros: what a person sees of the input, and nothing that a silo holds."""
        from pandas import DataFrame

        return DataFrame(np.zeros((1, len(self.feature_names))), columns=list(self.feature_names))

    def estimator(self) -> BaseEstimator:
        """A fitted scikit-learn estimator with this model's `predict` on raw records (n, features).

        Classes: a LogisticRegression and nothing else, so that the model loads where scikit-learn is, without
        fedcore. Scaling a record by a positive number cannot change the sign of its predictor, nor which of
        several is the largest, so the classes are exact; `predict_proba` leaves that scaling out and is not the
        probability that training saw. Real-valued label, or features that are scaled apart from the bias: the scaling
        matters, and stands before the linear model as `scaled_records`, which makes the model load where fedcore is
        installed. So it does before a network, whose outputs do not scale with the record.
        """
        from sklearn.linear_model import LinearRegression, LogisticRegression
        from sklearn.pipeline import Pipeline

        if self.classes is None:
            linear = LinearRegression(fit_intercept=False)
            linear.coef_, linear.intercept_, linear.n_features_in_ = self.w.copy(), 0.0, len(self.w)
            return Pipeline([("scale", self._scaling()), ("linear", linear)])
        same_type = len({type(value) for value in self.classes}) == 1
        classes = self.classes if same_type else [str(value) for value in self.classes]
        if self.hidden is not None:
            first, second = self.layers
            cut = first[0] * first[1]
            network = network_classifier(self.w[:cut].reshape(first), self.w[cut:].reshape(second), classes)
            return Pipeline([("scale", self._scaling()), ("network", network)])
        model = LogisticRegression()
        rows = self.w.reshape(self.layers[0])
        if len(rows) == 2:
            # scikit-learn keeps one predictor for two classes; equal ones give the first class here and there.
            rows = rows[1:] - rows[:1]
        apart = self.bias and self.normalise == "features"
        if apart:
            coef, intercept = rows, np.zeros(len(rows))
        else:
            coef, intercept = self._on_raw_records(rows)
        model.coef_ = coef
        if not self.multinomial:
            # Training counts a predictor of 0 as +1, scikit-learn as the first class: the smallest float decides.
            intercept = np.where(intercept == 0, np.nextafter(0.0, 1.0), intercept)
        model.intercept_ = np.array(intercept)
        model.classes_ = np.array(classes)
        if apart:
            model.n_features_in_ = coef.shape[1]
            return Pipeline([("scale", self._scaling()), ("linear", model)])
        model.n_features_in_ = len(self.feature_names)
        model.feature_names_in_ = np.array(self.feature_names, dtype=object)
        return model

    def _on_raw_records(self, rows: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Coefficients and intercepts on raw records that have the predictors `rows` up to a positive factor."""
        coef, intercept = (rows[:, :-1], rows[:, -1]) if self.bias else (rows, np.zeros(len(rows)))
        if self.projection is not None:
            # Projecting is affine, so model and projection are one linear model of the raw features.
            coef = coef @ self.projection.components / self.projection.divide_by
            intercept = intercept - coef @ self.projection.mean
        return coef / self.divide_by, intercept

    def _scaling(self) -> FunctionTransformer:
        """The step from raw records to those that training saw; of plain values, so that it can be saved."""
        from sklearn.preprocessing import FunctionTransformer

        constants: dict[str, Any] = {
            "divide_by": self.divide_by, "bias": self.bias, "feature_bound": self.feature_bound,
        }  # fmt: skip
        if self.normalise != "record":
            constants["normalise"] = self.normalise
        if self.projection is not None:
            made = self.projection
            constants["projection"] = (made.mean, made.components, made.divide_by)
        return FunctionTransformer(scaled_records, kw_args=constants)


def scaled_records(
    records: ArrayLike,
    divide_by: float,
    bias: bool,
    feature_bound: float,
    normalise: Normalise = "record",
    projection: tuple[NDArray[np.float64], NDArray[np.float64], float] | None = None,
) -> NDArray[np.float64]:
    """The records as training sees them (n, d): divided, projected, a one appended, each scaled to a bounded norm.

    `projection`: the fields of a `Projection`. Saved models name this function: it must keep its name, its place and
    these names of arguments.
    """
    from fedcore.data.records import prepare_records

    rows = np.asarray(records, dtype=np.float64)
    known = None if projection is None else Projection(*projection)
    return prepare_records(rows, np.zeros(len(rows)), bias, feature_bound, divide_by, known, normalise).X


def finite_or_nan(value: float) -> float:
    """The value, NaN if it is infinite: MLflow's store would turn infinity into 1.8e308."""
    return float(value) if np.isfinite(value) else float("nan")


def flat(params: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Texts by key; those of nested mappings under keys joined by dots."""
    found: dict[str, str] = {}
    for key, value in params.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = str(value)
    return found


class Row(NamedTuple):
    """Values of one round of a phase, with the time at which they were known (milliseconds since 1970)."""

    phase: int
    step: int
    values: dict[str, float]
    timestamp: int


class Writer:
    """One thread that does jobs in the order given, each again and again until it succeeds.

    Rows that follow each other are written together: once a second, or as soon as a job waits behind them. A
    job must bear being done twice, since one that failed may have taken effect. `is_final` says of an error
    that trying again is useless: the job is dropped and its error kept in `problem`.
    """

    def __init__(
        self,
        write_rows: Callable[[list[Row]], None],
        is_final: Callable[[Exception], bool],
        on_failure: Callable[[], object],
    ) -> None:
        self._write_rows, self._is_final, self._on_failure = write_rows, is_final, on_failure
        self._queue: deque[Row | Callable[[], object]] = deque()
        self._jobs = 0  # entries of the queue that are not rows
        self._changed = threading.Condition()
        self._closing = False
        self._given_up = threading.Event()
        self._lost: list[str] = []
        self._trouble: str | None = None
        self._thread = threading.Thread(target=self._run, name="fedcore-tracking", daemon=True)
        self._thread.start()

    @property
    def problem(self) -> str | None:
        """A sentence about what could not be written, or not yet; None while all is well."""
        sentences = list(dict.fromkeys(self._lost))
        trouble, waiting = self._trouble, len(self._queue)
        if trouble and waiting:
            sentences.append(f"{waiting} entries wait to be written to MLflow ({trouble})")
        return "; ".join(sentences) or None

    def put(self, entry: Row | Callable[[], object]) -> bool:
        """Appends a row or a job and returns at once; False after `close`: it is dropped, `problem` tells."""
        with self._changed:
            if self._closing:
                self._lost.append("an entry came after tracking was closed")
                return False
            self._queue.append(entry)
            is_row = isinstance(entry, Row)
            self._jobs += not is_row
            if not is_row or len(self._queue) == 1:  # a row behind rows changes nothing for the thread
                self._changed.notify()
        return True

    def flush(self, timeout: float | None = None) -> bool:
        """Waits until everything given so far is written; False after `timeout` seconds, or after `close`."""
        reached = threading.Event()
        return self.put(reached.set) and reached.wait(timeout)

    def close(self, timeout: float | None = None) -> bool:
        """Takes nothing more and waits for the thread; False if an entry is not written (see `problem`)."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(timeout)
        self._given_up.set()
        return not self._queue and not self._lost

    def _run(self) -> None:
        while entries := self._next():
            if isinstance(entries[0], Row):
                done = self._until_done(partial(self._write_rows, entries))
            else:
                done = self._until_done(entries[0])
            if not done:
                return
            with self._changed:
                for entry in entries:
                    self._queue.popleft()
                    self._jobs -= not isinstance(entry, Row)

    def _next(self) -> list:
        """Waits for the rows or the one job whose turn it is, without removing them; [] at the end."""
        with self._changed:
            while True:
                head = self._queue[0] if self._queue else None
                if head is None and self._closing:
                    return []
                if head is not None and not isinstance(head, Row):
                    return [head]
                if head is None:
                    self._changed.wait()
                    continue
                pause = head.timestamp / 1000 + FLUSH_SECONDS - time.time()
                if self._jobs or self._closing or not 0 < pause <= FLUSH_SECONDS:
                    return list(takewhile(lambda entry: isinstance(entry, Row), self._queue))
                self._changed.wait(pause)

    def _until_done(self, job: Callable[[], object]) -> bool:
        """Does the job; True once it succeeded or cannot succeed, False if the writer gave up before."""
        pause = 0.1
        while True:
            try:
                job()
                self._trouble = None
                return True
            except Exception as error:
                sentence = " ".join(f"{type(error).__name__}: {error}".split())[:200]
                self._on_failure()
                if self._is_final(error):
                    self._lost.append(f"MLflow refused an entry ({sentence})")
                    return True
                self._trouble = sentence
                if self._given_up.wait(pause):
                    return False
                pause = min(2 * pause, LONGEST_PAUSE)
