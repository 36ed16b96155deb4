"""docs/how-to/add-loss.md shows the file of the Poisson loss, and the line that registers it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "how-to" / "add-loss.md").read_text()
REGISTRY, FILE = Path("fedcore", "losses", "__init__.py"), Path("fedcore", "losses", "poisson.py")
LISTED = (
    "from fedcore.losses import LOSSES; from fedcore.models.model_config import ModelConfig;"
    "from fedcore.silo.agreement import OBJECTIVES as agreed; from fedcore.silo.policies.policy import OBJECTIVES;"
    "found = ['poisson' in LOSSES, 'Poisson' in agreed, 'poisson' in OBJECTIVES];"
    "found += ['poisson' in str(ModelConfig.model_json_schema())]; print(found)"
)


def shown() -> tuple[str, str]:
    """The page's file, and its line."""
    (line,) = re.findall(r"^    (from .* import .*\n)", PAGE, re.MULTILINE)
    return re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[0], line


def test_the_page_shows_the_file_and_the_line_of_the_product():
    file, line = shown()
    assert file == (ROOT / FILE).read_text()
    assert (ROOT / REGISTRY).read_text().count(line) == 1


def test_no_other_file_of_the_product_imports_the_loss():
    product = [path for package in ("fedcore", "tasks", "flows") for path in (ROOT / package).rglob("*.py")]
    name = re.compile(r"losses\.poisson|^class Poisson|^from .* import .*\bPoisson\b", re.MULTILINE)
    naming = {path.relative_to(ROOT) for path in product if name.search(path.read_text())}
    assert naming == {FILE, REGISTRY}


def test_without_the_file_and_the_line_the_loss_is_gone_and_with_them_it_is_there(tmp_path):
    """In a copy of the package: its list, agreements, policies and configs."""
    shutil.copytree(ROOT / "fedcore", tmp_path / "fedcore", ignore=shutil.ignore_patterns("__pycache__"))
    file, line = shown()
    registry = tmp_path / REGISTRY
    whole = registry.read_text()
    found = []
    for registered in (False, True):
        registry.write_text(whole if registered else whole.replace(line, ""))
        (tmp_path / FILE).write_text(file) if registered else (tmp_path / FILE).unlink()
        environment = os.environ | {"PYTHONPATH": str(tmp_path)}
        done = subprocess.run(
            [sys.executable, "-c", LISTED], cwd=tmp_path, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        found.append(done.stdout.strip())
    assert found == [str([False] * 4), str([True] * 4)]
