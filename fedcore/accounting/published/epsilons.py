"""Epsilons and rounds that the published formulas claim for a given noise."""

from __future__ import annotations

from dataclasses import replace

from fedcore.accounting.published import noble
from fedcore.accounting.published.claims import FormulaInputs, PaperFormula
from fedcore.accounting.published.papers import PAPERS, published
from fedcore.accounting.rounds_search import most_rounds

TOWARDS_SERVER = {"noble-2022": "noble-2022-server", "noble-2022-numeric": "noble-2022-numeric-server"}
"""Formula towards the server, by that towards a third party, who sees a function of the server's view."""


def claims(name: str, inputs: FormulaInputs, sigma: float) -> dict[str, float]:
    """Epsilon that the named formula claims for sigma, by formula; the server's formula is added.

    A third party never learns more than the server, so its value is at most the server's. The published bound may
    exceed that (spec dp-scaffold, 5.8). `silos` and `silos_per_round` are facts of the federation: a formula without
    them is about one silo. Raises InputError like `published`.
    """
    return {one: min(view.epsilon(sigma) for view in views) for one, views in _views(name, inputs).items()}


def monotone_claim(name: str, inputs: FormulaInputs, sigma: float) -> float:
    """The smaller claim of the formula: for a sample, or for as many records without sampling.

    A sample reveals no more than an answer about all of its records. The published bound for samples exceeds that one
    where rates are near 1. The result does not fall as the rate grows, at fixed sigma and batch. Raises InputError like
    `claims`.
    """
    settings = [inputs]
    if inputs.sampling != "full":
        settings.append(replace(inputs, n=int(inputs.batch), sampling="full"))
    return min(claims(name, each, sigma)[name] for each in settings)


def largest_rounds(name: str, inputs: FormulaInputs, epsilon: float, sigma: float) -> dict[str, int]:
    """The largest number of rounds with `claims` at most epsilon, by formula; 0 if one is too many.

    `inputs.rounds` is ignored. Raises InputError like `published`, and if there is no bound below 10 million.
    """
    found = {one: _largest_rounds(one, inputs, epsilon, sigma) for one in _views(name, inputs)}
    return {one: max(rounds, found.get(TOWARDS_SERVER.get(one, ""), 0)) for one, rounds in found.items()}


def _largest_rounds(name: str, inputs: FormulaInputs, epsilon: float, sigma: float) -> int:
    if name in ("noble-2022-numeric", "noble-2022-numeric-server"):
        return noble.largest_rounds(inputs, epsilon, sigma, server=name.endswith("-server"))

    def keeps(rounds: int) -> bool:
        return published(name, _known(name, replace(inputs, rounds=rounds))).epsilon(sigma) <= epsilon

    return most_rounds(keeps)


def _views(name: str, inputs: FormulaInputs) -> dict[str, list[PaperFormula]]:
    own = published(name, _known(name, inputs))
    if name not in TOWARDS_SERVER:
        return {name: [own]}
    server = published(TOWARDS_SERVER[name], _known(TOWARDS_SERVER[name], inputs))
    return {name: [own, server], TOWARDS_SERVER[name]: [server]}


def _known(name: str, inputs: FormulaInputs) -> FormulaInputs:
    """The inputs without those about other silos that this formula does not use."""
    used = PAPERS[name].options if name in PAPERS else ()
    if "silos_per_round" in used:
        return inputs
    return replace(inputs, silos=inputs.silos if "silos" in used else 1, silos_per_round=None)
