"""Runs and sweeps on both pages: names with the varied settings, columns, totals, links."""

from __future__ import annotations

from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.identity import run_id
from fedcore.experiment.sweep import SweepConfig
from fedcore.home import Home
from flows.launch import save_sweep_folder
from flows.pages.links import mlflow_page, run_page, sweep_page
from flows.pages.names import name_in, shown_name
from flows.pages.sweeps import budget_table, sweep_metrics, sweep_view
from flows.reports.settings import settings
from flows.reports.silo_totals import SiloTotal
from flows.reports.table import markdown_table
from flows.sweep_files import sweep_id
from tasks.tracking.run_writer import Address, View
from tasks.tracking.tracker import Tracker
from tasks.tracking_stores import tracking_store
from tests.flows.results import made_result
from tests.patience import HANGS

BASE = {"data": {"source": "synthetic"}, "algorithm": {"name": "mbsgd"}, "privacy": {"epsilon": 2}}
PAGES = {"mlflow": "http://127.0.0.1:5000", "prefect": "http://127.0.0.1:4200"}


def swept(**grid: list) -> SweepConfig:
    return SweepConfig(name="s", base=BASE, grid=grid)


def test_a_name_has_method_budget_varied_settings_seed_and_repetition():
    config = ExperimentConfig.model_validate({**BASE, "seed": 3})
    assert shown_name(config) == "mbsgd | epsilon 2 | seed 3"
    again = ExperimentConfig.model_validate({**BASE, "repetition": 2})
    assert shown_name(again, {"algorithm.step": 0.5}) == "mbsgd | epsilon 2 | step 0.5 | seed 0 | repetition 2"


def test_cells_of_a_sweep_have_names_of_their_own_and_a_cell_by_itself_the_same(tmp_path):
    config = swept(**{"algorithm.step": [0.5, 1.0], "algorithm.rounds": [10, 20], "seed": [0, 1]})
    home, varied = Home(tmp_path), settings(config)
    names = [shown_name(cell, varied[run_id(cell)]) for cell in config.cells()]
    assert len(set(names)) == 8 and "mbsgd | epsilon 2 | rounds 20, step 0.5 | seed 1" in names
    cell = config.cells()[0]
    assert name_in(home, cell, sweep_id(config)) == shown_name(cell)  # the sweep is not saved here
    save_sweep_folder(home, config)
    assert [name_in(home, each, sweep_id(config)) for each in config.cells()] == names
    assert name_in(home, cell, None) == shown_name(cell)


def test_mlflow_lists_cells_in_columns_of_what_differs_and_of_what_came_out():
    config = swept(**{"algorithm.step": [0.5, 1.0], "privacy.epsilon": [1, 4], "seed": [0, 1]})
    view = sweep_view(config, settings(config), [made_result()])
    assert view.key == view.name == sweep_id(config)
    assert view.columns == (
        "params.`privacy.epsilon`",
        "params.`algorithm.step`",
        "params.`seed`",
        "metrics.`test_error`",
        "metrics.`epsilon_accounted`",
        "metrics.`seconds`",
        "metrics.`rounds`",
    )
    assert view.filter == f"tags.`fedcore.cell_of.{sweep_id(config)}` = 'yes'"
    longer = swept(**{"algorithm.rounds": [1, 2]})
    rounds = sweep_view(longer, settings(longer), [made_result(test_error=None, test_rmse=2.0)])
    assert rounds.columns[:2] == ("params.`algorithm.rounds`", "metrics.`test_rmse`")
    assert "metrics.`rounds`" not in rounds.columns  # twice the same


def test_a_section_that_is_varied_has_columns_for_its_keys_as_parameters_have_them():
    laws = [{"binomial": 0.5}, {"binomial": 0.9}]
    config = swept(**{"participation.silos_per_round": laws})
    columns = sweep_view(config, settings(config)).columns
    assert "params.`participation.silos_per_round.binomial`" in columns


def test_totals_are_of_the_silo_with_the_largest_account():
    totals = [SiloTotal(0, "ash", 40, 3, 0, 0, 2.5, 1e-5), SiloTotal(0, "oak", 50, 3, 1, 0, 3.5, 1e-6)]
    metrics = sweep_metrics(totals, [made_result(), made_result()])
    assert metrics == {"cells_finished": 2, "epsilon_all_cells": 3.5, "delta_all_cells": 1e-6, "cells_without_noise": 1}
    table = budget_table(totals)
    assert table["silo"] == ["ash", "oak"] and table["epsilon"] == [2.5, None]
    assert table["epsilon_of_noised_cells"] == [2.5, 3.5]
    assert sweep_metrics([], []) == {"cells_finished": 0} and budget_table([]) == {}


def test_a_table_of_markdown_keeps_its_columns():
    assert markdown_table({"method": ["a|b"], "error": ["0.1"]}) == "| method | error |\n|---|---|\n| a/b | 0.1 |\n"


def test_links_open_the_run_and_the_list_of_a_sweep(tmp_path):
    home = Home(tmp_path)
    assert mlflow_page(home, PAGES, "r-1") is None and sweep_page(home, PAGES, "s-1") is None
    assert not list(tmp_path.iterdir())  # reading makes no file
    tracker = Tracker(tracking_store(home.mlflow_uri, home.mlflow_artifacts))
    run = tracker.begin("r-1", "digits", "one", {}, {})
    tracker.begin_sweep("s-1", "steps", {}, View("s-1", "s-1", ()))
    assert tracker.close(HANGS), tracker.problem
    address = run.address(0)
    assert address is not None and address.experiment == 1
    assert mlflow_page(home, PAGES, "r-1") == run_page(PAGES, address)
    where = "?workflowType=machine_learning"
    assert run_page(PAGES, Address(1, "ab")) == f"http://127.0.0.1:5000/#/experiments/1/runs/ab{where}"
    assert sweep_page(home, PAGES, "s-1") == (
        f"http://127.0.0.1:5000/#/experiments/2/runs{where}&viewStateShareKey=s-1"
    )
