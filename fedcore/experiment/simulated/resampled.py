"""Simulated silos with records drawn from a public file, on which `tune` tries settings."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedcore.data.cells import Refusal
from fedcore.data.labels import to_unit
from fedcore.data.schema import features
from fedcore.data.silo_file import SiloSource, labels_or_nan, read_table
from fedcore.data.sources.made_up.assumed import Made
from fedcore.errors import InputError
from fedcore.planning.problem import SiloFacts
from fedcore.randomness import draws

LEAST_RECORDS = 30
"""Least number of records of a public file; a third of them is the test set of a simulation."""


def public_records(source: SiloSource) -> Made:
    """The records of a public file with a schema, without those whose label does not fit.

    Raises InputError for a file that cannot be read, or has fewer than 30 records.
    """
    try:
        table = read_table(source)
    except Refusal as refusal:
        sentence = f"public file {source.path} {refusal.sentence}"
        raise InputError(sentence) from None
    labels = labels_or_nan(table, source)
    if source.label_range is not None:
        labels = to_unit(labels, source.label_range)
    known = ~np.isnan(labels)
    if known.sum() < LEAST_RECORDS:
        raise InputError(
            f"public file {source.path} has {known.sum()} records with a label that fits; settings are tried on at "
            f"least {LEAST_RECORDS}"
        )
    return Made(features(table, source.schema or ())[known], labels[known])


def resampled(public: Made, silos: Sequence[SiloFacts], seed: int) -> tuple[dict[str, Made], Made]:
    """Records by silo, drawn with replacement from two thirds of the public ones; the other third is the test set.

    The seed draws the split. All silos have one distribution: a public file does not show how silos differ.
    """
    rng = draws(b"fedcore made up", seed, len(public.labels), "resampled")
    order = rng.permutation(len(public.labels))
    test, pool = np.split(order, [len(order) // 3])
    made = {}
    for silo in silos:
        rows = rng.choice(pool, silo.n, replace=True)
        made[silo.name] = Made(public.features[rows], public.labels[rows])
    return made, Made(public.features[test], public.labels[test])
