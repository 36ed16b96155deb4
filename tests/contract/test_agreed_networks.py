"""Agreements about networks: later fields are left out at their defaults, and filled in on arrival."""

import pytest
from pydantic import TypeAdapter

from fedcore.losses import Huber
from fedcore.models import OneHiddenLayer, RegressionNetwork


def plain(value):
    return TypeAdapter(type(value)).dump_python(value, mode="python")


def test_agreements_name_every_number_of_a_network():
    assert plain(OneHiddenLayer(3, 4)) == {"classes": 3, "hidden": 4, "activation": "relu"}
    assert plain(OneHiddenLayer(3, 4, "softplus")) == {"classes": 3, "hidden": 4, "activation": "softplus"}


@pytest.mark.parametrize(
    "made", [OneHiddenLayer(3, 4), OneHiddenLayer(3, 4, "softplus"), RegressionNetwork(4, "softplus", Huber(width=0.5))]
)
def test_what_was_agreed_to_is_rebuilt(made):
    assert TypeAdapter(type(made)).validate_python(plain(made)) == made
