"""Models in queries lie in the agreed domain, up to rounding."""

import numpy as np
import pytest

from fedcore.audit.audit_session import AuditSession
from fedcore.audit.scenes import equal_records
from fedcore.errors import SiloError
from tests.audit.audited_silos import make


@pytest.mark.parametrize("beyond", [1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8, 2e-9])
def test_a_model_outside_of_the_domain_is_refused_however_near_it_is(beyond):
    audited = make(1)
    session = AuditSession(audited, equal_records(audited, np.random.default_rng(0)))
    edge = np.zeros(audited.dim)
    edge[0] = audited.plan.problem.objective.diameter / 2
    assert session.ask("run", (1, 1), {"w": edge}).payload.shape == (audited.dim,)
    with pytest.raises(SiloError, match="models of norm at most"):
        session.ask("run", (1, 2), {"w": edge * (1.0 + beyond)})


def test_what_a_projection_leaves_beyond_the_edge_is_no_model_outside():
    """A projection of a model of 10^6 weights is off by some 10^-12 of the radius at most."""
    audited = make(1)
    session = AuditSession(audited, equal_records(audited, np.random.default_rng(0)))
    edge = np.zeros(audited.dim)
    edge[0] = audited.plan.problem.objective.diameter / 2
    for round, beyond in enumerate((2.0**-52, 1e-12, 1e-10), 1):
        assert session.ask("run", (1, round), {"w": edge * (1.0 + beyond)}).payload.shape == (audited.dim,)
