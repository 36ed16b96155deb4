"""The map from a table's rows to the records of a silo, as plain values that parties compare."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from fedcore.data.silo_file import SiloSource, format_of
from fedcore.data.tabular import OwnTable
from fedcore.hyperparameters import Factor
from fedcore.losses import REALS, LabelSet
from fedcore.losses.traits import CLASSES, COUNTS, TWO_CLASSES
from fedcore.models.model_config import ModelConfig, Normalise

Labels = Literal["two-classes", "classes", "real-numbers", "counts"]
LABELS: dict[Labels, LabelSet] = {
    "two-classes": TWO_CLASSES,
    "classes": CLASSES,
    "real-numbers": REALS,
    "counts": COUNTS,
}


class Preparation(OwnTable):
    """Columns of a silo's table, and how a row becomes a record.

    A silo prepares its records once, so every run over it has this section of data and these keys of the model.
    """

    labels: Labels | None = None
    """Labels in training. two-classes: -1 and +1. classes: their numbers from 0, for softmax. counts: whole numbers.
    Null: by `classes`, of which null stands for real numbers."""
    bias: bool = True
    """As `model.bias`."""
    feature_bound: Factor = Field(1.0, gt=0)
    """As `model.feature_bound`."""
    normalise: Normalise = "record"
    """As `model.normalise`."""

    @model_validator(mode="after")
    def _labels_fit(self) -> Preparation:
        if self.labels is not None and LABELS[self.labels].classes != (self.classes is not None):
            raise ValueError(f"labels = {self.labels} does not fit classes = {self.classes}")
        if self.labels == "two-classes" and len(self.classes or ()) != 2:
            raise ValueError(f"labels = two-classes, and classes lists {len(self.classes or ())} values")
        if self.normalise == "features" and not self.bias:
            raise ValueError("normalise = features has no meaning with bias = false: leave it out")
        return self

    @classmethod
    def of(cls, data: OwnTable, model: ModelConfig) -> Preparation:
        """The preparation that the sections of a config describe."""
        own = {key: getattr(data, key) for key in OwnTable.model_fields}
        labels = next(name for name, each in LABELS.items() if each == model.loss.labels)
        return cls(**own, labels=labels, bias=model.bias, feature_bound=model.feature_bound, normalise=model.normalise)

    @property
    def label_set(self) -> LabelSet:
        """The labels of prepared records."""
        if self.labels is not None:
            return LABELS[self.labels]
        if self.classes is None:
            return REALS
        return TWO_CLASSES if len(self.classes) == 2 else CLASSES

    @property
    def features_of_record(self) -> int:
        """Features of a prepared record, the bias column included."""
        return len(self.feature_names) + int(self.bias)

    def source(self, name: str, path: str, version: str = "", key: str = "data") -> SiloSource:
        """The source of a silo whose table is this file. Raises InputError, naming `key`, for another kind of file."""
        return SiloSource(
            name=name,
            path=path,
            format=format_of(path, key),
            features=self.column_names,
            label=self.label,
            classes=self.classes,
            bias=self.bias,
            feature_bound=self.feature_bound,
            divide_by=self.divide_by,
            version=version,
            class_ids=self.label_set.numbered,
            labels=self.label_set,
            normalise=self.normalise,
            schema=self.described,
            label_range=self.label_range,
            person=self.person,
            person_rows=self.person_rows,
        )

    def difference(self, other: Preparation) -> str | None:
        """The first key with other values in `other`, and both, in words; None if records would be the same."""
        for key in type(self).model_fields:
            mine, theirs = self._plain(key), other._plain(key)
            if mine != theirs:
                return f"{key} is {_short(mine)} here and {_short(theirs)} there"
        return None

    def _plain(self, key: str) -> Any:
        if key == "labels":
            return self.label_set.name
        return self.model_dump(mode="json")[key]


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
