"""Fixtures of the contract tests: every method, and one for each way of asking a silo."""

import pytest

from fedcore.algorithms import ALGORITHMS
from tests.contract.methods import NAMES, full, named, one_for_each_way


@pytest.fixture(params=NAMES)
def method(request):
    return named(request.param)


@pytest.fixture(params=sorted(ALGORITHMS))
def full_method(request):
    return full(named(request.param))


@pytest.fixture(params=one_for_each_way())
def asker(request):
    return named(request.param)


@pytest.fixture(params=one_for_each_way(sorted(ALGORITHMS), full))
def full_asker(request):
    return full(named(request.param))
