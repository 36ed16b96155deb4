"""A small plan to audit."""

from __future__ import annotations

import pytest

from fedcore.audit.audited_silo import AuditedSilo
from fedcore.silo.private_silo import PrivateSilo
from tests.audit import planted_noise
from tests.audit.audited_silos import make


@pytest.fixture
def make_audited():
    """Factory of audited silos: make_audited(seed, bug=None, method="mbsgd", hyper={...}, n=, dim=)."""

    def made(seed, bug=None, hyper=None, **rest) -> AuditedSilo:
        opener = PrivateSilo if bug is None else planted_noise.OLD[bug].opener
        return make(seed, hyper={"rounds": 6} if hyper is None else hyper, opener=opener, **rest)

    return made
