"""Settings of the working folder that Prefect would read: files without an end are refused too."""

from __future__ import annotations

import os

import pytest

from fedcore.errors import InputError
from fedcore.home import Home
from fedcore.limits import LARGEST_TEXT
from flows.services.environment import prefect_environment


@pytest.mark.parametrize("name", [".env", "prefect.toml", "pyproject.toml"])
def test_what_cannot_be_read_to_its_end_there_is_refused(tmp_path, monkeypatch, name):
    """Prefect would wait for a pipe, read an endless file, and find settings beyond any bound of fedcore's."""
    monkeypatch.chdir(tmp_path)
    home, path = Home(tmp_path / "home"), tmp_path / name
    path.mkdir()
    prefect_environment(home)
    path.rmdir()
    os.mkfifo(path)
    with pytest.raises(InputError, match=f"{name} is no file, and Prefect"):
        prefect_environment(home)
    path.unlink()
    path.symlink_to("/dev/zero")
    with pytest.raises(InputError, match=f"{name} is no file, and Prefect"):
        prefect_environment(home)
    path.unlink()
    with open(path, "wb") as file:
        file.truncate(LARGEST_TEXT)
        file.seek(LARGEST_TEXT)
        file.write(b"\nPREFECT_LOGGING_CONFIG_PATH=logging.yml\n")
    with pytest.raises(InputError, match=f"{name} cannot be read .more than {LARGEST_TEXT} bytes., and Prefect"):
        prefect_environment(home)
