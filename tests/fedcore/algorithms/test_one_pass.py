"""One pass takes fresh records in every round: held-out ones are none of them."""

from dataclasses import replace

import pytest

from fedcore.algorithms import ALGORITHMS
from fedcore.algorithms.statistics.evaluated import evaluated
from fedcore.errors import InputError
from fedcore.planning.evaluation import Evaluation
from tests.audit.audited_silos import problem


def test_there_are_no_more_rounds_than_records_that_are_trained_on():
    asked = problem(n=20)
    asked = replace(
        asked, silos=tuple(replace(silo, held=15) for silo in asked.silos), evaluation=Evaluation(2.0, "end", 2)
    )
    for rounds in (6, 10, 20):  # 5 are trained on
        method = ALGORITHMS["one-pass-mbsgd"](rounds=rounds)
        with pytest.raises(InputError, match="cannot feed"):
            evaluated(method, asked).plan(asked)
    assert evaluated(ALGORITHMS["one-pass-mbsgd"](rounds=5), asked).plan(asked).phases[0].rounds == 5
