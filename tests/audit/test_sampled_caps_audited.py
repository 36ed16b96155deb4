"""Audit of caps on samples against losses rounded down; charges that are too small are found."""

from __future__ import annotations

import numpy as np
import pytest

from fedcore.accounting.divergences import renyi
from fedcore.audit.accounts.caps import capped
from fedcore.audit.accounts.known_account import KnownAccount
from tests.audit.audited_silos import make

SILOS = {
    "poisson": {"hyper": {"rounds": 12, "batch": 4}, "n": 40, "dim": 3, "delta": 1e-4},
    "fixed size": {
        "method": "fedavg",
        "hyper": {"rounds": 6, "local_steps": 2, "sampling_rate": 0.2},
        "n": 40,
        "dim": 3,
        "delta": 1e-4,
    },
}


def faults_of(name, folder) -> list[str]:
    known = KnownAccount(make(1, **SILOS[name]))
    assert any(event.sampling != "full" for event in known.planned)
    capped(known, np.random.default_rng(0), folder)
    return known.faults


@pytest.mark.parametrize("name", SILOS)
def test_no_rule_admits_more_than_a_cap_allows(name, tmp_path):
    assert faults_of(name, tmp_path) == []


@pytest.mark.parametrize("bug", ["a third of the divergence", "a better order each time"])
def test_samples_that_are_charged_too_little_are_found(bug, tmp_path, monkeypatch):
    right, conversion = renyi.sampled, renyi.conversion
    if bug == "a third of the divergence":
        monkeypatch.setattr(renyi, "sampled", lambda *of: right(*of) / 3)
    else:
        monkeypatch.setattr(renyi, "conversion", lambda order, delta: conversion(order, delta) - 6.0)
    assert any("a cap (rdp) of epsilon" in each for each in faults_of("poisson", tmp_path))
