"""The model of a phase as a plain scikit-learn estimator of raw records, for MLflow and for training in Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedcore.data.constants.pca import Projection
from fedcore.data.constants.whitening import Whitening
from fedcore.data.schema import Schema, feature_names
from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.experiment import Experiment
from fedcore.experiment.served.raw_records import scaled_records
from fedcore.losses.traits import IDENTITY
from fedcore.models.activations import Activation
from fedcore.models.model_config import Normalise
from fedcore.models.network_classifier import network_classifier, network_weights

if TYPE_CHECKING:
    from pandas import DataFrame
    from sklearn.base import BaseEstimator
    from sklearn.preprocessing import FunctionTransformer

Weights = NDArray[np.float64]


@dataclass(frozen=True)
class PhaseModel:
    """A model and the public constants that lead from a raw record to its predictors.

    `w` float64 (d,): weights, the bias last if there is one. With `multinomial` (softmax regression) one such vector
    per class, one after the other (C d,); with `hidden` units as in `fedcore.models.network`. `activation`: of units.
    `classes`: values of the label, the first for -1 and the second for +1; None for a real-valued label.
    `schema`: maps the columns `feature_names` to features, before their `whitening`; None: each column is a feature.
    `label_range`: of a real-valued label; the estimator predicts in its units. `link`: of a numeric label, by name in
    `fedcore.losses.LINKS`; the estimator predicts means.
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
    schema: Schema | None = None
    whitening: Whitening | None = None
    label_range: tuple[float, float] | None = None
    activation: Activation = "relu"
    link: str = IDENTITY.name

    def __post_init__(self) -> None:
        if self.projection is not None and self.classes is None:
            raise ValueError("a projection before a real-valued label is not built")
        expected = sum(rows * columns for rows, columns in self.layers)
        if self.w.shape != (expected,):
            raise ValueError(f"w has shape {self.w.shape}, but features, bias and classes ask for ({expected},)")

    @property
    def layers(self) -> tuple[tuple[int, int], ...]:
        """(outputs, weights of each output) of every layer.

        A linear model has one layer, with one output, or one per class for softmax regression. A network has two; the
        last weight of each output of the second one is its bias.
        """
        names = self.feature_names if self.schema is None else feature_names(self.schema)
        features = (len(names) if self.projection is None else self.projection.dim) + self.bias
        outputs = len(self.classes or ()) if self.multinomial else 1
        return ((outputs, features),) if self.hidden is None else ((self.hidden, features), (outputs, self.hidden + 1))

    @property
    def weights_shape(self) -> list[int] | list[list[int]]:
        """Shape of `w` in results: that of the only layer, or a list of both."""
        return list(self.layers[0]) if self.hidden is None else [list(layer) for layer in self.layers]

    @classmethod
    def blank(cls) -> PhaseModel:
        """The smallest possible model."""
        return cls(np.zeros(1), bias=False, feature_names=("x",), classes=(0, 1))

    def example(self) -> DataFrame:
        """One made-up record as an example of the input, without data of any silo.

        Zeros; with a schema each column's first category, or the middle of its range.
        """
        from pandas import DataFrame

        if self.schema is not None:
            return DataFrame({column.name: [column.example] for column in self.schema})
        return DataFrame(np.zeros((1, len(self.feature_names))), columns=list(self.feature_names))

    def estimator(self, prepared: bool = False) -> BaseEstimator:
        """A fitted scikit-learn estimator with this model's `predict` on raw records (n, features).

        `prepared`: always prepares records as training did. `predict_proba` is then that of training, but the model
        needs fedcore where it loads.

        Classes: a plain LogisticRegression, so that the model loads wherever scikit-learn is, without fedcore. Scaling
        a record by a positive number changes neither the sign of its predictor nor the largest of several. So classes
        are exact; `predict_proba` leaves that scaling out and is not the probability of training.

        The preparation matters for a real-valued label, columns with a schema, and features that are scaled apart from
        the bias. It then precedes the linear model as `scaled_records`, and the model needs fedcore where it loads. The
        same holds for a network, whose outputs do not scale with the record. A network of softplus units or for a real
        label is fedcore's own estimator (`fedcore.models.network_predictor`).
        """
        from sklearn.linear_model import LinearRegression, LogisticRegression
        from sklearn.pipeline import Pipeline

        fitted = self.fitted(prepared)
        if self._is_no_classifier:
            return Pipeline([("scale", self._scaling()), ("network", self._predictor(fitted))])
        if self.classes is None:
            if self.link != IDENTITY.name:
                return Pipeline([("scale", self._scaling()), ("linear", self._of_means(fitted))])
            linear = LinearRegression(fit_intercept=False)
            linear.coef_, linear.n_features_in_ = fitted["coef_"], len(self.w)
            linear.intercept_ = self.label_range[0] + self._label_units[0] if self.label_range else 0.0
            return Pipeline([("scale", self._scaling()), ("linear", linear)])
        classes = _of_one_type(self.classes)
        if self.hidden is not None:
            return Pipeline([("scale", self._scaling()), ("network", network_classifier(fitted, classes))])
        model = LogisticRegression()
        model.coef_, model.intercept_, model.classes_ = fitted["coef_"], fitted["intercept_"], np.array(classes)
        if prepared or self._is_scaled_apart:
            model.n_features_in_ = model.coef_.shape[1]
            return Pipeline([("scale", self._scaling()), ("linear", model)])
        model.n_features_in_ = len(self.feature_names)
        model.feature_names_in_ = np.array(self.feature_names, dtype=object)
        return model

    def fitted(self, prepared: bool = False) -> dict[str, NDArray[np.float64]]:
        """The fitted arrays of `estimator`: `coef_` and `intercept_` of a linear model, or those of a network."""
        half, middle = self._label_units
        if self.hidden is not None:
            first, second = self.layers
            cut = first[0] * first[1]
            inner, outer = self.w[:cut].reshape(first), self.w[cut:].reshape(second)
            if not self._is_no_classifier:
                return network_weights(inner, outer)
            return {
                "first": np.ascontiguousarray(inner.T),
                "second": np.ascontiguousarray(half * outer[:, :-1].T),
                "biases": half * outer[:, -1] + middle,
            }
        if self.classes is None:
            return {"coef_": self.w * half}
        rows = self._rows
        apart = prepared or self._is_scaled_apart
        coef, intercept = (rows, np.zeros(len(rows))) if apart else self._on_raw_records(rows)
        if not self.multinomial:
            # Training counts a predictor of 0 as +1, scikit-learn as the first class: the smallest float decides.
            intercept = np.where(intercept == 0, np.nextafter(0.0, 1.0), intercept)
        return {"coef_": coef, "intercept_": np.array(intercept)}

    def linear(self) -> tuple[Weights, Weights]:
        """Coefficients (C, features) and intercepts (C,) of a linear model, one row for two classes or a number.

        Of training's features with a schema. Otherwise of raw columns, up to the positive factor by which a record is
        shortened. Raises ValueError for a network.
        """
        if self.hidden is not None:
            raise ValueError("a network is not linear")
        half, middle = self._label_units
        rows = self._rows * half
        coef, intercept = self._by_features(rows) if self._is_scaled_apart else self._on_raw_records(rows)
        return coef, intercept + middle

    @property
    def _rows(self) -> Weights:
        """The weights of a linear model, a row for each predictor."""
        rows = self.w.reshape(self.layers[0])
        # scikit-learn has one predictor for two classes; a tie gives the first class in both.
        return rows[1:] - rows[:1] if len(rows) == 2 else rows

    @property
    def _label_units(self) -> tuple[float, float]:
        """Half of a real-valued label's range and its middle, which map [-1, 1] to its own units."""
        low, high = self.label_range or (-1.0, 1.0)
        return ((high - low) / 2.0, (high + low) / 2.0) if self.classes is None else (1.0, 0.0)

    @property
    def _is_no_classifier(self) -> bool:
        """True for a network for which scikit-learn has no classifier."""
        return self.hidden is not None and (self.classes is None or self.activation != "relu")

    def _predictor(self, fitted: Mapping[str, Weights]) -> BaseEstimator:
        from fedcore.models.network_predictor import NetworkClassifier, NetworkPredictor

        made = NetworkPredictor(self.activation)
        if self.classes is not None:
            made = NetworkClassifier(self.activation, list(_of_one_type(self.classes)))
        made.first_, made.second_, made.biases_ = fitted["first"], fitted["second"], fitted["biases"]
        return made

    def _of_means(self, fitted: Mapping[str, Weights]) -> BaseEstimator:
        from fedcore.models.mean_regression import MeanRegression

        made = MeanRegression(self.link)
        made.coef_, made.intercept_, made.n_features_in_ = fitted["coef_"], 0.0, len(self.w)
        return made

    @property
    def _is_scaled_apart(self) -> bool:
        """True if a preparing step must precede the linear model.

        Needed for columns with a schema, and for features that are scaled apart from the bias.
        """
        return self.schema is not None or (self.bias and self.normalise == "features")

    def _on_raw_records(self, rows: Weights) -> tuple[Weights, Weights]:
        """Coefficients and intercepts on raw records that give the predictors of `rows` up to a positive factor."""
        coef, intercept = self._by_features(rows)
        if self.projection is not None:
            # Projecting is affine, so model and projection are one linear model of the raw features.
            coef = coef @ self.projection.components / self.projection.divide_by
            intercept = intercept - coef @ self.projection.mean
        return coef / self.divide_by, intercept

    def _by_features(self, rows: Weights) -> tuple[Weights, Weights]:
        return (rows[:, :-1], rows[:, -1]) if self.bias else (rows, np.zeros(len(rows)))

    def _scaling(self) -> FunctionTransformer:
        """The step that prepares raw records as training did; its arguments are plain values, so it can be saved."""
        from sklearn.preprocessing import FunctionTransformer

        constants: dict[str, Any] = {"divide_by": self.divide_by, "bias": self.bias}
        constants["feature_bound"] = self.feature_bound
        if self.normalise != "record":
            constants["normalise"] = self.normalise
        if self.projection is not None:
            made = self.projection
            constants["projection"] = (made.mean, made.components, made.divide_by)
        if self.schema is not None:
            constants["columns"] = [column.model_dump(mode="json", exclude_defaults=True) for column in self.schema]
        if self.whitening is not None:
            constants["whitening"] = self.whitening.model_dump(mode="json")
        return FunctionTransformer(scaled_records, kw_args=constants)


def _of_one_type(classes: Sequence[str | int]) -> Sequence[str | int]:
    return classes if len({type(value) for value in classes}) == 1 else [str(value) for value in classes]


def link_of(config: ExperimentConfig) -> str:
    """Name of the link for a numeric label; the identity for classes, whose served form needs no link."""
    loss = config.model.loss
    return IDENTITY.name if loss.labels.classes else loss.link.name


def phase_model(experiment: Experiment, w: np.ndarray) -> PhaseModel:
    """A released model with the constants to serve it; none of them comes from a record directly."""
    data, model = experiment.config.data, experiment.config.model
    return PhaseModel(
        w=w,
        bias=model.bias,
        feature_names=experiment.dataset.feature_names,
        classes=data.label_values,
        divide_by=experiment.dataset.divide_by,
        feature_bound=model.feature_bound,
        normalise=model.normalise,
        projection=experiment.dataset.projection,
        multinomial=model.class_ids,
        hidden=model.hidden,
        activation=model.activation,
        schema=experiment.dataset.sources[0].schema,
        whitening=experiment.dataset.sources[0].whitening,
        label_range=experiment.dataset.sources[0].label_range,
        link=link_of(experiment.config),
    )
