"""Each planted bug finds the code that it changes; a bug whose place is gone would change nothing."""

from __future__ import annotations

import pytest

from tests.audit.foreign_runner import collected


@pytest.mark.parametrize("bug", collected(), ids=lambda bug: bug.name)
def test_it_finds_its_place(bug):
    with bug.plant():
        pass
