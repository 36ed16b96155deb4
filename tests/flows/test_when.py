"""Firing times from typed text: lines that Prefect would refuse or never fire give a sentence."""

from __future__ import annotations

import pytest

from fedcore.errors import InputError
from flows.schedules.schedule import When

REFUSED = [
    ({"cron": "0 3 31 2 *"}, "never comes"),
    ({"cron": "0 0 30 2 *"}, "never comes"),
    ({"cron": "* * * * * *"}, "a sixth would be seconds"),
    ({"cron": "0 3 * *"}, "five fields"),
    ({"cron": "*/0 * * * *"}, "five fields"),
    ({"cron": ""}, "five fields"),
    ({"every": "999999w"}, "at most 3660 d"),
    ({"every": "999999999d"}, "at most 3660 d"),
    ({"every": "1e3h"}, "no time"),
    ({"every": "\u0663h"}, "no time"),
    ({"every": "9s"}, "at least 10 s"),
    ({"cron": "0 3 * * *", "timezone": ""}, "--timezone is empty"),
    ({"every": "1h", "timezone": "/etc"}, "Europe/Berlin"),
    ({"every": "1h", "timezone": "../UTC"}, "Europe/Berlin"),
]


@pytest.mark.parametrize(("typed", "why"), REFUSED)
def test_what_is_no_time_is_a_sentence(typed, why):
    with pytest.raises(InputError, match=why):
        When.of(typed.get("cron"), typed.get("every"), typed.get("timezone", "UTC"))


@pytest.mark.parametrize(("cron", "every"), [("0 3 * * *", None), ("@yearly", None), (None, "3660d"), (None, "10 s")])
def test_what_is_one_has_dates(cron, every):
    first, second = When.of(cron, every, "UTC").dates(2)
    assert first < second
