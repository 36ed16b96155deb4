"""A planted bug: an opener of silos, and replaced functions of the silo's code."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

from fedcore.ledger.memory import MemoryLedger
from fedcore.silo.private_silo import PrivateSilo
from tests.audit.audited_silos import KINDS, PLANNED

SILO = "fedcore.silo.private_silo."
VIEW = "fedcore.silo.round_view."
"""Module whose names most bugs replace."""


@dataclass(frozen=True)
class Planted:
    """A bug in the silos of a plan of this kind. `ledger` makes the ledger whose addresses are probed."""

    kind: str = "full batches"
    opener: Callable[..., PrivateSilo] | None = None
    patches: Mapping[str, Any] = field(default_factory=dict)
    ledger: Callable[[str], Any] = MemoryLedger

    @contextmanager
    def audited(self, seed):
        """The audited silo; the bug is planted while the context lasts."""
        chosen = {} if self.opener is None else {"opener": self.opener}
        with ExitStack() as planted:
            for target, replaced in self.patches.items():
                planted.enter_context(patch(target, replaced))
            yield {**KINDS, **PLANNED}[self.kind](seed, **chosen)
