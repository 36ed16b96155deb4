"""The plan that an operator sees before a decision: text of a coordinator cannot format, hide or break it."""

from __future__ import annotations

import pytest

from fedcore.accounting.calibration import Budget
from fedcore.algorithms.mbsgd import Mbsgd
from fedcore.losses import Squared
from fedcore.planning.problem import SiloFacts
from fedcore.silo.agreement import Agreement
from flows.commands.federations.decisions import _planned, _show
from tests.problems import problem_of


@pytest.mark.parametrize("run", ["first", "[bold]first[/]", "[/red]", "[link=https://evil.example]first[/link]"])
def test_a_runs_name_is_shown_as_it_is(run, capsys):
    budget = Budget(3.0, 1e-6, mechanism="discrete-gaussian")
    silos = (SiloFacts("ash", 40), SiloFacts("[red]oak", 50))
    problem = problem_of(silos, 3, 1.0, 1.0, 1e6, 2, budget)
    method = Mbsgd(rounds=7, step=0.1)
    agreement = Agreement(run, problem, method, Squared(), method.plan(problem).digest)
    plan, terms = _planned(agreement)
    _show(agreement, plan, terms)
    shown = capsys.readouterr().out
    assert run in shown and "[red]oak (50 records)" in shown and terms in shown
    assert "rounds 7" in shown and "epsilon target 3" in shown and "\x1b" not in shown
