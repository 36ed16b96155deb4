"""Config section of silos that joined a federation: each holds its table itself, and this machine reads none."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from fedcore.data.tabular import OwnTable
from fedcore.identity.envelope import PARTY
from fedcore.paths import LocalPath


class FederationData(OwnTable):
    """Silos of a federation, whose cards the coordinator has added. All describe their columns as this section does."""

    source: Literal["federation"] = "federation"
    federation: str = Field(pattern=PARTY)
    """Name of the federation, as `fedcore federation init` made it in this home."""
    silos: tuple[str, ...] | None = Field(None, min_length=1)
    """Names of the silos that take part; null: all that have joined when the run is planned."""
    test: LocalPath | None = None
    """A public file with the same columns that no silo holds; without it no test error is reported."""

    @model_validator(mode="after")
    def _names_are_distinct(self) -> FederationData:
        for name in self.silos or ():
            if (self.silos or ()).count(name) > 1:
                raise ValueError(f"data.silos names {name!r} twice")
        return self
