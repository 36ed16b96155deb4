"""Ledgers under any order of questions, restarts and tampering: no second answer, no free one, nothing hidden.

`tampered_silos` has the rules. A quick run, and a longer one of LEDGER_EXAMPLES examples (default 300), with the seed
in FEDCORE_FUZZ_SEED (`tests/fuzzing.py`).
"""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, seed, settings
from hypothesis.stateful import get_state_machine_test as machine_test
from hypothesis.stateful import run_state_machine_as_test

from tests.faults.one_silo import KINDS
from tests.faults.tampered_silos import TamperedSilos
from tests.fuzzing import fuzz_seed
from tests.selection import some_in_make_test

pytestmark = pytest.mark.usefixtures("impatient")


def machine(of_kind: str) -> type[TamperedSilos]:
    return type(f"Tampered{of_kind.capitalize()}Silos", (TamperedSilos,), {"kind": of_kind})


def settled(examples: int, steps: int, seeded: bool) -> settings:
    return settings(
        max_examples=examples,
        stateful_step_count=steps,
        derandomize=not seeded,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )


@pytest.mark.parametrize("kind", some_in_make_test(KINDS, ["guarded"]))
def test_tampered_silos_say_nothing_twice_and_nothing_free(kind):
    run_state_machine_as_test(machine(kind), settings=settled(40, 25, seeded=False))


@pytest.mark.hours
@pytest.mark.minutes
@pytest.mark.parametrize("kind", KINDS)
def test_tampered_silos_at_length(kind):
    examples = int(os.environ.get("LEDGER_EXAMPLES", "300"))
    seed(fuzz_seed())(machine_test(machine(kind), settings=settled(examples, 50, seeded=True)))()
