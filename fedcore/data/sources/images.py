"""Config sections of images: their files, their split between silos, and their label."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from fedcore.data.constants.pca import PcaConfig
from fedcore.data.sources.mnist import CLASSES, Flavour
from fedcore.data.sources.similarity import SimilarityConfig
from fedcore.hyperparameters import Count, Real, Section
from fedcore.paths import LocalPath


class ImageData(Section):
    """Images of classes; by default silo (o, e) holds one odd and one even digit."""

    source: Literal["digits", "mnist"]
    split: Literal["odd-even", "similarity"] = "odd-even"
    """odd-even: 25 silos, each with one odd and one even digit; similarity: by the section `similarity` (labels
    digit)."""
    homogeneity: Real = Field(0.0, ge=0, le=1)
    """With split odd-even: part of each silo's images that is pooled over silos, shuffled and dealt back; 1: all silos
    alike."""
    similarity: SimilarityConfig | None = None
    """With split similarity: the silos' shares of classes; null there: its defaults."""
    labels: Literal["odd-even", "digit"] = "odd-even"
    """odd-even: two classes, even and odd; digit: the ten digits (of emnist-balanced: its 47 classes), loss softmax."""
    test_fraction: Real = Field(0.2, gt=0, lt=1)
    """Part of the images set aside as public test data: of all images before silos are built; with split similarity of
    each silo's images."""
    pca: PcaConfig | None = None
    """Principal components in place of pixels; null: pixels."""

    @property
    def classes(self) -> int:
        """Number of classes, numbered from 0."""
        return 10

    @property
    def label_values(self) -> tuple[int, ...]:
        """The classes, in the order of their numbers."""
        return tuple(range(self.classes)) if self.labels == "digit" else (0, 1)

    @property
    def public_fraction(self) -> float:
        """Part of the images set aside for public constants, before silos are built."""
        return self.pca.fraction if self.pca is not None and self.pca.constants == "public" else 0.0

    @model_validator(mode="before")
    @classmethod
    def _similarity_has_defaults(cls, values: Any) -> Any:
        """Fills in the default section of a split by similarity, so both forms are one run."""
        if isinstance(values, dict) and values.get("split") == "similarity" and values.get("similarity") is None:
            return {**values, "similarity": {}}
        return values

    @model_validator(mode="after")
    def _keys_fit_the_split(self) -> ImageData:
        if self.split == "odd-even" and self.similarity is not None:
            raise ValueError("data.similarity has no meaning with split = odd-even: leave it out, or set data.split")
        if self.split == "similarity" and self.homogeneity:
            raise ValueError(
                f"data.homogeneity = {self.homogeneity:g} has no meaning with split = similarity: set "
                "data.similarity.gamma"
            )
        if self.split == "similarity" and self.labels != "digit":
            raise ValueError(
                "data.split = similarity needs data.labels = digit (and model.loss.name = softmax): its silos differ "
                "in their classes"
            )
        return self


class DigitsData(ImageData):
    """Handwritten digits of scikit-learn (1,797 images of 8 x 8 pixels)."""

    source: Literal["digits"] = "digits"


class MnistData(ImageData):
    """MNIST or EMNIST, from IDX files in a local folder."""

    source: Literal["mnist"] = "mnist"
    folder: LocalPath
    """Folder of the IDX files, plain or .gz; relative paths start at the working folder."""
    flavour: Flavour = "mnist"
    """Collection: mnist has 70,000 images, emnist-digits 280,000, emnist-mnist 70,000; emnist-balanced 112,800 of 47
    classes (its training file alone), for split similarity."""
    per_digit: Count | None = Field(None, ge=1)
    """Number of images of each digit (or class), drawn by the seed; null: all images."""

    @property
    def classes(self) -> int:
        """Number of classes, numbered from 0."""
        return CLASSES[self.flavour]

    @model_validator(mode="after")
    def _only_digits_are_odd_or_even(self) -> MnistData:
        if self.split == "odd-even" and self.classes != 10:
            raise ValueError(
                f"data.flavour = {self.flavour} has {self.classes} classes, which are no digits: set "
                "data.split = similarity and data.labels = digit"
            )
        return self
