"""Messages of a command when the Prefect server fails under its driver."""

from __future__ import annotations

import os
import shutil
from collections import namedtuple
from contextlib import contextmanager
from types import SimpleNamespace

import httpx
import pytest
from rich.console import Console

from fedcore.errors import BusyError, SiloError
from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.identity import run_id
from fedcore.home import Home
from flows.launch import _complete_here, failure_of, launch_run
from flows.runs import store_path
from flows.services.prefect_server import ServiceError, server_errors
from tasks.run_store import RunStore

Usage = namedtuple("Usage", "total used free")


def failed(status: int = 500) -> httpx.HTTPStatusError:
    request = httpx.Request("POST", "http://127.0.0.1:1/api/flow_runs")
    return httpx.HTTPStatusError("x", request=request, response=httpx.Response(status, request=request))


@pytest.mark.parametrize(
    "free, sentence",
    [
        (2**30, r"answered 500; see .*prefect\.log \(sqlite3.OperationalError: no such table\)"),
        (2**19, r"answered 500; only 0\.5 MB are free at .*services"),
    ],
)
def test_an_error_of_the_server_is_a_sentence(tmp_path, monkeypatch, free, sentence):
    log = tmp_path / "services" / "prefect.log"
    log.parent.mkdir()
    log.write_text("sqlite3.OperationalError: no such table\n")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(2**40, 2**40 - free, free))
    with pytest.raises(ServiceError, match=sentence), server_errors(log):
        raise failed()


def test_other_errors_pass(tmp_path):
    with pytest.raises(ZeroDivisionError), server_errors(tmp_path / "prefect.log"):
        raise ZeroDivisionError


@pytest.mark.parametrize("complete", [True, False])
def test_a_server_lost_at_the_end_fails_no_run_whose_results_are_there(tmp_path, monkeypatch, capsys, complete):
    @contextmanager
    def driver(*_):
        def start(*_):
            for place in ("flows.launch", "flows.recorded.former_ids"):
                monkeypatch.setattr(f"{place}.read_run", lambda *_: SimpleNamespace(complete=complete, result={"n": 1}))

        yield start
        raise ServiceError("Prefect server: gone")

    monkeypatch.setenv("FEDCORE_HOME", str(tmp_path))
    monkeypatch.setattr("flows.launch.driver", driver)
    values = {"privacy": {"epsilon": 1}, "algorithm": {"name": "mbsgd", "rounds": 2}, "tracking": {"mlflow": False}}
    config = ExperimentConfig.model_validate(values)
    if complete:
        assert launch_run(config, Console(width=200)) == {"n": 1}
        assert "all results are complete and stored; Prefect server: gone" in capsys.readouterr().out
    else:
        with pytest.raises(ServiceError, match="gone"):
            launch_run(config, None)


@pytest.mark.parametrize("made_of_it", [None, failed(), type("Abort", (BaseException,), {})("the state is final")])
def test_the_reason_of_a_failure_is_shown_in_place_of_prefects_error(made_of_it):
    """The server has ended the flow run of a paused driver, and accepts no other state for it."""
    refused = SiloError("ash", "lease", "a later driver took it")
    session = SimpleNamespace(failure=None)
    with pytest.raises(SiloError) as caught, failure_of(session):
        session.failure = refused
        if made_of_it is not None:
            raise made_of_it
    assert caught.value is refused


def test_where_no_run_failed_errors_pass():
    with failure_of(SimpleNamespace(failure=None)):
        pass
    with pytest.raises(ZeroDivisionError), failure_of(SimpleNamespace(failure=None)):
        raise ZeroDivisionError


def test_what_another_driver_finished_is_no_success_of_this_one(tmp_path, monkeypatch):
    values = {"privacy": {"epsilon": 1}, "algorithm": {"name": "mbsgd", "rounds": 2}, "tracking": {"mlflow": False}}
    config, home = ExperimentConfig.model_validate(values), Home(tmp_path).make()
    store = RunStore(store_path(home, run_id(config)))
    store.take_lease()
    store.close()
    monkeypatch.setattr("flows.launch.all_complete", lambda *_: True)
    assert _complete_here(home, config)
    monkeypatch.setattr(os, "getpid", lambda: 1)
    with pytest.raises(BusyError, match=r"was taken over by process \d+, which finished it"):
        _complete_here(home, config)
