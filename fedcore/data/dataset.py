"""Silos of a configuration: their public facts for planning, and their sources for running."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedcore.arrays import canonical_json, digest, plain_json
from fedcore.data import generated, layout
from fedcore.data.constants.pca import Projection
from fedcore.data.constants.scaling import ReleasedScaling, Scales
from fedcore.data.data_config import DataConfig, GeneratedData
from fedcore.data.federations.federation_data import FederationData
from fedcore.data.federations.joined import joined, name_of, sources_of
from fedcore.data.file_sources import file_sources, public_source
from fedcore.data.inspection import check_contents, inspected
from fedcore.data.records import Records
from fedcore.data.silo_file import Released, SiloSource, count_records, open_records
from fedcore.data.tabular import FilesData
from fedcore.errors import InputError, SiloError
from fedcore.models.model_config import ModelConfig
from fedcore.planning.problem import SiloFacts

__all__ = ["Dataset", "SiloFacts", "facts", "prepare", "validate"]

_LISTED = 5  # silos that one error lists


@dataclass(frozen=True, eq=False)
class Dataset:
    """Sources of silos that can be opened, and the public test set.

    `dim` counts the features of a prepared record, with the bias column if there is one. `feature_names` are those of
    the files; `divide_by` and `projection` prepare them (`records.prepare_records`). `test_parts`: (silo, number) of
    the test records from each silo's distribution, in order; () if they are not by silo.
    """

    name: str
    sources: tuple[SiloSource, ...]
    facts: tuple[SiloFacts, ...]
    dim: int
    feature_names: tuple[str, ...]
    divide_by: float
    projection: Projection | None
    test: Records | None
    test_parts: tuple[tuple[str, int], ...] = ()

    @property
    def constants(self) -> str | None:
        """SHA-256 (hex) of preparation constants from outside the config; else None."""
        if self.projection is not None:
            return self.projection.digest
        first = self.sources[0] if self.sources else None
        return None if first is None or self.name != layout.FILES else constants_digest(first)


def constants_digest(source: SiloSource) -> str | None:
    """SHA-256 (hex) of the schema and whitening of a user's file; None without a schema."""
    if source.schema is None:
        return None
    found: list[Any] = [column.model_dump(mode="json") for column in source.schema]
    if source.whitening is not None:
        found.append(source.whitening.model_dump(mode="json"))
    return digest(plain_json(found)).hex()


def facts(
    data: DataConfig, model: ModelConfig, seed: int, sizes: Mapping[str, int] | None = None
) -> tuple[tuple[SiloFacts, ...], int]:
    """Public facts of the silos in order, and features of a prepared record, bias included.

    `sizes`: silos' sizes in an ended run, which replace the present ones. Writes nothing. Of a federation it reads
    the silos' cards. Of a user's files it reads
    the columns' names and the number of rows, and the column of persons where these are the unit; of images the labels.
    Raises InputError for the faults of `prepare` that these show.
    """
    bias = int(model.bias)
    if data.source == "federation":
        if sizes is not None:  # of an ended run, whose silos may have left
            return tuple(SiloFacts(name, n) for name, n in sizes.items()), len(data.feature_names) + bias
        cards = joined(data, model)
        return tuple(SiloFacts(card.name, card.records) for card in cards), len(data.feature_names) + bias
    if data.source == "files":
        features = len(data.feature_names) + bias
        if sizes is not None and all(silo.name in sizes for silo in data.silos):  # their files may be gone
            return tuple(SiloFacts(silo.name, sizes[silo.name]) for silo in data.silos), features
        return _each(file_sources(data, model), count_records), features
    found = generated.silo_sizes(data, seed) | dict(sizes or {})
    return tuple(SiloFacts(name, n) for name, n in found.items()), generated.feature_count(data) + bias


def prepare(
    data: DataConfig, model: ModelConfig, seed: int, silo_root: Path, released: Released | None = None
) -> Dataset:
    """Prepares the data set: writes missing generated silos, or checks a user's files.

    Generated silos lie below `silo_root`. `released`: the constants, if the config takes them from released statistics.
    Raises InputError for files that cannot be used (all silos are opened before one is registered; at most five are
    listed), a file named twice, a test file that does not fit, and a folder that cannot be written.
    """
    root = silo_root.absolute()
    if data.source == "federation":
        return _prepare_federation(data, model)
    if data.source == "files":
        return _prepare_files(data, model, root, released)
    return _prepare_generated(data, model, seed, root, released)


def check_test(data: DataConfig, model: ModelConfig) -> list[str]:
    """Opens the public test file, if there is one. Raises InputError with all of its faults.

    Returns doubts about a file that can be used, for instance columns in which no cell fits.
    """
    if not isinstance(data, FilesData | FederationData) or data.test is None:
        return []
    first = file_sources(data, model)[0] if data.source == "files" else sources_of(joined(data, model))[0]
    source = public_source(first, data.test, "data.test")
    _open_test(source)
    return [f"data.test: file {source.path}: {sentence}" for sentence in inspected(source).doubts]


def records_of(data: DataConfig) -> str:
    """Identity of a config's records, whatever their preparation, label column, or folder.

    Raises InputError for public files that cannot be used.
    """
    if data.source == "federation":
        return canonical_json([data.source, data.federation, data.silos, data.person])
    if data.source != "files" and (found := generated.fingerprint(data)) is not None:
        fraction = data.public_fraction if data.source == "mnist" else None
        # The folder is left out: copies of its files are the same records, with the same accounts.
        return f"{data.model_dump_json(exclude={'pca', 'labels', 'folder', 'path'})} {fraction} {found}"
    if data.source == "digits":
        return f"{data.model_dump_json(exclude={'pca', 'labels'})} {data.public_fraction}"
    if not is_seeded(data):
        # The silo's name completes the identity, as it does for the silo's account, which has one unit for good.
        return data.source if data.source != "files" or data.person is None else f"{data.source} {data.person!r}"
    return data.model_dump_json(exclude={"standardise"})


def is_seeded(data: DataConfig) -> bool:
    """True for sources whose records depend on the seed."""
    return data.source not in ("hospitals", "files", "federation")


def validate(sources: Sequence[SiloSource]) -> tuple[SiloFacts, ...]:
    """Facts of silos after reading each file in full; counts persons if these are the unit.

    Raises one InputError with the first fault of each silo, for at most five silos. All contents that do not fit a
    schema have one code.
    """
    return _each(sources, check_contents)


def _each(sources: Sequence[SiloSource], count: Callable[[SiloSource], int]) -> tuple[SiloFacts, ...]:
    found: list[SiloFacts] = []
    faults: list[str] = []
    reasons: set[str] = set()
    for source in sources:
        try:
            found.append(SiloFacts(source.name, count(source)))
        except SiloError as error:
            faults.append(str(error))
            reasons.add(error.sentence.replace(source.path, ""))
    if faults:
        head = f"{len(faults)} of {len(sources)} silos cannot be used"
        if len(reasons) == 1:  # one reason for all files is most likely one mistake in the config
            raise InputError(f"{head}{', for one reason' * (len(faults) > 1)}: {faults[0]}")
        more = [f"and {len(faults) - _LISTED} more"] if len(faults) > _LISTED else []
        raise InputError("\n  ".join([head + ":", *faults[:_LISTED], *more]))
    return tuple(found)


def _prepare_generated(
    data: GeneratedData, model: ModelConfig, seed: int, root: Path, released: Released | None
) -> Dataset:
    name, sources, test, projection = generated.write(data, model, seed, root, released)
    sizes = generated.silo_sizes(data, seed)
    return Dataset(
        name=name,
        sources=sources,
        facts=tuple(SiloFacts(silo, n) for silo, n in sizes.items()),
        dim=sources[0].dim,
        feature_names=sources[0].features,
        divide_by=sources[0].divide_by,
        projection=projection,
        test=_open_test(test),
        test_parts=generated.test_parts(data),
    )


def _prepare_files(data: FilesData, model: ModelConfig, root: Path, released: Released | None) -> Dataset:
    sources = file_sources(data, model)
    if isinstance(data.scaling, ReleasedScaling):
        if released is None or not isinstance(released[1], Scales):
            raise InputError(
                "data.scaling.constants = released, but the silos have not released their statistics yet: `fedcore "
                "run` asks for them first (in a plain loop: fedcore.experiment.statistics_run.StatisticsRun)"
            )
        ranged, limit = data.described or (), data.scaling.limit
        described, whitening = released[1](ranged, limit), released[1].whitening(ranged, limit)
        sources = tuple(replace(source, schema=described, whitening=whitening) for source in sources)
    found = validate(sources)
    test = None if data.test is None else _open_test(public_source(sources[0], data.test, "data.test"))
    return Dataset(
        name=layout.FILES,
        sources=tuple(replace(s, version=layout.register_file(root, s.name, s.path)) for s in sources),
        facts=found,
        dim=len(data.feature_names) + int(model.bias),
        feature_names=data.column_names,
        divide_by=data.divide_by,
        projection=None,
        test=test,
    )


def _prepare_federation(data: FederationData, model: ModelConfig) -> Dataset:
    cards = joined(data, model)
    sources = sources_of(cards)
    return Dataset(
        name=name_of(cards),
        sources=sources,
        facts=tuple(SiloFacts(card.name, card.records) for card in cards),
        dim=sources[0].dim,
        feature_names=data.column_names,
        divide_by=data.divide_by,
        projection=None,
        test=None if data.test is None else _open_test(public_source(sources[0], data.test, "data.test")),
    )


def _open_test(source: SiloSource) -> Records:
    """Records of the public test file. Raises InputError with all of its faults."""
    try:
        records = open_records(replace(source, clip_label=False))
    except SiloError as error:
        faults = [error.sentence]
    else:
        faults = [] if source.schema is None else inspected(source).faults
        if not faults:
            return records
        head = f"file {source.path} does not fit:"
        faults = [f"{head} {faults[0]}"] if len(faults) == 1 else [head, *faults]
    raise InputError("\n  ".join([f"data.test: {faults[0]}", *faults[1 : _LISTED + 1]]))
