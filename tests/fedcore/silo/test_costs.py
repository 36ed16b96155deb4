"""Costs of an agreement for the site that reads it: every count of every method at its limit and far beyond.

Memory is Python's and NumPy's allocations (tracemalloc); time is counted in points of accounting, never by a clock.
"""

import dataclasses
import json
import tracemalloc
import typing

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedcore.accounting.calibration import Budget
from fedcore.accounting.effort import effort_within, take_effort
from fedcore.algorithms import ALGORITHMS, DpFcrn, LocalizedMbsgd, Mbsgd, OnePassMbsgd
from fedcore.algorithms.statistics.evaluated import evaluated
from fedcore.data.records import Records
from fedcore.errors import InputError, SiloError
from fedcore.ledger.memory import MemoryLedger
from fedcore.limits import (
    LARGEST_AGREEMENT,
    LARGEST_GRID,
    MOST_BLOCKS,
    MOST_LISTED,
    MOST_ROUNDS,
    MOST_SHARES,
    MOST_SILOS,
    MOST_STEPS,
)
from fedcore.losses import Squared
from fedcore.planning.evaluation import Evaluation
from fedcore.planning.problem import SiloFacts
from fedcore.silo.agreement import Agreement
from fedcore.silo.keys import SecretKeys
from fedcore.silo.private_silo import PrivateSilo
from fedcore.silo.site import Site
from tests.problems import problem_of
from tests.selection import some_in_make_test

PIECES = (b"[]", b"{}", b"1", b"1.5", b'"a"', b'{"name":"a"}', b"[[[[]]]]")
"""Items of which a hostile text may be a long list."""
MOST_MEMORY = 100 * 2**20
EDGES = (MOST_LISTED, MOST_STEPS - 1, MOST_STEPS + 1, 10**7, MOST_BLOCKS, MOST_ROUNDS, MOST_ROUNDS + 1, 2**53)
"""Values of a count: where a limit is, just beside it, and far beyond."""
REQUIRED = {"dp-fcrn": {"convexity": 1.0}}


def count_fields(kind):
    """Names of the hyperparameters that allow whole numbers, or lists of them."""
    hints = typing.get_type_hints(kind)
    return [field.name for field in dataclasses.fields(kind) if _counts(hints.get(field.name))]


def _counts(hint):
    return hint is int or any(_counts(part) for part in typing.get_args(hint))


LOCAL = {"sampling_rate"}
"""Of methods whose samples are searched for: each count of theirs is driven by itself."""


def count_of(kind):
    return set(kind.__dataclass_fields__)


COUNTS = [(name, field) for name, kind in sorted(ALGORITHMS.items()) for field in count_fields(kind)]


def problem(n=40, silos=("ash", "birch"), **changes):
    facts = tuple(SiloFacts(name, n) for name in silos)
    return problem_of(facts, 3, 1.0, 1.0, 10.0, len(facts), Budget(1.0, 1e-5), **changes)


def site(n=40, guarded=False):
    """Guarded: one whose accounting for one agreement ends after about a minute."""
    records = Records(np.ones((n, 3)), np.ones(n))
    return Site(
        [
            PrivateSilo(name, records, SecretKeys(b"key"), MemoryLedger(name), guarded=guarded)
            for name in ("ash", "birch")
        ]
    )


def arrives(data, here=None):
    """(approved or the sentence of the refusal, largest memory in bytes) of these bytes at a site."""
    here = here or site()
    tracemalloc.start()
    try:
        here.approve(data)
        message = "approved"
    except SiloError as error:
        message = error.sentence
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    return message, peak


def of(name, values, made=None):
    """The bytes of an agreement with these hyperparameters, which anyone can write without a check."""
    method = ALGORITHMS[name](**REQUIRED.get(name, {}))
    head = json.loads(Agreement("run", made or problem(), method, Squared(), "0" * 64).to_bytes())
    head[3][1].update(values)
    return json.dumps(head, sort_keys=True, separators=(",", ":")).encode()


def test_every_method_has_a_count_that_is_driven():
    assert {name for name, _ in COUNTS} == set(ALGORITHMS)
    assert ("dp-fcrn", "local_steps") in COUNTS and ("localized-mbsgd", "rounds") in COUNTS


@pytest.mark.minutes
@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_counts_together_cost_no_more_than_one_by_one(data):
    name = data.draw(st.sampled_from(sorted(name for name, kind in ALGORITHMS.items() if not LOCAL & count_of(kind))))
    fields = [field for field in count_fields(ALGORITHMS[name]) if field != "batch"]
    values = {field: data.draw(st.sampled_from(EDGES) | st.integers(1, 2**53)) for field in fields}
    message, peak = arrives(of(name, values, problem()))
    assert peak < MOST_MEMORY, (name, values, message, peak)


@pytest.mark.parametrize("steps", [MOST_STEPS + 1, 10**6, 10**7, 10**9, 2**53])
def test_local_steps_beyond_what_a_silo_computes_are_refused_in_one_sentence(steps):
    message, peak = arrives(of("dp-fcrn", {"local_steps": steps}))
    assert message.startswith("algorithm.local_steps: ") and f"{steps - 1} answers" in message and "65535" in message
    assert peak < 2**21


def test_a_list_of_rounds_has_at_most_as_many_numbers_as_there_are_phases():
    message, peak = arrives(of("localized-mbsgd", {"rounds": [1] * 500_000}))
    assert "method does not fit" in message and peak < MOST_MEMORY
    LocalizedMbsgd(rounds=(1,) * MOST_LISTED)


@pytest.mark.parametrize("shard", some_in_make_test(PIECES, [], [b"[[[[]]]]"]))
def test_bytes_of_whatever_kind_are_read_within_the_bound(shard):
    """The largest agreement, of as many small values as it holds, and one that is larger."""
    count = (LARGEST_AGREEMENT - 100) // (len(shard) + 1)
    body = b",".join([shard] * count)
    for data in (b'["run","0",{"silos":[' + body + b']},["mbsgd",{}],null,3]', b"[" + body + b"]"):
        message, peak = arrives(data)
        assert ("an agreement of form" in message or "too long" in message) and peak < MOST_MEMORY
    assert arrives(b"[" + body * 8 + b"]")[0].endswith(f"an agreement is at most {LARGEST_AGREEMENT} bytes")


def test_silos_and_shares_are_bounded():
    with pytest.raises(InputError, match=f"{MOST_SILOS + 1} silos are more than the {MOST_SILOS}"):
        problem(silos=tuple(f"s{i}" for i in range(MOST_SILOS + 1)))
    many = problem(n=2**39, silos=tuple(f"s{i}" for i in range(2000)))
    with pytest.raises(InputError, match=rf"algorithm.max_phases: 39 .* 2000 silos are more than {MOST_SHARES} shares"):
        LocalizedMbsgd(rounds=1).plan(many)
    asked = dataclasses.replace(
        many,
        silos=tuple(dataclasses.replace(silo, held=1) for silo in many.silos),
        evaluation=Evaluation(1.0, "phase", 2),
    )
    with pytest.raises(InputError, match=f"more than {MOST_SHARES} shares"):
        evaluated(LocalizedMbsgd(rounds=1, max_phases=30), asked).plan(asked)


@pytest.mark.parametrize("part", some_in_make_test([8, 1], [8]))
def test_most_silos_are_agreed_to_within_the_bound(part):
    """All of them in `make slow`: an eighth of the silos takes an eighth of the bound."""
    names = ("ash", "birch", *(f"s{i}" for i in range(MOST_SILOS // part - 2)))
    data = Agreement("run", problem(silos=names), Mbsgd(rounds=3), Squared(), "0" * 64).to_bytes()
    message, peak = arrives(data)
    assert "its own plan for run" in message and peak < MOST_MEMORY / part


def test_a_plan_of_a_billion_rounds_is_still_one():
    plan = Mbsgd(rounds=MOST_ROUNDS).plan(problem())
    assert plan.rounds == MOST_ROUNDS and plan.epsilon_accounted <= 1.0 + 1e-9
    with pytest.raises(InputError, match=f"at most {MOST_ROUNDS} rounds"):
        Mbsgd(rounds=MOST_ROUNDS + 1).plan(problem())


def test_a_charge_of_many_blocks_makes_no_list_of_them():
    n = 2**17
    made = dataclasses.replace(problem(n=n), budget=Budget(1.0, 1e-9))
    method = OnePassMbsgd(rounds=n)
    digest = method.plan(made).digest
    message, peak = arrives(Agreement("run", made, method, Squared(), digest).to_bytes(), site(n))
    assert message == "approved"
    # Beside the silos' own records: two orders of them, and what a run keeps.
    assert peak < MOST_MEMORY


def test_accounting_is_counted_by_points_and_ends_in_a_sentence():
    sizes = tuple(SiloFacts(f"s{i}", 50 + i) for i in range(4))
    asked = dataclasses.replace(problem(), silos=sizes, participants=4, budget=Budget(1.0, 1.234e-6))
    with effort_within(2**20) as spent, pytest.raises(InputError, match="takes more than 1,048,576 points of grids"):
        Mbsgd(rounds=7, batch=13).plan(asked)
    assert 2**20 < spent[-1] < 2**21
    with effort_within(), pytest.raises(InputError, match=f"at most {LARGEST_GRID:,}"):
        take_effort(LARGEST_GRID + 1)
    take_effort(2**60)  # for a question of one's own nothing is counted


def test_a_guarded_site_accounts_within_seconds_and_a_simulated_one_for_more(monkeypatch):
    """An agreement with different sizes of silos, which have a search each: beyond the guarded
    bound, within the other."""
    sizes = tuple(SiloFacts(name, 40 + i) for i, name in enumerate(("ash", "birch", "cedar")))
    asked = dataclasses.replace(problem(), silos=sizes, participants=3, budget=Budget(1.0, 1.357e-6))
    data = Agreement("run", asked, Mbsgd(rounds=9, batch=13), Squared(), "0" * 64).to_bytes()
    monkeypatch.setattr("fedcore.silo.site.MOST_EFFORT", 2**18)
    records = Records(np.ones((40, 3)), np.ones(40))
    guarded = Site([PrivateSilo("ash", records, SecretKeys(b"key"), MemoryLedger("ash"), guarded=True)])
    assert "takes more than 262,144 points of grids" in arrives(data, guarded)[0]
    simulated = Site([PrivateSilo("ash", records, SecretKeys(b"key"), MemoryLedger("ash"))])
    assert "its own plan for run" in arrives(data, simulated)[0]


def test_of_a_solver_with_the_largest_number_of_steps_a_silo_makes_the_plan():
    data = of("dp-fcrn", {"local_steps": MOST_STEPS - 1})
    message, peak = arrives(data)
    assert "its own plan for run" in message and peak < MOST_MEMORY
    assert DpFcrn(local_steps=MOST_STEPS - 1).answers == MOST_STEPS - 2
