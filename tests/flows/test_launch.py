"""What a person reads when the Prefect server fails under a driver."""

from __future__ import annotations

import shutil
from collections import namedtuple

import httpx
import pytest

from flows.launch import explained
from flows.prefect_server import ServiceError

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
