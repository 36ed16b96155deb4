"""Composition refuses an event whose cost no accountant can bound."""

import pytest

from fedcore.accounting.composition import spent, worst_mu_squared
from fedcore.accounting.events import GaussianRelease


@pytest.mark.parametrize("rate", [0.5, 1.0 - 2.0**-53])
def test_an_answer_about_all_records_has_no_rate_below_1(rate):
    event = GaussianRelease(0, 5, 1.0, 2.0, rate=rate)
    with pytest.raises(ValueError, match="no sound accountant"):
        worst_mu_squared([event])
    with pytest.raises(ValueError, match="no sound accountant"):
        spent([event], 1e-5)
