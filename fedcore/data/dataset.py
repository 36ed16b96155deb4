"""From a configuration to silos: their public facts for planning, then their sources for running."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from fedcore.data import generators, layout
from fedcore.data.records import Records
from fedcore.data.silo_file import SiloSource, count_records, format_of, open_records
from fedcore.errors import InputError, SiloError
from fedcore.problem import SiloFacts

if TYPE_CHECKING:
    from fedcore.config import DataConfig, DigitsData, FilesData, ModelConfig, SyntheticData

__all__ = ["Dataset", "SiloFacts", "facts", "prepare", "validate"]

_LISTED = 5  # silos that one error lists


@dataclass(frozen=True, eq=False)
class Dataset:
    """Silos that are ready to be opened, and the public test set.

    `dim` counts the bias column if there is one; `feature_names` are those of the files, without it.
    """

    name: str
    sources: tuple[SiloSource, ...]
    facts: tuple[SiloFacts, ...]
    dim: int
    feature_names: tuple[str, ...]
    test: Records | None


def facts(data: DataConfig, model: ModelConfig, seed: int) -> tuple[tuple[SiloFacts, ...], int]:
    """Public facts of the silos in order, and the dimension of the model (bias included).

    Writes nothing; of a user's files only the columns' names and the number of rows are looked at. Raises
    InputError as `prepare` does, as far as that shows.
    """
    bias = int(model.bias)
    if data.source == "files":
        sources = _file_sources(data, model)
        return _each(sources, count_records), len(data.features) + bias
    sizes = _generated_sizes(data)
    dim = 64 if data.source == "digits" else data.features
    return tuple(SiloFacts(name, n) for name, n in sizes.items()), dim + bias


def prepare(data: DataConfig, model: ModelConfig, seed: int, silo_root: Path) -> Dataset:
    """The data set: generated silos written below `silo_root` unless they are there, a user's files checked.

    Raises InputError: files that cannot be used (all silos are opened before anything is registered; at most
    five are listed), a file named twice, a test file that does not fit, a folder that cannot be written.
    """
    root = silo_root.absolute()
    if data.source == "files":
        return _prepare_files(data, model, root)
    return _prepare_generated(data, model, seed, root)


def validate(sources: Sequence[SiloSource]) -> tuple[SiloFacts, ...]:
    """Facts of silos whose files were each opened and read in full.

    Raises one InputError with the first fault of each silo, for at most five of them.
    """
    return _each(sources, lambda source: open_records(source).n)


def _each(sources: Sequence[SiloSource], count: Callable[[SiloSource], int]) -> tuple[SiloFacts, ...]:
    found: list[SiloFacts] = []
    faults: list[str] = []
    for source in sources:
        try:
            found.append(SiloFacts(source.name, count(source)))
        except SiloError as error:
            faults.append(str(error))
    if faults:
        more = [f"and {len(faults) - _LISTED} more"] if len(faults) > _LISTED else []
        head = f"{len(faults)} of {len(sources)} silos cannot be used"
        raise InputError("\n  ".join([head + ":", *faults[:_LISTED], *more]))
    return tuple(found)


def _prepare_generated(
    data: DigitsData | SyntheticData, model: ModelConfig, seed: int, root: Path
) -> Dataset:
    sizes = _generated_sizes(data)
    recipe = {"generator": generators.VERSION, "seed": seed, "data": data.model_dump(mode="json")}
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
            label=manifests[silo]["label"],
            classes=(0, 1),
            bias=model.bias,
            feature_bound=model.feature_bound,
            divide_by=1.0,
            version=manifests[silo]["version"],
        )
        for silo in sizes
    )
    return Dataset(
        name=name,
        sources=sources,
        facts=tuple(SiloFacts(silo, n) for silo, n in sizes.items()),
        dim=len(sources[0].features) + int(model.bias),
        feature_names=sources[0].features,
        test=_open_test(replace(sources[0], path=str(folder / "public" / "test.parquet"))),
    )


def _generated_sizes(data: DigitsData | SyntheticData) -> dict[str, int]:
    if data.source == "digits":
        return generators.digit_silo_sizes(data.test_fraction)
    return dict.fromkeys(generators.synthetic_silo_names(data.silos), data.records)


def _generate(data: DigitsData | SyntheticData, seed: int) -> generators.Generated:
    if data.source == "digits":
        return generators.digits(data.test_fraction, seed)
    return generators.synthetic(
        data.silos, data.records, data.features, data.heterogeneity, data.test_records, seed
    )


def _prepare_files(data: FilesData, model: ModelConfig, root: Path) -> Dataset:
    sources = _file_sources(data, model)
    found = validate(sources)
    test = None
    if data.test is not None:
        path = os.path.abspath(data.test)
        test = _open_test(replace(sources[0], path=path, format=format_of(path, "data.test")))
    return Dataset(
        name=layout.FILES,
        sources=tuple(replace(s, version=layout.register_file(root, s.name, s.path)) for s in sources),
        facts=found,
        dim=len(data.features) + int(model.bias),
        feature_names=data.features,
        test=test,
    )


def _file_sources(data: FilesData, model: ModelConfig) -> tuple[SiloSource, ...]:
    """Sources of a user's files, not yet registered; InputError if two of them, or the test, are one file."""
    owner: dict[object, str] = {}
    sources: list[SiloSource] = []
    for silo in data.silos:
        path = os.path.abspath(silo.path)
        first = owner.setdefault(_file_identity(path), silo.name)
        if first != silo.name:
            raise InputError(
                f"data.silos: {first!r} and {silo.name!r} name the same file {path}; "
                "a record may belong to one silo only"
            )
        sources.append(
            SiloSource(
                name=silo.name,
                path=path,
                format=format_of(path, f"data.silos, {silo.name!r}"),
                features=data.features,
                label=data.label,
                classes=data.classes,
                bias=model.bias,
                feature_bound=model.feature_bound,
                divide_by=data.divide_by,
                version="",
            )
        )
    if data.test is not None:
        holder = owner.get(_file_identity(os.path.abspath(data.test)))
        if holder is not None:
            raise InputError(
                f"data.test: file {os.path.abspath(data.test)} is the file of silo {holder!r}; "
                "test data must be public records that no silo holds"
            )
    return tuple(sources)


def _file_identity(path: str) -> object:
    """Equal for two paths of one file, also through links."""
    try:
        found = os.stat(path)
    except OSError:
        return os.path.realpath(path)
    return found.st_dev, found.st_ino


def _open_test(source: SiloSource) -> Records:
    try:
        return open_records(source)
    except SiloError as error:
        sentence = error.sentence
    raise InputError(f"data.test: {sentence}")
