"""Sources of silos from a user's files: one silo per file, and the schema of preparation."""

from __future__ import annotations

import os
from dataclasses import replace

from fedcore.data.constants.public_scales import scaled
from fedcore.data.constants.scaling import PublicScaling, ReleasedScaling, expected
from fedcore.data.constants.whitening import Whitening
from fedcore.data.federations.preparation import Preparation
from fedcore.data.schema import Schema
from fedcore.data.silo_file import SiloSource, format_of
from fedcore.data.tabular import FilesData, Tabular
from fedcore.errors import InputError
from fedcore.models.model_config import ModelConfig


def file_sources(data: FilesData, model: ModelConfig) -> tuple[SiloSource, ...]:
    """Sources of a user's files, not yet registered. Raises InputError for a file named twice.

    With released constants, which are not known here, columns keep their ranges.
    """
    owner: dict[object, str] = {}
    for silo in data.silos:
        path = os.path.abspath(silo.path)
        first = owner.setdefault(_file_identity(path), silo.name)
        if first != silo.name:
            raise InputError(
                f"data.silos: {first!r} and {silo.name!r} name the same file {path}; "
                "a record may belong to one silo only"
            )
    public = {"data.test": data.test}
    if isinstance(data.scaling, PublicScaling):
        public["data.scaling.path"] = data.scaling.path
    for key, given in public.items():
        if given is not None and (holder := owner.get(_file_identity(os.path.abspath(given)))) is not None:
            raise InputError(
                f"{key}: file {os.path.abspath(given)} is the file of silo {holder!r}; it must be of public records "
                "that no silo holds"
            )
    features = data.feature_names
    if twice := [name for name in dict.fromkeys(features) if features.count(name) > 1]:
        raise InputError(
            f"data.features: two columns become one feature {twice[0]!r}, a category of one and another column; give "
            "one of them another name"
        )
    described, whitening = schema_beforehand(data)
    preparation = Preparation.of(data, model)
    return tuple(
        replace(
            preparation.source(silo.name, os.path.abspath(silo.path), key=f"data.silos, {silo.name!r}"),
            schema=described,
            whitening=whitening,
        )
        for silo in data.silos
    )


def schema_beforehand(data: Tabular) -> tuple[Schema | None, Whitening | None]:
    """As `schema_of`, but with ranges in place of constants that silos have yet to release."""
    awaited = isinstance(data, FilesData) and isinstance(data.scaling, ReleasedScaling)
    return (data.described, None) if awaited else schema_of(data)


def schema_of(data: Tabular) -> tuple[Schema | None, Whitening | None]:
    """The schema and the whitening that prepare records; None for columns that are only named.

    Constants come from the public file if the config names one; `expected` ones stand for released constants. Raises
    InputError for a public file that cannot be used.
    """
    described = data.described
    if described is None or not isinstance(data, FilesData) or data.scaling is None:
        return described, None
    if isinstance(data.scaling, ReleasedScaling):
        return expected(described, data.scaling)
    return scaled(described, data.scaling, format_of(data.scaling.path, "data.scaling.path"))


def public_source(silo: SiloSource, path: str, key: str) -> SiloSource:
    """Source of a public file, prepared as records of `silo`. Raises InputError naming `key`."""
    path = os.path.abspath(path)
    return replace(silo, name="public", path=path, format=format_of(path, key), person=None)


def _file_identity(path: str) -> object:
    """Identity of a file: equal for all its paths, also through links."""
    try:
        found = os.stat(path)
    except OSError:
        return os.path.realpath(path)
    return found.st_dev, found.st_ino
