"""The silos that joined a federation, as its coordinator's home holds their cards."""

from __future__ import annotations

from pathlib import Path

from fedcore.arrays import canonical_json, digest
from fedcore.data.federations.card import Card, read_card
from fedcore.data.federations.federation_data import FederationData
from fedcore.data.federations.preparation import Preparation
from fedcore.data.silo_file import SiloSource
from fedcore.errors import InputError
from fedcore.home import Home
from fedcore.models.model_config import ModelConfig

CARDS = "cards"


def joined(data: FederationData, model: ModelConfig) -> tuple[Card, ...]:
    """Cards of the silos that take part, in the order of the config, or of their names.

    Raises InputError for an unknown federation or silo, and for a silo that prepares its records otherwise.
    """
    folder = Home.current().federations / data.federation
    if not folder.is_dir():
        raise InputError(
            f"data.federation: there is no federation {data.federation} in {folder.parent}; `fedcore federation init` "
            "makes one"
        )
    found = {card.name: card for card in cards_in(folder)}
    names = sorted(found) if data.silos is None else data.silos
    if missing := [name for name in names if name not in found]:
        raise InputError(f"data.silos: {missing[0]} has not joined federation {data.federation}, or has been removed")
    if not names:
        raise InputError(
            f"data.federation: no silo has joined {data.federation} yet; `fedcore federation add FILE` takes a card"
        )
    wanted = Preparation.of(data, model)
    for name in names:
        if (fault := wanted.difference(found[name].preparation)) is not None:
            raise InputError(f"silo {name} prepares its records otherwise than data and model say: {fault}")
    return tuple(found[name] for name in names)


def cards_in(folder: Path) -> list[Card]:
    """The cards in a federation's folder, by name. Raises InputError for a file that is none."""
    return [read_card(path) for path in sorted((folder / CARDS).glob("*.card"))]


def sources_of(cards: tuple[Card, ...]) -> tuple[SiloSource, ...]:
    """Sources of these silos as the coordinator knows them: their files are elsewhere, and cannot be opened here."""
    return tuple(card.preparation.source(card.name, f"{card.name}.csv", card.version) for card in cards)


def name_of(cards: tuple[Card, ...]) -> str:
    """Name of the data set of these silos: another one if one of them has other records."""
    facts = [cards[0].federation, *(card.digest for card in cards)]
    return f"federation-{digest(canonical_json(facts).encode()).hex()[:16]}"
