"""The theorem's average has weights (1 - mu step)^-r: a step of 1 / mu leaves it none."""

import pytest

from fedcore.algorithms import ALGORITHMS
from fedcore.errors import InputError
from tests.audit.audited_silos import problem
from tests.problems import changed


def test_a_step_of_one_over_mu_has_no_average():
    asked = changed(problem(), ridge=0.25)
    with pytest.raises(InputError, match=r"algorithm\.average = theory needs a step below"):
        ALGORITHMS["mbsgd"](rounds=3, step=4.0, average="theory").plan(asked)
    assert ALGORITHMS["mbsgd"](rounds=3, step=3.9, average="theory").plan(asked).rounds == 3
