"""Numbers of privacy in columns, names, refusals and pages: typed ones as typed, computed ones rounded up."""

from __future__ import annotations

import csv
import io
import math

import numpy as np
import pytest

from fedcore.accounting.calibration import Budget
from fedcore.accounting.filters import Cap, Charge
from fedcore.audit.one_run import BOUND, lower_bound, one_run
from fedcore.audit.power import OneRunPower
from fedcore.errors import InputError, SiloError
from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.experiment import make_plan
from fedcore.ledger.refusals import admit
from flows.commands.accounts.budget_tables import account_lines
from flows.commands.audit import _measured
from flows.pages.flow_run import flow_tags
from flows.pages.names import shown_name
from flows.pages.sweeps import budget_table, sweep_metrics
from flows.reports.lines import summarise
from flows.reports.plot import _tick
from flows.reports.settings import shown
from flows.reports.silo_totals import SiloTotal
from flows.reports.table import _as_csv, markdown
from flows.run_publication import _metrics
from tasks.run_parameters import run_parameters
from tasks.statement import phase_budget, phase_parameters, privacy_tags
from tests.flows.results import made_result

JUST_BELOW = 3.9999999999992
"""Accounted epsilon of a plan for a target of 4."""


def cell(epsilon: float) -> ExperimentConfig:
    values = {
        "name": "cell",
        "data": {"source": "synthetic", "silos": 2, "records": 51, "features": 4},
        "algorithm": {"name": "mbsgd", "rounds": 6},
        "privacy": {"epsilon": epsilon, "delta": "1/n^2"},
    }
    return ExperimentConfig.model_validate(values)


def test_targets_that_differ_in_the_eighth_digit_have_rows_names_and_tags_of_their_own():
    """Both once were 4, in one row and under one name."""
    results = [made_result(run=f"r{each}", epsilon_target=each, epsilon_accounted=each) for each in (3.99999999, 4.0)]
    assert [line.level for line in summarise(results)] == ["3.99999999", "4"]
    assert "| 3.99999999 |" in markdown(summarise(results))
    assert [_tick(line, None) for line in summarise(results)] == ["3.99999999", "4"]
    below, at = cell(3.99999999), cell(4.0)
    names, tags = [shown_name(below), shown_name(at)], [flow_tags(below, None), flow_tags(at, None)]
    assert "epsilon 3.99999999" in names[0] and "epsilon:3.99999999" in tags[0]
    assert "epsilon 4 " in names[1] and "epsilon:4" in tags[1]
    assert [shown(each) for each in (3.99999999, 4.0, 1e-7)] == ["3.99999999", "4", "1e-07"]


def test_what_is_spent_is_printed_alike_in_tables_files_and_mlflow():
    """MLflow's columns and cells.csv once had 3.9999999999992, the terminal 4."""
    result = made_result(epsilon_target=4.0, epsilon_accounted=JUST_BELOW, delta=1 / 51**2)
    assert summarise([result])[0].accounted == JUST_BELOW  # files for programs have all digits
    rows = list(csv.DictReader(io.StringIO(_as_csv([result], {}).decode())))
    assert (rows[0]["epsilon_target"], rows[0]["epsilon_accounted"]) == ("4.0", "4")
    metrics = _metrics(result)
    assert metrics["epsilon_accounted"] == 4.0 and metrics["delta"] == 0.0003845
    total = SiloTotal(None, "ash", 51, 2, 0, 0, 50.7004, 1 / 51**2)
    assert sweep_metrics([total], [result])["epsilon_all_cells"] == 50.71
    assert sweep_metrics([total], [result])["delta_all_cells"] == 0.0003845
    table = budget_table([total])
    assert (table["epsilon"], table["delta"], table["n"]) == ([50.71], [0.0003845], [51])


def test_phases_and_parameters_in_mlflow_are_rounded_up_as_printed():
    config = cell(3.0)
    plan = make_plan(config)
    phase, spent = plan.phases[0], plan.epsilon_accounted
    assert spent < 3 and phase_budget(phase)["privacy/epsilon_accounted"] == 3.0
    assert phase_budget(phase)["privacy/delta"] == 0.0003845 > 1 / 51**2
    typed = phase_budget(make_plan(cell(3.99999999)).phases[0])
    assert (typed["privacy/epsilon_target"], typed["privacy/epsilon_accounted"]) == (3.99999999, 4.0)
    assert phase_parameters(phase)["epsilon_accounted"] == "3" == run_parameters(config, plan)["plan.epsilon_accounted"]
    assert phase_parameters(phase)["sigma_i"] == phase.sigma  # the applied noise, with all digits
    assert run_parameters(config, plan)["plan.delta"] == "0.000384468" and 0.000384468 > 1 / 51**2
    tags = privacy_tags(config, plan)
    assert (tags["privacy.epsilon_target"], tags["privacy.epsilon_accounted"]) == ("3", "3")
    assert "(3, 0.000385)-differentially" in tags["privacy.statement"]


def test_a_refusal_never_shows_a_charge_that_would_fit():
    """Both once were 0.5, and a cap's delta was shown below the true one."""
    before, asked = Charge(0.0, 1.50004, 1e-6), Charge(0.0, 0.50004, 1e-6)
    with pytest.raises(SiloError) as refused:
        admit("ash", "next", Cap(2.0, 1 / 51**2, "basic"), [before], asked)
    assert "at delta 0.000385 (basic) has 0.4999 left" in refused.value.sentence
    assert "asks for 0.5001 at delta 1e-06" in refused.value.sentence


def test_of_a_cap_from_which_nothing_is_taken_all_is_left():
    for epsilon in (0.3, 1.0, 3.0):
        assert Cap(epsilon, 1e-5).left([]) == Cap(epsilon, 1e-5).left([Charge(0.0, 0.0, 1e-6)]) == epsilon
    assert Cap(3.0, 1e-5).left([Charge(0.01, 0.4, 1e-6)]) < 3


def test_an_audit_shows_no_more_than_it_found():
    """Its bound, the accounted epsilon and the confidence once were rounded to nearest."""
    scores, signs = np.concatenate([np.full(200, -5.0), np.full(200, 5.0)]), np.repeat([-1, 1], 200)
    finding = one_run(scores, signs, 400, 1.2341e-15, 2.00001, 1e-9)
    bound = lower_bound(400, 400, 400, 1.2341e-15, 1e-9)
    said = float(finding.detail.partition("at least ")[2].split()[0])
    assert 2 < bound * (1 - 1e-3) < said <= bound and not finding.passed
    assert "confidence 0.999999 " in finding.detail and "delta 1.24e-15;" in finding.detail
    assert finding.detail.endswith("accounted are 2.001")
    assert _measured({"instrument": BOUND, "statistic": 4.92601, "threshold": 4.92601}) == ("4.926", "4.927")
    assert _measured({"instrument": BOUND, "statistic": None, "threshold": 2.0}) == ("-", "2")
    reach = OneRunPower(100, 1 / 51**2, 1e-4, 1.00001, 4.92679, 50, 3.00001, 0.55579)
    assert "noise of 0.555 times the plan, true epsilon 3.001 where 1.001 are accounted" in reach.sentence
    assert "(at best it shows 4.926)" in reach.sentence and "delta 0.000385" in reach.sentence


def test_a_wrong_number_is_named_as_it_was_typed():
    """The message once was `1e+04 must lie between 1e-12 and 10000`."""
    with pytest.raises(InputError, match=r"^privacy\.epsilon = 10000\.0001 must lie between 1e-12 and 10000$"):
        Budget(10000.0001)
    with pytest.raises(InputError, match=r"^privacy\.delta = 1\.0000001 must lie between 1e-250 and 1$"):
        Budget(1.0, 1.0000001)
    with pytest.raises(InputError, match=r"privacy\.noise_multiplier = nan must"):
        Budget(None, multiplier=math.nan)


def test_an_account_of_the_register_has_a_delta_that_is_no_smaller():
    account = {"data_versions": ["a"], "runs": 1, "epsilon_charged": 4.926001, "delta": 1 / 51**2}
    account |= {"declared": [], "head": "h"}
    (line, _) = account_lines([{"silo": "ash", "account": account}])
    assert "epsilon 4.9261 charged at delta 0.000385" in line
