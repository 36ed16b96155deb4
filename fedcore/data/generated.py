"""Generated silos of a configuration: public sizes, files, and constants of preparation."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedcore.arrays import Matrix
from fedcore.data import layout
from fedcore.data.constants.pca import Projection
from fedcore.data.data_config import GeneratedData
from fedcore.data.schema import feature_names
from fedcore.data.silo_file import Constants, Released, SiloSource, open_records
from fedcore.data.sources import (
    alpha_beta,
    generators,
    hospitals,
    libsvm,
    mnist,
    odd_even,
    regression,
    similarity,
    synthetic,
    teacher,
)
from fedcore.data.sources.images import DigitsData, MnistData
from fedcore.data.sources.made_up import simulated
from fedcore.data.sources.streams import silo_names
from fedcore.data.sources.tables import split as tables
from fedcore.data.table import Generated
from fedcore.errors import InputError
from fedcore.models.model_config import ModelConfig

Images = DigitsData | MnistData
_STATEMENT = {
    "public": "computed from images that no silo holds",
    "simulation": "computed from all silos' records without noise: outside of every guarantee",
}


def silo_sizes(data: GeneratedData, seed: int) -> dict[str, int]:
    """Records of each silo, by name and in order, before anything is generated.

    Reads the labels of a folder of images, the whole table of a regression, and the number of lines of other tables
    and files. Raises InputError for fractions that leave a silo empty, files that are missing or damaged, and more
    principal components than the images can span.
    """
    if data.source == "synthetic" or data.source == "teacher":
        return dict.fromkeys(silo_names(data.silos), data.records)
    if data.source == "synthetic-alpha-beta":
        return dict.fromkeys(silo_names(data.silos), alpha_beta.split_sizes(data.records, data.test_fraction)[0])
    if data.source == "hospitals":
        return {name: len(train) for name, (train, _) in hospitals.rows(data.split).items()}
    if data.source == "simulated":
        return data.sizes
    if data.source == "regression":
        return regression.silo_sizes(data)
    if data.source == "tables":
        return tables.silo_sizes(data)
    if data.source == "libsvm":
        return libsvm.silo_sizes(data)
    shares = _shares(data, seed)
    if data.public_fraction and data.pca is not None and data.pca.dimension >= sum(shares.public):
        raise InputError(
            f"data.pca.dimension = {data.pca.dimension}, but data.pca.fraction = {data.pca.fraction} sets aside "
            f"{sum(shares.public)} images for its constants, which vary in fewer directions; set more aside"
        )
    return shares.silo_sizes()


def feature_count(data: GeneratedData) -> int:
    """Features of a prepared record without the bias. Raises InputError for too many."""
    if data.source == "synthetic" or data.source == "synthetic-alpha-beta" or data.source == "teacher":
        return data.features
    if data.source == "libsvm":
        return data.features
    if data.source == "hospitals" or data.source == "simulated":
        return len(data.feature_names)
    if data.source == "regression":
        return len(data.described)
    if data.source == "tables":
        return len(feature_names(data.described))
    rows, columns = (8, 8) if data.source == "digits" else mnist.image_shape(data.folder, data.flavour)
    if data.pca is None:
        return rows * columns
    if data.pca.dimension > rows * columns:
        raise InputError(
            f"data.pca.dimension = {data.pca.dimension} is more than the {rows * columns} pixels of an image"
        )
    return data.pca.dimension


def raw_scale(data: GeneratedData) -> float:
    """Divisor of raw features: 255 for MNIST's grey values, 1 for the other sources."""
    return 255.0 if data.source == "mnist" else 1.0


def write(
    data: GeneratedData, model: ModelConfig, seed: int, root: Path, released: Released | None = None
) -> tuple[str, tuple[SiloSource, ...], SiloSource, Projection | None]:
    """Writes a data set below `root` unless it exists.

    Returns its name, the silos' sources in order, the test data's source, and the projection, or None for data without
    `pca`. `released`: the constants, if they come from released statistics. Raises InputError as `silo_sizes` does, for
    images that vary in too few directions, and for a folder that cannot be written or holds something else.
    """
    sizes = silo_sizes(data, seed)
    feature_count(data)
    recipe = _recipe(data, seed)
    name = layout.dataset_name(data.source, recipe)
    manifests = layout.write_generated(root, name, recipe, tuple(sizes), lambda: _generate(data, seed))
    folder = root / name
    if {silo: manifest["records"] for silo, manifest in manifests.items()} != sizes:
        raise InputError(
            f"data folder {folder}: does not hold the silos of its recipe; move it away and it is made again"
        )
    sources = tuple(
        SiloSource(
            name=silo,
            path=str(folder / silo / "records.parquet"),
            format="parquet",
            features=data.column_names if data.source == "hospitals" else tuple(manifests[silo]["features"]),
            label=_chosen_label(data) or manifests[silo]["label"],
            classes=data.label_values,
            bias=model.bias,
            feature_bound=model.feature_bound,
            divide_by=raw_scale(data),
            version=manifests[silo]["version"],
            class_ids=model.class_ids,
            labels=model.loss.labels,
            normalise=model.normalise,
            unprotected=unprotected(data),
            schema=data.described if data.source in ("hospitals", "regression", "tables", "simulated") else None,
            label_range=data.label_range if data.source in ("regression", "tables", "teacher", "simulated") else None,
        )
        for silo in sizes
    )
    projection = None
    if (data.source == "digits" or data.source == "mnist") and data.pca is not None:
        constants, projection = _constants(data, folder, sources, released)
        sources = tuple(replace(source, constants=constants) for source in sources)
    return name, sources, replace(sources[0], path=str(folder / "public" / "test.parquet")), projection


def unprotected(data: GeneratedData) -> bool:
    """True for sources that rescale or select silos' records by their contents without noise."""
    rescaled = data.source == "synthetic-alpha-beta" and data.standardise != "none"
    return rescaled or (data.source == "hospitals" and data.split == "flamby")


def test_parts(data: GeneratedData) -> tuple[tuple[str, int], ...]:
    """(silo, number) of test records by silo, in order; () if they are not by silo."""
    if data.source != "hospitals":
        return ()
    return tuple((name, len(test)) for name, (_, test) in hospitals.rows(data.split).items())


def _recipe(data: GeneratedData, seed: int) -> dict[str, Any]:
    """Everything that determines the raw records.

    Preparation and the choice of label are left out, so silos keep their accounts when these change.
    """
    if data.source == "hospitals":  # the records do not depend on the seed
        return {"data": {"source": data.source, "split": data.split}}
    made = data.model_dump(mode="json", exclude={"pca", "folder", "labels"})
    if (data.source == "digits" or data.source == "mnist") and data.public_fraction:
        made["public_fraction"] = data.public_fraction
    if (found := fingerprint(data)) is not None:
        made.pop("path", None)
        made[{"mnist": "images", "libsvm": "file"}.get(data.source, "records")] = found
    return {"generator": generators.VERSION, "seed": seed, "data": made}


def public_data_set(data: GeneratedData, seed: int) -> str | None:
    """Name of a data set from a public table or files, else None. Raises InputError."""
    return None if fingerprint(data) is None else layout.dataset_name(data.source, _recipe(data, seed))


def fingerprint(data: GeneratedData) -> str | None:
    """SHA-256 (hex) of the source's public table or files; None for a source without any.

    Raises InputError for files that cannot be used.
    """
    if data.source == "mnist":
        return mnist.fingerprint(data.folder, data.flavour)
    if data.source == "regression":
        return regression.fingerprint(data)
    if data.source == "tables":
        return tables.fingerprint(data)
    return libsvm.fingerprint(data) if data.source == "libsvm" else None


def _shares(data: Images, seed: int) -> odd_even.Shares | similarity.Shares:
    """Numbers of images for each silo, the test set and public constants; no image is read."""
    test, public = data.test_fraction, data.public_fraction
    if data.source == "digits":
        if data.similarity is None:
            return generators.digit_shares(test, public)
        return similarity.shares(generators.DIGIT_CLASS_COUNTS, data.similarity, test, seed, public)
    if data.similarity is None:
        return generators.mnist_shares(data.folder, data.flavour, data.per_digit, test, public)
    counts = generators.class_counts(data.folder, data.flavour)
    return similarity.shares(counts, data.similarity, test, seed, public, data.per_digit)


def _chosen_label(data: GeneratedData) -> str | None:
    """The label column, if it is not the file's first one: images in odd/even silos have two."""
    if data.source == "digits" or data.source == "mnist":
        return "digit" if data.split == "odd-even" and data.labels == "digit" else None
    return None


def _generate(data: GeneratedData, seed: int) -> Generated:
    if data.source == "hospitals":
        return hospitals.hospitals(data.split)
    if data.source == "regression":
        return regression.regression(data, seed)
    if data.source == "tables":
        return tables.tables(data, seed)
    if data.source == "libsvm":
        return libsvm.libsvm(data, seed)
    if data.source == "simulated":
        return simulated.simulated(data, seed)
    if data.source == "synthetic":
        return synthetic.synthetic(data, seed)
    if data.source == "teacher":
        return teacher.teacher(data, seed)
    if data.source == "synthetic-alpha-beta":
        return alpha_beta.alpha_beta(
            data.silos,
            data.records,
            data.test_fraction,
            data.features,
            data.classes,
            data.alpha,
            data.beta,
            data.flip,
            data.standardise,
            seed,
        )
    test, public = data.test_fraction, data.public_fraction
    if data.source == "digits":
        if data.similarity is None:
            return generators.digits(test, seed, public, data.homogeneity)
        return generators.similar_digits(data.similarity, test, seed, public)
    if data.similarity is None:
        return generators.mnist(data.folder, data.flavour, data.per_digit, test, seed, public, data.homogeneity)
    return generators.similar_mnist(data.folder, data.flavour, data.per_digit, data.similarity, test, seed, public)


def _constants(
    data: Images, folder: Path, sources: tuple[SiloSource, ...], released: Released | None
) -> tuple[Constants, Projection]:
    """The projection and the file that records it; computes it unless the file exists."""
    if data.pca is None or data.pca.constants == "released":
        if released is None or not isinstance(released[1], Projection):
            raise InputError(
                "data.pca.constants = released, but the silos have not released their statistics yet: `fedcore run` "
                "asks for them first (in a plain loop: fedcore.experiment.statistics_run.StatisticsRun)"
            )
        return released[0], released[1]
    origin, dimension = data.pca.constants, data.pca.dimension
    if origin == "public":
        sources = (replace(sources[0], path=str(folder / "public" / "constants.parquet")),)
    path, projection = layout.write_projection(
        folder, origin, dimension, _STATEMENT[origin], lambda: Projection.fit(_raw(sources), dimension)
    )
    return Constants(os.path.abspath(path), projection.digest, origin, dimension), projection


def _raw(sources: tuple[SiloSource, ...]) -> Iterator[Matrix]:
    """Each source's features (n, d) divided by the public constant, without further preparation."""
    for source in sources:
        yield open_records(replace(source, bias=False, feature_bound=sys.float_info.max)).X
