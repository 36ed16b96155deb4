"""What `data` may say: one section per source, told apart by its `source`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from fedcore.data.alpha_beta import Standardise
from fedcore.data.mnist import CLASSES, Flavour
from fedcore.data.similarity import Rest
from fedcore.hyperparameters import Count, Real, Section


class PcaConfig(Section):
    """Principal components in place of pixels: every record is projected by itself, with constants of this origin."""

    dimension: Count = Field(50, ge=1)
    """Features of a projected record, without the bias column."""
    constants: Literal["public", "simulation", "released"] = "public"
    """public: from images that no silo holds; simulation: from all silos' records without noise, OUTSIDE OF THE
    GUARANTEE, as papers do; released: from moments that silos release with noise and a charge before training."""
    fraction: Real = Field(0.1, gt=0, lt=1)
    """With public constants: part of the images set aside, before silos are built, to compute them."""

    epsilon: Real | None = Field(None, gt=0)
    """With released constants, required unless privacy.trust is none: target for the release of the moments, at the
    run's delta. It comes on top of privacy.epsilon, which is for training; results say what both compose to."""
    bound: Real | None = Field(None, gt=0)
    """With released constants: each image (pixels in 0 to 1) is scaled by itself to at most this norm for its moments;
    null: half of the root of the number of pixels."""

    @model_validator(mode="after")
    def _keys_fit_the_origin(self) -> PcaConfig:
        if self.constants != "public" and self.fraction != type(self).model_fields["fraction"].default:
            raise ValueError(f"data.pca.fraction has no meaning with constants = {self.constants}: leave it out")
        for key in ("epsilon", "bound"):
            if self.constants != "released" and getattr(self, key) is not None:
                raise ValueError(f"data.pca.{key} has no meaning with constants = {self.constants}: leave it out")
        return self


class SimilarityConfig(Section):
    """Silos by similarity: gamma of a silo's images are i.i.d. over the classes, the rest have few of them."""

    silos: Count = Field(20, ge=1)
    records: Count | None = Field(None, ge=3)
    """R: images of each silo before its own split into training and test; null: all images in equal numbers."""
    gamma: Real = Field(0.1, ge=0, le=1)
    """Part of a silo's images whose classes are drawn uniformly; 1: all silos alike."""
    rest: Rest = "one-class"
    """The other images: one-class: of class i mod classes in silo i, fewer than R if that class runs out;
    sorted-blocks: the next ones of all images that are left, sorted by label."""


class ImageData(Section):
    """Images of classes; by default silo (o, e) holds one odd and one even digit."""

    source: Literal["digits", "mnist"]
    split: Literal["odd-even", "similarity"] = "odd-even"
    """odd-even: 25 silos, each with one odd and one even digit; similarity: as `similarity` says (labels digit)."""
    similarity: SimilarityConfig | None = None
    """With split similarity: who gets which images; null there: its defaults."""
    labels: Literal["odd-even", "digit"] = "odd-even"
    """odd-even: two classes, even and odd; digit: the ten digits (of emnist-balanced: its 47 classes), loss softmax."""
    test_fraction: Real = Field(0.2, gt=0, lt=1)
    """Part of the images set aside as public test data: of all before silos are built; with split similarity of each
    silo's own."""
    pca: PcaConfig | None = None
    """Principal components in place of pixels; null: pixels."""

    @property
    def classes(self) -> int:
        """Classes that images have, numbered from 0."""
        return 10

    @property
    def label_values(self) -> tuple[int, ...]:
        """The classes, in the order of their numbers."""
        return tuple(range(self.classes)) if self.labels == "digit" else (0, 1)

    @property
    def public_fraction(self) -> float:
        """Part of the images set aside, before silos are built, to compute public constants."""
        return self.pca.fraction if self.pca is not None and self.pca.constants == "public" else 0.0

    @model_validator(mode="before")
    @classmethod
    def _similarity_has_defaults(cls, values: Any) -> Any:
        """A split by similarity without the section is one with its defaults: both are the same run."""
        if isinstance(values, dict) and values.get("split") == "similarity" and values.get("similarity") is None:
            return {**values, "similarity": {}}
        return values

    @model_validator(mode="after")
    def _keys_fit_the_split(self) -> ImageData:
        if self.split == "odd-even" and self.similarity is not None:
            raise ValueError("data.similarity has no meaning with split = odd-even: leave it out, or set data.split")
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
    folder: str
    """Where the IDX files are, plain or .gz; relative paths start at the working folder."""
    flavour: Flavour = "mnist"
    """Which files: mnist has 70,000 images, emnist-digits 280,000, emnist-mnist 70,000; emnist-balanced 112,800 of 47
    classes (its training file alone), for split similarity."""
    per_digit: Count | None = Field(None, ge=1)
    """Images of each digit (or class) that are used, drawn by the seed; null: all there are."""

    @property
    def classes(self) -> int:
        """Classes that images have, numbered from 0."""
        return CLASSES[self.flavour]

    @model_validator(mode="after")
    def _only_digits_are_odd_or_even(self) -> MnistData:
        if self.split == "odd-even" and self.classes != 10:
            raise ValueError(
                f"data.flavour = {self.flavour} has {self.classes} classes, which are no digits: set "
                "data.split = similarity and data.labels = digit"
            )
        return self


class SyntheticData(Section):
    """Logistic data made from a seed: silo l draws features around its own mean and labels from its own weights.

    With more than two classes the labels are multinomial logistic.
    """

    source: Literal["synthetic"] = "synthetic"
    silos: Count = Field(25, ge=1)
    records: Count = Field(400, ge=2)
    """Records of each silo."""
    features: Count = Field(20, ge=1)
    """Features of a record, without the bias column."""
    heterogeneity: Real = Field(1.0, ge=0)
    """Standard deviation of the silos' means and weights around the common ones; 0: all silos alike."""
    test_records: Count = Field(2000, ge=1)
    classes: Count = Field(2, ge=2, le=1000)
    """Classes of the label; more than two need the softmax loss."""

    @property
    def label_values(self) -> tuple[int, ...]:
        """The classes, in the order of their numbers."""
        return tuple(range(self.classes))


class AlphaBetaData(Section):
    """synthetic(alpha, beta) of the paper of DP-SCAFFOLD: each silo has a softmax-regression law of its own."""

    source: Literal["synthetic-alpha-beta"] = "synthetic-alpha-beta"
    silos: Count = Field(100, ge=1)
    records: Count = Field(5000, ge=3)
    """Records of each silo before its own split: with the default test_fraction it trains on 4,000."""
    test_fraction: Real = Field(0.2, gt=0, lt=1)
    """Part of each silo's records that is set aside; the union over silos is the public test set."""
    features: Count = Field(40, ge=1)
    """Features of a record, without the bias column; the j-th has variance j^-1.2 within a silo."""
    classes: Count = Field(10, ge=2, le=1000)
    """Classes of the label; more than two need the softmax loss."""
    alpha: Real = Field(0.0, ge=0)
    """Variance of the means around which a silo's weights are drawn, with variance 1: heterogeneity of models."""
    beta: Real = Field(0.0, ge=0)
    """Variance of the means around which a silo's mean record is drawn, with variance 1: heterogeneity of features."""
    flip: Real = Field(0.05, ge=0, le=1)
    """Probability that a label is replaced by one drawn from all classes."""
    standardise: Standardise = "none"
    """none; global: z-scores by all silos' training records; row-minmax: by single records of each silo, a mistake of
    the paper's code, to compare with it. Both are computed from records without noise: OUTSIDE OF THE GUARANTEE."""

    @property
    def label_values(self) -> tuple[int, ...]:
        """The classes, in the order of their numbers."""
        return tuple(range(self.classes))


class SiloFile(Section):
    """One silo's own file, at its own place."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")
    path: str
    """CSV (.csv) or Parquet (.parquet) file; relative paths start at the working folder."""


class FilesData(Section):
    """A user's own silos: one CSV or Parquet file per silo, with the same columns."""

    source: Literal["files"] = "files"
    silos: tuple[SiloFile, ...] = Field(min_length=1)
    features: tuple[str, ...] = Field(min_length=1)
    """Names of the feature columns, in the order of the model's weights."""
    label: str
    """Name of the label column."""
    classes: tuple[str | int, ...] | None = Field((0, 1), min_length=2)
    """The values that the label may take: of two, the first as -1 and the second as +1, more for the softmax loss; null
    for a real-valued label."""
    test: str | None = None
    """A public file with the same columns that no silo holds; without it no test error is reported."""
    divide_by: Real = Field(1.0, gt=0)
    """Public constant that all features are divided by before the bias column is appended."""

    @model_validator(mode="after")
    def _names_are_distinct(self) -> FilesData:
        names = [silo.name for silo in self.silos]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"silo name {name!r} is used twice")
        if len(set(self.features)) < len(self.features):
            raise ValueError("a feature is named twice")
        if self.label in self.features:
            raise ValueError(f"label {self.label!r} is also a feature")
        for value in self.classes or ():
            if self.classes is not None and self.classes.count(value) > 1:
                raise ValueError(f"two classes are equal: {value!r}")
        return self

    @property
    def label_values(self) -> tuple[str | int, ...] | None:
        """The classes, in the order of their numbers; None for a real-valued label."""
        return self.classes


DataConfig = Annotated[
    DigitsData | MnistData | SyntheticData | AlphaBetaData | FilesData, Field(discriminator="source")
]
