"""What a person reads when the Prefect server fails under a driver."""

from __future__ import annotations

import shutil
from collections import namedtuple
from contextlib import contextmanager
from types import SimpleNamespace

import httpx
import pytest
from rich.console import Console

from fedcore.experiment.config import ExperimentConfig
from flows.dispatch import explained
from flows.launch import launch_run
from flows.services.prefect_server import ServiceError

Usage = namedtuple("Usage", "total used free")


def failed(status: int = 500) -> httpx.HTTPStatusError:
    request = httpx.Request("POST", "http://127.0.0.1:1/api/flow_runs")
    return httpx.HTTPStatusError("x", request=request, response=httpx.Response(status, request=request))


@pytest.mark.parametrize(
    "free, said",
    [(2**30, r"answered 500; see .*prefect\.log \(sqlite3.OperationalError: no such table\)"),
     (2**19, r"answered 500; only 0\.5 MB are free at .*services")],
)  # fmt: skip
def test_an_error_of_the_server_is_a_sentence(tmp_path, monkeypatch, free, said):
    log = tmp_path / "services" / "prefect.log"
    log.parent.mkdir()
    log.write_text("sqlite3.OperationalError: no such table\n")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(2**40, 2**40 - free, free))
    with pytest.raises(ServiceError, match=said), explained(log):
        raise failed()


def test_other_errors_pass(tmp_path):
    with pytest.raises(ZeroDivisionError), explained(tmp_path / "prefect.log"):
        raise ZeroDivisionError


@pytest.mark.parametrize("complete", [True, False])
def test_a_server_lost_at_the_end_fails_no_run_whose_results_are_there(tmp_path, monkeypatch, capsys, complete):
    @contextmanager
    def driver(*_):
        def start(*_):
            for place in ("flows.launch", "flows.runs"):
                monkeypatch.setattr(f"{place}.read_run", lambda *_: SimpleNamespace(complete=complete, result={"n": 1}))

        yield start
        raise ServiceError("Prefect server: gone")

    monkeypatch.setenv("FEDCORE_HOME", str(tmp_path))
    monkeypatch.setattr("flows.launch.driver", driver)
    values = {"privacy": {"epsilon": 1}, "algorithm": {"name": "mbsgd", "rounds": 2}, "tracking": {"mlflow": False}}
    config = ExperimentConfig.model_validate(values)
    if complete:
        assert launch_run(config, Console(width=200)) == {"n": 1}
        assert "all results are complete and kept; Prefect server: gone" in capsys.readouterr().out
    else:
        with pytest.raises(ServiceError, match="gone"):
            launch_run(config, None)
