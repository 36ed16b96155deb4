"""Generated silos of a configuration: their public sizes, their place on disk, the constants that prepare them."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedcore.arrays import Matrix
from fedcore.data import generators, layout, mnist
from fedcore.data.projection import Projection
from fedcore.data.silo_file import Constants, SiloSource, open_records
from fedcore.errors import InputError

if TYPE_CHECKING:
    from fedcore.config import DigitsData, MnistData, ModelConfig, SyntheticData

    GeneratedData = DigitsData | MnistData | SyntheticData

_STATEMENT = {
    "public": "computed from images that no silo holds",
    "simulation": "computed from all silos' records without noise: outside of every guarantee",
}


def silo_sizes(data: GeneratedData) -> dict[str, int]:
    """Records of each silo, by name and in order, before anything is generated.

    Of a folder of images the labels are read. Raises InputError for fractions that leave a silo empty, files that are
    missing or damaged, and more dimensions than the images for their constants can span.
    """
    if data.source == "synthetic":
        return dict.fromkeys(generators.synthetic_silo_names(data.silos), data.records)
    if data.source == "digits":
        shares = generators.digit_shares(data.test_fraction, data.public_fraction)
    else:
        shares = generators.mnist_shares(
            data.folder, data.flavour, data.per_digit, data.test_fraction, data.public_fraction
        )
    if data.public_fraction and data.pca is not None and data.pca.dimension >= sum(shares.public):
        raise InputError(
            f"data.pca.dimension = {data.pca.dimension}, but data.pca.fraction = {data.pca.fraction} sets aside "
            f"{sum(shares.public)} images for its constants, which vary in fewer directions; set more aside"
        )
    return shares.silo_sizes()


def feature_count(data: GeneratedData) -> int:
    """Features of a prepared record, without the bias. Raises InputError for more dimensions than pixels."""
    if data.source == "synthetic":
        return data.features
    rows, columns = (8, 8) if data.source == "digits" else mnist.image_shape(data.folder, data.flavour)
    if data.pca is None:
        return rows * columns
    if data.pca.dimension > rows * columns:
        raise InputError(
            f"data.pca.dimension = {data.pca.dimension} is more than the {rows * columns} pixels of an image"
        )
    return data.pca.dimension


def raw_scale(data: GeneratedData) -> float:
    """What raw features are divided by: grey values of MNIST lie in 0 to 255, the others are generated in scale."""
    return 255.0 if data.source == "mnist" else 1.0


def write(
    data: GeneratedData, model: ModelConfig, seed: int, root: Path, released: tuple[Constants, Projection] | None = None
) -> tuple[str, tuple[SiloSource, ...], SiloSource, Projection | None]:
    """The data set's name, its silos' sources in order, that of the test data, and the projection, if there is one.

    Written below `root` unless they are there. `released`: the constants, if they come from released statistics. Raises
    InputError as `silo_sizes` does, for images that vary in fewer directions than there are dimensions, and for a
    folder that cannot be written or holds something else.
    """
    sizes = silo_sizes(data)
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
            features=tuple(manifests[silo]["features"]),
            label="digit" if data.source != "synthetic" and data.labels == "digit" else manifests[silo]["label"],
            classes=data.label_values,
            bias=model.bias,
            feature_bound=model.feature_bound,
            divide_by=raw_scale(data),
            version=manifests[silo]["version"],
            class_ids=model.class_ids,
        )
        for silo in sizes
    )
    projection = None
    if data.source != "synthetic" and data.pca is not None:
        constants, projection = _constants(data, folder, sources, released)
        sources = tuple(replace(source, constants=constants) for source in sources)
    return name, sources, replace(sources[0], path=str(folder / "public" / "test.parquet")), projection


def _recipe(data: GeneratedData, seed: int) -> dict[str, Any]:
    """All that determines the raw records. How they are prepared, and which label is asked, is not part of it: their
    silos' accounts go on."""
    made = data.model_dump(mode="json", exclude={"pca", "folder", "labels"})
    if data.source != "synthetic" and data.public_fraction:
        made["public_fraction"] = data.public_fraction
    if data.source == "mnist":
        made["images"] = mnist.fingerprint(data.folder, data.flavour)
    return {"generator": generators.VERSION, "seed": seed, "data": made}


def _generate(data: GeneratedData, seed: int) -> generators.Generated:
    if data.source == "digits":
        return generators.digits(data.test_fraction, seed, data.public_fraction)
    if data.source == "mnist":
        return generators.mnist(
            data.folder, data.flavour, data.per_digit, data.test_fraction, seed, data.public_fraction
        )
    return generators.synthetic(
        data.silos, data.records, data.features, data.heterogeneity, data.test_records, seed, data.classes
    )


def _constants(
    data: DigitsData | MnistData,
    folder: Path,
    sources: tuple[SiloSource, ...],
    released: tuple[Constants, Projection] | None,
) -> tuple[Constants, Projection]:
    """Where the projection's constants are recorded, and the projection; computed unless they are there."""
    if data.pca is None or data.pca.constants == "released":
        if released is None:
            raise InputError(
                "data.pca.constants = released, but the silos have not released their statistics yet: `fedcore run` "
                "asks for them first (in a plain loop: fedcore.experiment.StatisticsRun)"
            )
        return released
    origin, dimension = data.pca.constants, data.pca.dimension
    if origin == "public":
        sources = (replace(sources[0], path=str(folder / "public" / "constants.parquet")),)
    path, projection = layout.write_projection(
        folder, origin, dimension, _STATEMENT[origin], lambda: Projection.fit(_raw(sources), dimension)
    )
    return Constants(os.path.abspath(path), projection.digest, origin, dimension), projection


def _raw(sources: tuple[SiloSource, ...]) -> Iterator[Matrix]:
    """Each source's features (n, d), divided by the public constant and nothing else."""
    for source in sources:
        yield open_records(replace(source, bias=False, feature_bound=sys.float_info.max)).X
