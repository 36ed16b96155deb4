"""Methods: one file each. To add one: a file here and a line in ALGORITHMS; the contract tests then run it."""

from typing import Annotated

from pydantic import Field

from fedcore.algorithms.localized_accelerated import LocalizedAccelerated
from fedcore.algorithms.localized_mbsgd import LocalizedMbsgd
from fedcore.algorithms.mbsgd import Mbsgd
from fedcore.algorithms.one_pass_mbsgd import OnePassMbsgd

ALGORITHMS = {method.name: method for method in (LocalizedMbsgd, LocalizedAccelerated, OnePassMbsgd, Mbsgd)}

Algorithm = LocalizedMbsgd | LocalizedAccelerated | OnePassMbsgd | Mbsgd
AlgorithmConfig = Annotated[Algorithm, Field(discriminator="name")]

__all__ = [
    "ALGORITHMS",
    "Algorithm",
    "AlgorithmConfig",
    "LocalizedAccelerated",
    "LocalizedMbsgd",
    "Mbsgd",
    "OnePassMbsgd",
]
