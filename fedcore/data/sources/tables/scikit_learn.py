"""Tables of scikit-learn, which need no files: diabetes, breast cancer, handwritten digits."""

from __future__ import annotations

from functools import cache

import numpy as np

from fedcore.data.schema import Column
from fedcore.data.sources import regression
from fedcore.data.sources.tables.description import Description, standardised
from fedcore.data.table import Table

# (centre, scale) of mean, error and worst of each measurement over the cells of a sample, in its own units.
_CELLS = {
    "radius": ((14, 3.5), (0.4, 0.25), (16, 5)),
    "texture": ((19, 4.5), (1.2, 0.55), (26, 6)),
    "perimeter": ((92, 24), (2.9, 2), (107, 34)),
    "area": ((650, 350), (40, 45), (880, 570)),
    "smoothness": ((0.096, 0.014), (0.007, 0.003), (0.13, 0.023)),
    "compactness": ((0.1, 0.05), (0.025, 0.018), (0.25, 0.16)),
    "concavity": ((0.09, 0.08), (0.03, 0.03), (0.27, 0.2)),
    "concave points": ((0.05, 0.04), (0.012, 0.006), (0.11, 0.065)),
    "symmetry": ((0.18, 0.027), (0.02, 0.008), (0.29, 0.06)),
    "fractal dimension": ((0.063, 0.007), (0.004, 0.0025), (0.084, 0.018)),
}
_TUMOURS = standardised(
    {f"mean {name}": (*mean, 5) for name, (mean, _, _) in _CELLS.items()}
    | {f"{name} error": (*error, 5) for name, (_, error, _) in _CELLS.items()}
    | {f"worst {name}": (*worst, 5) for name, (_, _, worst) in _CELLS.items()}
)
_DIABETES = regression.TABLES["diabetes"]

DIABETES = Description(label=_DIABETES.label, label_range=_DIABETES.label_range, schema=_DIABETES.schema, records=442)
BREAST_CANCER = Description(label="malignant", schema=_TUMOURS, classes=("benign", "malignant"), records=569)
DIGITS = Description(
    label="digit",
    schema=tuple(Column(name=f"pixel_{k // 8}_{k % 8}", centre=5, scale=6, limit=2) for k in range(64)),
    classes=tuple(str(digit) for digit in range(10)),
    records=1797,
)


@cache
def load_diabetes() -> Table:
    """442 records (Efron, Hastie, Johnstone and Tibshirani 2004), in the columns' own units."""
    from sklearn import datasets

    features, labels = datasets.load_diabetes(return_X_y=True, scaled=False)
    return Table(np.asarray(features, dtype=np.float64), np.asarray(labels, dtype=np.float64))


@cache
def load_breast_cancer() -> Table:
    """569 tumours (Street, Wolberg and Mangasarian 1993). Label 1: malignant."""
    from sklearn import datasets

    features, benign = datasets.load_breast_cancer(return_X_y=True)
    return Table(np.asarray(features, dtype=np.float64), 1 - np.asarray(benign, dtype=np.int64))


@cache
def load_digits() -> Table:
    """1,797 images of 8 x 8 pixels, with grey values 0 to 16."""
    from sklearn import datasets

    images, digit = datasets.load_digits(return_X_y=True)
    return Table(np.asarray(images, dtype=np.float64), np.asarray(digit, dtype=np.int64))
