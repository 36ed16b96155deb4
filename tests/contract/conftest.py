"""Fixtures of the contract tests: every method, and one for each way of asking a silo."""

import pytest

from tests.contract.methods import FULL, NAMES, full, named, one_for_each_way


@pytest.fixture(params=NAMES)
def method(request):
    return named(request.param)


@pytest.fixture(params=FULL)
def full_method(request):
    return full(named(request.param))


@pytest.fixture(params=one_for_each_way([name for name in NAMES if name.partition(" of ")[0] in FULL]))
def asker(request):
    return named(request.param)


@pytest.fixture(params=one_for_each_way(FULL, full))
def full_asker(request):
    return full(named(request.param))
