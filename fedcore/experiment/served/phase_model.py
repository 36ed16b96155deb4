"""The model of a phase as a plain scikit-learn estimator of raw records: for MLflow, and for who trains in Python."""

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

    `w` float64 (d,), the bias last if there is one; `classes` are the values of the label, the first for -1
    and the second for +1, None for a real-valued label. `multinomial`: softmax regression, `w` holds such weights
    for one class after another (C d,); with `hidden` units between, `w` is as in `fedcore.models.network`. `schema`:
    how the columns `feature_names` become features, before their `whitening` if there is one; None: each is one.
    `label_range`: of a real-valued label, in whose units the estimator predicts; None: as it is. `activation`: units'.
    `link`: of a label that is a number, by its name in `fedcore.losses.LINKS`: the estimator predicts means.
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
        """(outputs, weights of each) of every layer: one layer of linear models, with an output per class of softmax
        regression, else one; two of a network, where the last weight of the second one's outputs is their bias."""
        names = self.feature_names if self.schema is None else feature_names(self.schema)
        features = (len(names) if self.projection is None else self.projection.dim) + self.bias
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
        """One made-up record: what a person sees of the input, and nothing that a silo holds.

        Of zeros; of columns with a schema the first category, or the middle.
        """
        from pandas import DataFrame

        if self.schema is not None:
            return DataFrame({column.name: [column.example] for column in self.schema})
        return DataFrame(np.zeros((1, len(self.feature_names))), columns=list(self.feature_names))

    def estimator(self, prepared: bool = False) -> BaseEstimator:
        """A fitted scikit-learn estimator with this model's `predict` on raw records (n, features).

        `prepared`: whether records are always prepared as training prepared them, which needs fedcore where the model
        loads: its `predict_proba` is then that of training.

        Classes: a LogisticRegression and nothing else, so that the model loads where scikit-learn is, without
        fedcore. Scaling a record by a positive number cannot change the sign of its predictor, nor which of
        several is the largest, so the classes are exact; `predict_proba` leaves that scaling out and is not the
        probability that training saw. Real-valued label, columns with a schema, or features that are scaled apart from
        the bias: the preparation matters, and stands before the linear model as `scaled_records`, which makes the model
        load where fedcore is installed. So it does before a network, whose outputs do not scale with the record; one of
        softplus units or for a real label is fedcore's own estimator (`fedcore.models.network_predictor`).
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
        """All of `estimator` that follows from the weights: its linear part's `coef_` and `intercept_`, a network's."""
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

        Of features as training has them; where no schema is before them, of raw columns, up to the positive factor by
        which a record is shortened. Raises ValueError of a network.
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
        # scikit-learn keeps one predictor for two classes; equal ones give the first class here and there.
        return rows[1:] - rows[:1] if len(rows) == 2 else rows

    @property
    def _label_units(self) -> tuple[float, float]:
        """Half of a real-valued label's range and its middle: what leads from -1 to 1 to its own units."""
        low, high = self.label_range or (-1.0, 1.0)
        return ((high - low) / 2.0, (high + low) / 2.0) if self.classes is None else (1.0, 0.0)

    @property
    def _is_no_classifier(self) -> bool:
        """Whether it is a network of a kind that scikit-learn has no classifier for."""
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
        """Whether a step stands before the linear model: for columns that are no numbers, or features that are scaled
        apart from the bias, which no linear model of raw records does."""
        return self.schema is not None or (self.bias and self.normalise == "features")

    def _on_raw_records(self, rows: Weights) -> tuple[Weights, Weights]:
        """Coefficients and intercepts on raw records that have the predictors `rows` up to a positive factor."""
        coef, intercept = self._by_features(rows)
        if self.projection is not None:
            # Projecting is affine, so model and projection are one linear model of the raw features.
            coef = coef @ self.projection.components / self.projection.divide_by
            intercept = intercept - coef @ self.projection.mean
        return coef / self.divide_by, intercept

    def _by_features(self, rows: Weights) -> tuple[Weights, Weights]:
        return (rows[:, :-1], rows[:, -1]) if self.bias else (rows, np.zeros(len(rows)))

    def _scaling(self) -> FunctionTransformer:
        """The step from raw records to those that training saw; of plain values, so that it can be saved."""
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
    """The name of the link to a number; of a loss of classes the identity, as its served form needs none."""
    loss = config.model.loss
    return IDENTITY.name if loss.labels.classes else loss.link.name


def phase_model(experiment: Experiment, w: np.ndarray) -> PhaseModel:
    """A released model with all that is needed to serve it; nothing in it comes from a record directly."""
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
