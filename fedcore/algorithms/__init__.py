"""Methods: one file each. To add one: a file here and a line in ALGORITHMS; the contract tests then run it."""

from typing import Annotated

from pydantic import Field

from fedcore.algorithms.fedavg import Fedavg
from fedcore.algorithms.fedprox import Fedprox
from fedcore.algorithms.fedsgd import Fedsgd
from fedcore.algorithms.localized_accelerated import LocalizedAccelerated
from fedcore.algorithms.localized_mbsgd import LocalizedMbsgd
from fedcore.algorithms.localized_subgradient import LocalizedSubgradient
from fedcore.algorithms.mb_subgradient import MbSubgradient
from fedcore.algorithms.mbsgd import Mbsgd
from fedcore.algorithms.one_pass_mbsgd import OnePassMbsgd
from fedcore.algorithms.scaffold import Scaffold
from fedcore.algorithms.second_moments import SecondMoments

ALGORITHMS = {
    method.name: method
    for method in (
        LocalizedMbsgd, LocalizedAccelerated, OnePassMbsgd, Mbsgd, LocalizedSubgradient, MbSubgradient, Scaffold,
        Fedavg, Fedprox, Fedsgd,
    )
}  # fmt: skip

Algorithm = (
    LocalizedMbsgd
    | LocalizedAccelerated
    | OnePassMbsgd
    | Mbsgd
    | LocalizedSubgradient
    | MbSubgradient
    | Scaffold
    | Fedavg
    | Fedprox
    | Fedsgd
)
AlgorithmConfig = Annotated[Algorithm, Field(discriminator="name")]

Agreed = Algorithm | SecondMoments
"""What silos can be asked to agree to: a method of training, or the release of statistics before it."""

METHODS: dict[str, type] = {kind.name: kind for kind in (*ALGORITHMS.values(), SecondMoments)}
"""The classes of `Agreed` by name."""

SUBGRADIENT = (LocalizedSubgradient.name, MbSubgradient.name)
"""Names of the methods that a loss with kinks may be given to; all others need a finite smoothness constant."""

LOCAL_STEPS = (Scaffold.name, Fedavg.name, Fedprox.name, Fedsgd.name)
"""Names of the methods whose silos answer several times in a round, about samples of fixed size."""

NONCONVEX = (Mbsgd.name, OnePassMbsgd.name, LocalizedMbsgd.name, *LOCAL_STEPS)
"""Names of the methods that a model without convexity may be given to: their steps are given, not derived from it."""

__all__ = [
    "ALGORITHMS",
    "LOCAL_STEPS",
    "METHODS",
    "NONCONVEX",
    "SUBGRADIENT",
    "Agreed",
    "Algorithm",
    "AlgorithmConfig",
    "Fedavg",
    "Fedprox",
    "Fedsgd",
    "LocalizedAccelerated",
    "LocalizedMbsgd",
    "LocalizedSubgradient",
    "MbSubgradient",
    "Mbsgd",
    "OnePassMbsgd",
    "Scaffold",
    "SecondMoments",
]
