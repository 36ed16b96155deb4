"""Trained networks of ReLU units with softmax outputs, as scikit-learn's own classifier."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from fedcore.arrays import Matrix

if TYPE_CHECKING:
    from sklearn.neural_network import MLPClassifier


def network_weights(first: Matrix, second: Matrix) -> dict[str, Matrix]:
    """The classifier's weights by name, from `first` (hidden, features) and `second` (C, hidden + 1).

    The last column of `second` is the bias.
    """
    outputs, biases = second[:, :-1], second[:, -1]
    if len(second) == 2:
        # scikit-learn has one logistic output for two classes; ties give the first class here and there.
        outputs, biases = outputs[1:] - outputs[:1], biases[1:] - biases[:1]
    return {
        "first": np.ascontiguousarray(first.T),
        "second": np.ascontiguousarray(outputs.T),
        "biases": np.array(biases),
    }


def network_classifier(weights: Mapping[str, Matrix], classes: Sequence[str | int]) -> MLPClassifier:
    """The classifier with these `network_weights`, for records as in training (n, features).

    `predict` gives the class of the largest output, the first of ties, and `predict_proba` the softmax. The function
    sets the attributes that `fit` would set and prediction reads. `classes` must be of one type.
    """
    from sklearn.neural_network import MLPClassifier
    from sklearn.preprocessing import LabelBinarizer

    features, hidden = weights["first"].shape
    model = MLPClassifier(hidden_layer_sizes=(hidden,), activation="relu")
    model.coefs_ = [weights["first"], weights["second"]]
    model.intercepts_ = [np.zeros(hidden), weights["biases"]]  # a bias of a hidden unit belongs to a feature
    model.n_layers_, model.n_outputs_, model.n_features_in_ = 3, len(weights["biases"]), features
    model.out_activation_ = "logistic" if len(classes) == 2 else "softmax"
    labels = LabelBinarizer()
    labels.classes_ = np.array(classes)
    labels.y_type_, labels.sparse_input_ = "binary" if len(classes) == 2 else "multiclass", False
    model._label_binarizer, model.classes_ = labels, labels.classes_
    return model
