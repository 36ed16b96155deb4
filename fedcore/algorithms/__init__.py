"""Methods, one file each. To add one: a file here and its import below; contract tests then run it."""

from typing import TYPE_CHECKING, Annotated, Any, Union

from pydantic import Field

from fedcore.algorithms.accelerated.accelerated_mbsgd import AcceleratedMbsgd
from fedcore.algorithms.accelerated.one_pass_accelerated_mbsgd import OnePassAcceleratedMbsgd
from fedcore.algorithms.differences.diff2 import Diff2
from fedcore.algorithms.differences.diff2_bvr import Diff2Bvr
from fedcore.algorithms.local_updates.fedavg import Fedavg
from fedcore.algorithms.local_updates.fedprox import Fedprox
from fedcore.algorithms.local_updates.fedsgd import Fedsgd
from fedcore.algorithms.local_updates.scaffold import Scaffold
from fedcore.algorithms.localized_accelerated import LocalizedAccelerated
from fedcore.algorithms.localized_mbsgd import LocalizedMbsgd
from fedcore.algorithms.localized_subgradient import LocalizedSubgradient
from fedcore.algorithms.mb_subgradient import MbSubgradient
from fedcore.algorithms.mbsgd import Mbsgd
from fedcore.algorithms.method import Method, Traits
from fedcore.algorithms.newton.dp_fcrn import DpFcrn
from fedcore.algorithms.newton.noised_newton import NoisedNewton
from fedcore.algorithms.one_pass_mbsgd import OnePassMbsgd
from fedcore.algorithms.statistics.column_moments import ColumnMoments
from fedcore.algorithms.statistics.largest_eigenvalue import LargestEigenvalue
from fedcore.algorithms.statistics.second_moments import SecondMoments

_imported: list[Any] = [kind for kind in globals().values() if isinstance(kind, type) and Traits in kind.__mro__]

METHODS: dict[str, Any] = {kind.name: kind for kind in _imported if kind not in (Traits, Method)}
"""Every method that is imported above, by name: the names that a silo's agreement may have."""

ALGORITHMS: dict[str, Any] = {name: method for name, method in METHODS.items() if method.trains}
"""Methods of training by name."""

if TYPE_CHECKING:
    AlgorithmConfig = Method[Any]
else:
    AlgorithmConfig = Annotated[Union[tuple(ALGORITHMS.values())], Field(discriminator="name")]  # noqa: UP007


def with_trait(trait: str) -> list[str]:
    """Names of the methods of training that declare this trait (`method.Traits`)."""
    return [name for name, method in ALGORITHMS.items() if getattr(method, trait)]
