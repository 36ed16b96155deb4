"""Refusals of every ledger: a charge over a cap, another plan or lease, a second answer, an answer after closing."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from fedcore.accounting.filters import Cap, Charge
from fedcore.directed_rounding import in_full, shown_down, shown_up
from fedcore.errors import SiloError
from fedcore.ledger.rows import Row
from fedcore.planning.problem import unit_of

LEASE = "lease"
"""Error code of the refusal of a driver that is not the newest of its run."""


def admit(
    silo: str, run: str, cap: Cap | None, before: Iterable[Charge], charge: Charge, order: float | None = None
) -> None:
    """Raises SiloError unless the cap admits one more run with this charge; no cap admits all.

    `order`: of the account's Renyi filter; None: this is its first cap.
    """
    charges = list(before)
    if cap is not None and not cap.admits([*charges, charge], order):
        left = cap.left(charges, order)
        raise SiloError(
            silo,
            "cap",
            f"its cap of epsilon {in_full(cap.epsilon)} at delta {shown_up(cap.delta, 3)} ({cap.rule}) has "
            f"{shown_down(left)} left (runs so far: {len(charges)}); run {run} asks for "
            f"{shown_up(charge.epsilon)} at delta {shown_up(charge.delta, 3)}{of_samples(cap, charges, charge, order)}",
        )


def of_samples(cap: Cap, before: Sequence[Charge], charge: Charge, order: float | None) -> str:
    """The part of a refusal on how the cap's rule counts: samples under `gdp`, and divergences of newer formulas."""
    at = cap.order if order is None else order
    every = [*before, charge]
    if cap.rule == "rdp" and any(math.isinf(each.rho(at)) and math.isfinite(each.mu_squared) for each in every):
        return "; a newer version of fedcore has charged runs, at divergences that this one does not know"
    if cap.rule != "gdp" or not any(each.pieces for each in every):
        return ""
    fits = "and has room for it" if replace(cap, rule="rdp").admits(every, order) else "and has no room for it either"
    return f"; gdp counts a sample as all records, rule rdp counts it as a sample, {fits}"


def same_plan(silo: str, run: str, known: str, plan: str) -> None:
    """Raises SiloError if a run returns with another plan than the approved one."""
    if known != plan:
        raise SiloError(
            silo,
            "plan",
            f"run {run} was approved with plan {known[:12]}, not with plan {plan[:12]}; it goes on with the plan that "
            f"was approved, or is ended by `fedcore budget close {run}`",
        )


def refuse_older(silo: str, run: str, known: int, lease: int) -> None:
    """Raises SiloError if a newer lease of the run is known."""
    if type(lease) is not int or lease < known:
        raise superseded(silo, run, known, lease)


def refuse_others(silo: str, run: str, known: int, lease: int) -> None:
    """Raises SiloError unless this lease is the newest known one of the run."""
    refuse_older(silo, run, known, lease)
    if lease > known:
        raise SiloError(silo, "plan", f"it has not approved run {run} under lease {lease}")


def superseded(silo: str, run: str, known: int, lease: int) -> SiloError:
    """The refusal of a driver that is not the newest of its run."""
    mine = f"lease {lease}" if type(lease) is int and lease else "none"
    sentence = f"run {run} goes on under lease {known}, which a later driver took; who asks has {mine}, and is refused"
    return SiloError(silo, LEASE, sentence)


def committed_before(silo: str, run: str, row: Row) -> SiloError:
    """The refusal of a second answer at one address."""
    return SiloError(
        silo, "committed", f"round {row.phase}.{row.round} of run {run} is committed already with another answer"
    )


def closed_before(silo: str, run: str) -> SiloError:
    """The refusal of a new answer in a run that has ended."""
    sentence = f"run {run} is closed in its ledger and gets no new answer; another `repetition` makes a new run"
    return SiloError(silo, "closed", sentence)


def other_unit(silo: str, run: str, path: Path, units: tuple[str | None, str | None], elsewhere: str) -> SiloError:
    """The refusal of a run whose charge has another unit than the account's; `units`: the account's, the run's."""
    held, person = units
    go_on = "Leave out data.person" if held is None else f"Go on with data.person = {held!r}"
    sentence = (
        f"its ledger {path} is charged for {unit_of(held)}, for good, and run {run} asks for a charge for "
        f"{unit_of(person)}: neither bounds what is spent on the other. {go_on}{elsewhere}"
    )
    return SiloError(silo, "unit", sentence)
