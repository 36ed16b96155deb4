"""A network of one hidden layer as a fitted scikit-learn classifier."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from sklearn.neural_network import MLPClassifier

Weights = NDArray[np.float64]


def network_classifier(first: Weights, second: Weights, classes: Sequence[str | int]) -> MLPClassifier:
    """The classifier with weights `first` (hidden, features) and `second` (C, hidden + 1), bias last, for records as
    training sees them (n, features): `predict` gives the class of the largest output, of equal ones the first, and
    `predict_proba` the softmax.

    Where `fit` would set an attribute that prediction reads, it is set here. `classes` must be of one type.
    """
    from sklearn.neural_network import MLPClassifier
    from sklearn.preprocessing import LabelBinarizer

    hidden, features = first.shape
    outputs, biases = second[:, :-1], second[:, -1]
    if len(classes) == 2:
        # scikit-learn keeps one logistic output for two classes; equal ones give the first class here and there.
        outputs, biases = outputs[1:] - outputs[:1], biases[1:] - biases[:1]
    model = MLPClassifier(hidden_layer_sizes=(hidden,), activation="relu")
    model.coefs_ = [np.ascontiguousarray(first.T), np.ascontiguousarray(outputs.T)]
    model.intercepts_ = [np.zeros(hidden), np.array(biases)]  # a bias of a hidden unit belongs to a feature
    model.n_layers_, model.n_outputs_, model.n_features_in_ = 3, len(outputs), features
    model.out_activation_ = "logistic" if len(classes) == 2 else "softmax"
    labels = LabelBinarizer()
    labels.classes_ = np.array(classes)
    labels.y_type_, labels.sparse_input_ = "binary" if len(classes) == 2 else "multiclass", False
    model._label_binarizer, model.classes_ = labels, labels.classes_
    return model
