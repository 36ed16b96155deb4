"""Settings of the working folder that Prefect would take: what cannot be read to its end is refused, too."""

from __future__ import annotations

import os

import pytest

from fedcore.errors import InputError
from fedcore.home import Home
from fedcore.limits import LARGEST_TEXT
from flows.services.environment import prefect_environment


@pytest.mark.parametrize("name", [".env", "prefect.toml", "pyproject.toml"])
def test_what_cannot_be_read_to_its_end_there_is_refused(tmp_path, monkeypatch, name):
    """Prefect waits for a pipe, reads what has no end, and finds settings beyond any bound of ours."""
    monkeypatch.chdir(tmp_path)
    kept, path = Home(tmp_path / "home"), tmp_path / name
    path.mkdir()
    prefect_environment(kept)
    path.rmdir()
    os.mkfifo(path)
    with pytest.raises(InputError, match=f"{name} is no file, and Prefect"):
        prefect_environment(kept)
    path.unlink()
    path.symlink_to("/dev/zero")
    with pytest.raises(InputError, match=f"{name} is no file, and Prefect"):
        prefect_environment(kept)
    path.unlink()
    with open(path, "wb") as file:
        file.truncate(LARGEST_TEXT)
        file.seek(LARGEST_TEXT)
        file.write(b"\nPREFECT_LOGGING_CONFIG_PATH=logging.yml\n")
    with pytest.raises(InputError, match=f"{name} cannot be read .more than {LARGEST_TEXT} bytes., and Prefect"):
        prefect_environment(kept)
