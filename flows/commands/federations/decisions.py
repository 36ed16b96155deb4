"""`silo approve | refuse | pause`: decisions of a silo's operator, beside the policy's."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from flows.commands.arguments import console

if TYPE_CHECKING:
    from fedcore.planning.plan import Plan
    from fedcore.silo.agreement import Agreement
    from fedcore.silo.policies.decisions import Decisions

LEAST_DIGITS = 12
"""Hex digits by which an operator names terms, at least."""

Run = Annotated[str, typer.Argument(help="a run that the silo was asked for; `fedcore silo show` lists them")]
Silo = Annotated[str | None, typer.Option("--silo", help="the silo, where several of this machine have joined")]
Digest = Annotated[
    str | None, typer.Option(help=f"{LEAST_DIGITS} digits or more of the terms' digest; else the terminal asks")
]


def approve(run: Run, digest: Digest = None, silo: Silo = None) -> None:
    """Let RUN begin, after a look at the plan that this machine makes of it. Policy and cap must allow it besides."""
    from fedcore.errors import InputError
    from fedcore.printable import on_terminal

    decisions = _decisions(silo)
    agreement = next((each for each in asked(decisions) if each.run == run), None)
    verdict = decisions.verdict(run)
    if agreement is None and verdict is not None and verdict.terms is None:
        decisions.withdraw(run)
        console.print_plain(f"run {run} is refused no more; it waits here for a decision as soon as it asks again")
        return
    if agreement is None:
        raise InputError(f"no run {run} waits for a decision here; `fedcore silo show` lists those that do")
    plan, terms = _planned(agreement)
    _show(agreement, plan, terms)
    if digest is None:
        if not sys.stdin.isatty():
            raise InputError(f"give --digest {terms[:LEAST_DIGITS]} to agree to these terms")
        digest = input(on_terminal(f"First {LEAST_DIGITS} digits of the digest, to approve run {run}: "))
    typed = digest.strip()
    if len(typed) < LEAST_DIGITS or not terms.startswith(typed):
        raise InputError(
            f"the terms of run {run} have the digest {terms[:LEAST_DIGITS]}, not {typed[:64]!r}; nothing was approved"
        )
    decisions.decide(run, terms)
    console.print_plain(f"run {run} is approved with terms {terms[:LEAST_DIGITS]}; other terms need another approval")


def refuse(run: Run, silo: Silo = None) -> None:
    """Refuse RUN: it does not begin; one that has begun gets no new answer. What was released stays charged."""
    _decisions(silo).decide(run, None)
    console.print_plain(f"run {run} is refused: it gets no new answer")


def pause(silo: Silo = None, end: Annotated[bool, typer.Option("--end", help="answer again")] = False) -> None:
    """Answer nothing new, in any run, until `pause --end`. Coordinators' runs wait meanwhile."""
    _decisions(silo).pause(not end)
    console.print_plain("it answers again" if end else "it answers nothing new until `fedcore silo pause --end`")


def asked(decisions: Decisions) -> list[Agreement]:
    """The runs that wait for a decision. Raises InputError for a file of one that was changed."""
    from fedcore.errors import InputError
    from fedcore.silo.agreement import Agreement

    try:
        return [Agreement.from_bytes(data) for data in decisions.asked()]
    except ValueError as error:
        raise InputError(f"{decisions.folder}: a run that waits for a decision cannot be read: {error}") from None


def _decisions(silo: str | None) -> Decisions:
    from fedcore.home import Home
    from fedcore.remote.membership import Membership
    from fedcore.silo.policies.decisions import Decisions

    return Decisions.of(Membership.of(Home.current(), silo).name)


def _planned(agreement: Agreement) -> tuple[Plan, str]:
    """The plan that this machine makes, and the digest of the terms. Raises InputError."""
    from fedcore.noise_cache import NoiseFolder
    from fedcore.silo.agreement import own_plan, terms

    plan, digest, _ = own_plan(agreement, NoiseFolder.current())
    return plan, terms(digest, agreement.method, agreement.loss)


def _show(agreement: Agreement, plan: Plan, terms: str) -> None:
    from dataclasses import asdict
    from typing import Any

    from fedcore.directed_rounding import in_full, shown_up
    from flows.commands.noise.phases import phase_rows, phase_table

    console.print(phase_table(agreement.run, [row for phase in plan.phases for row in phase_rows(phase)]))
    problem = plan.problem
    budget, smallest = problem.budget, min(problem.silos, key=lambda silo: silo.n)
    method: Any = agreement.method
    loss: Any = agreement.loss
    settings = ", ".join(f"{key} {value}" for key, value in asdict(method).items())
    objective = "none" if loss is None else f"{type(loss).__name__} {asdict(loss)}"
    console.print_plain(f"method: {method.name} ({settings})")
    console.print_plain(f"loss: {objective}")
    console.print_plain(f"silos: {', '.join(f'{silo.name} ({silo.n:,} {problem.unit})' for silo in problem.silos)}")
    console.print_plain(
        f"whole run: epsilon target {in_full(budget.epsilon)}, accounted at the smallest silo "
        f"{shown_up(plan.silo_epsilon(smallest.name))}, delta {shown_up(budget.delta(smallest.n), 3)}"
    )
    console.print_plain(f"digest of these terms: {terms}")
