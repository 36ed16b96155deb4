"""Refusals that every form of ledger makes: over a cap, of another plan or lease, of a second or a late answer."""

from __future__ import annotations

from collections.abc import Iterable

from fedcore.accounting.filters import Cap, Charge
from fedcore.errors import SiloError
from fedcore.ledger.rows import Row

LEASE = "lease"
"""The code of the refusal of a driver that is not the newest of its run."""


def admit(silo: str, run: str, cap: Cap | None, before: Iterable[Charge], charge: Charge) -> None:
    """Raises SiloError unless the cap admits one more run with this charge; no cap admits all."""
    charges = list(before)
    if cap is not None and not cap.admits([*charges, charge]):
        raise SiloError(
            silo,
            "cap",
            f"its cap of epsilon {cap.epsilon:g} at delta {cap.delta:.3g} ({cap.rule}) has {cap.left(charges):.4g} "
            f"left (runs so far: {len(charges)}); run {run} asks for {charge.epsilon:.4g} at delta {charge.delta:.3g}",
        )


def same_plan(silo: str, run: str, known: str, plan: str) -> None:
    """Raises SiloError if a run comes back with another plan than it was approved with."""
    if known != plan:
        raise SiloError(
            silo,
            "plan",
            f"run {run} was approved with plan {known[:12]}, not with plan {plan[:12]}; it goes on with the plan that "
            f"was approved, or is ended by `fedcore budget close {run}`",
        )


def refuse_older(silo: str, run: str, known: int, lease: int) -> None:
    """Raises SiloError if a newer lease of the run is known than this one."""
    if type(lease) is not int or lease < known:
        raise superseded(silo, run, known, lease)


def refuse_others(silo: str, run: str, known: int, lease: int) -> None:
    """Raises SiloError unless the newest lease of the run that is known is this one."""
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
