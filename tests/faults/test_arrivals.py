"""Everything that arrives at a site, mutated: it ends in a release that the plan allows, once per address, or an error.

The oracle is `release_oracle`, which knows nothing of the site's code. FEDCORE_FUZZ_SEED=fresh has `make slow` search
elsewhere; a seed that found something repeats it (`tests/fuzzing.py`).
"""

from __future__ import annotations

import json
import pickle
import shutil
import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from hypothesis.stateful import get_state_machine_test as machine_test

from fedcore.algorithms import ALGORITHMS
from fedcore.arrays import canonical_json
from fedcore.errors import SiloError
from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.experiment import Experiment
from fedcore.home import LedgerFolders
from fedcore.ledger.memory import MemoryLedger
from fedcore.messages import Releases
from fedcore.planning.plan import Plan
from fedcore.silo import site as site_module
from fedcore.silo.agreement import METHODS, OBJECTIVES
from tasks.workers.holder import Holder
from tests.faults.arrival_site import HERE, KINDS, SOUND, Attacked, sound, sound_query, varied
from tests.faults.mutations import LONG, ODD, bent_bytes, bent_query, bent_text, bent_tree
from tests.fuzzing import fuzz_seed
from tests.registers import registered
from tests.selection import some_in_make_test
from tests.wire import packed

SEEDS = st.integers(0, 2**48)
PLACES = st.integers(0, len(SOUND) - 1)
TALLY: Counter[str] = Counter()
RUNS = ["sound-0", "sound-1", "sound-4", "sound-12", "varied-1", "varied-2", "never", "", LONG, "\ud800", "\x00"]


class Arrivals(RuleBasedStateMachine):
    """One site, asked for anything in any order."""

    @initialize(kind=st.sampled_from(KINDS), places=st.lists(PLACES, min_size=2, max_size=4, unique=True))
    def open(self, kind, places):
        self.folder = Path(tempfile.mkdtemp(prefix="arrivals-"))
        self.made = Attacked(self.folder, *kind, TALLY)
        self.guarded = kind[0]
        self.places: list[int] = []
        for place in places:
            self.approve(place)

    def approve(self, place):
        if self.made.approve(sound(place, self.guarded)[0].to_bytes()):
            self.places.append(place)

    @rule(place=PLACES)
    def approves(self, place):
        """Approves a run for the first or a second time; also a run that was forgotten or closed."""
        self.approve(place)

    @rule(seed=SEEDS, place=PLACES, run=st.integers(0, 60))
    def varies_an_agreement(self, seed, place, run):
        random = Random(seed)
        for number in (run, run + 1, run + 2):
            self.vary_an_agreement(random, place, number)

    def vary_an_agreement(self, random, place, run):
        if not self.made.approve(data := varied(random, place, self.guarded, f"varied-{run}")):
            self.made.answers_still()
            return
        TALLY["varied agreements accepted"] += 1
        tree = json.loads(data)
        for _ in range(2):
            phase = random.choice([1, 1, 2, 3])
            query = [f"varied-{run}", tree[1], phase, random.randint(1, 4), list(HERE)]
            w = np.array([random.gauss(0, 1e-3) for _ in range(min(tree[2]["objective"]["dim"], 1000))])
            arrays = {} if tree[3][0].endswith("-moments") else {"w": w}
            if tree[3][0] == "scaffold" and not (tree[3][1]["warm"] and phase == 1):
                arrays |= {f"correction@{silo}": w for silo in HERE}
            TALLY["releases of varied agreements"] += max(
                0, self.made.ask(json.dumps(query).encode() + b"\n" + packed(arrays))
            )

    @rule(seed=SEEDS, place=PLACES, level=st.sampled_from(["tree", "tree", "text", "bytes"]))
    def bends_an_agreement(self, seed, place, level):
        random, data = Random(seed), sound(place, self.guarded)[0].to_bytes()
        if level == "tree":
            tree = bent_tree(random, json.loads(data))
            data = canonical_json(tree).encode() if _sortable(tree) else json.dumps(tree).encode()
        elif level == "text":
            data = bent_text(random, data.decode()).encode()
        else:
            data = bent_bytes(random, data, random.choice(self.made.sent))
        if not self.made.approve(data):
            self.made.answers_still()

    @precondition(lambda self: self.places)
    @rule(seed=SEEDS)
    def asks(self, seed):
        random = Random(seed)
        for _ in range(3):
            head, arrays, _ = sound_query(random, random.choice(self.places), self.guarded)
            self.made.ask(json.dumps(head).encode() + b"\n" + packed(arrays))

    @precondition(lambda self: self.places)
    @rule(seed=SEEDS, level=st.sampled_from(["fields"] * 6 + ["text", "bytes", "bytes"]))
    def bends_a_query(self, seed, level):
        random = Random(seed)
        for _ in range(3 if level == "fields" else 1):
            self.bend_a_query(random, level)

    def bend_a_query(self, random, level):
        head, arrays, radius = sound_query(random, random.choice(self.places), self.guarded)
        other = sound_query(random, random.choice(self.places), self.guarded)[1]
        data = json.dumps(head).encode() + b"\n" + packed(arrays)
        if level == "fields":
            data = bent_query(random, head, arrays, radius, other)
        elif level == "text":
            data = bent_text(random, json.dumps(head)).encode() + b"\n" + packed(arrays)
        else:
            data = bent_bytes(random, data, random.choice(self.made.sent))
        if self.made.ask(data) < 0:
            self.made.answers_still()

    @precondition(lambda self: self.made.oracle.left)
    @rule(seed=SEEDS)
    def asks_again_with_other_arrays(self, seed):
        """Queries an answered address again, of the same run and of another."""
        random = Random(seed)
        silo, run, phase, round = random.choice(sorted(self.made.oracle.left))
        tree = json.loads(self.made.agreements[run])
        # Not the control run, which checks that the site still answers: its next address must stay unanswered.
        runs = [run, random.choice(sorted(each for each in self.made.agreements if "control" not in each) or [run])]
        w = np.array([random.gauss(0, 1e-2) for _ in range(min(tree[2]["objective"]["dim"], 1000))])
        arrays = {"w": w}
        if tree[3][0] == "scaffold":
            arrays |= {f"correction@{silo}": w}
        head = [random.choice(runs), tree[1], phase, round, [silo]]
        if self.made.ask(json.dumps(head).encode() + b"\n" + packed(arrays)) < 0:
            self.made.answers_still()

    @rule(seed=SEEDS, bent=st.sampled_from(["no", "no", "tree", "bytes"]))
    def restores(self, seed, bent):
        """Receipts of what left, and forged ones; ledgers on disk ignore them."""
        random, run = Random(seed), None
        rows = [([s, p, r], q + 32 * b"a") for (s, run, p, r), (q, _) in sorted(self.made.oracle.left.items())]
        # Forged receipts may block addresses of a memory ledger's run, so they spare the control run.
        run = random.choice([run for run in self.made.agreements if "control" not in run] * 8 + RUNS)
        rows = random.sample(rows, min(len(rows), 3))
        rows += [([random.choice(["ash", "oak"]), 1, random.randint(1, 9)], 64 * b"c")]
        head = [address for address, _ in rows]
        data = json.dumps(bent_tree(random, head) if bent == "tree" else head).encode() + b"\n"
        data += b"".join(digests for _, digests in rows)
        if bent == "bytes":
            data = bent_bytes(random, data, random.choice(self.made.sent))
        self.made.send("receipts", self.made.site.restore, run, data)

    @rule(seed=SEEDS, bent=st.booleans())
    def evaluates(self, seed, bent):
        random = Random(seed)
        run, dim = random.choice([*self.made.agreements] * 8 + RUNS), random.choice([3, 3, 3, 9, 15])
        w = np.array([random.choice([0.1, 1e11, 1e12, np.nan]) for _ in range(dim)])
        data = packed({random.choice(["w", "w", "w", "v"]): w})
        if bent:
            data = bent_bytes(random, data, random.choice(self.made.sent))
        self.made.send("model", self.made.site.simulated, run, data)

    @rule(seed=SEEDS, call=st.sampled_from(["accounts", "forget_run", "close_run"]))
    def names_a_run(self, seed, call):
        random = Random(seed)
        run = random.choice([*self.made.agreements, *RUNS, random.choice(ODD)])
        if call == "close_run" and str(run).startswith("control"):
            run = "never"
        known = type(run) is str and run in self.made.agreements
        was_open = known and run not in self.made.forgotten
        if call == "close_run" and was_open:
            self.made.oracle.close(run, self.made.ledgers)
        self.made.send("run", getattr(self.made.site, call), run)
        if call == "forget_run" and known:
            self.made.forgotten.add(run)
            if run.startswith("control"):
                self.made.control = 0 if run == f"control-{self.made._opened}" else self.made.control

    @precondition(lambda self: self.places)
    @rule(seed=SEEDS)
    def ends_a_run(self, seed):
        """Closes a run and queries on: answers may be repeated, and no new address is answered."""
        random = Random(seed)
        place = random.choice(self.places)
        run = f"sound-{place}"
        if run not in self.made.forgotten:
            self.made.oracle.close(run, self.made.ledgers)
        self.made.send("run", self.made.site.close_run, run)
        for _ in range(3):
            head, arrays, _ = sound_query(random, place, self.guarded)
            self.made.ask(json.dumps(head).encode() + b"\n" + packed(arrays))

    @rule(
        value=st.sampled_from([None, 5, "text", [], {}, bytearray(b"[]"), memoryview(b"[]"), object(), np.zeros(3)]),
        what=st.sampled_from(["query", "agreement", "receipts", "model"]),
    )
    def sends_what_is_not_bytes(self, value, what):
        site = self.made.site
        act = {"query": site.answer, "agreement": site.approve, "receipts": site.restore, "model": site.simulated}[what]
        run = () if what in ("query", "agreement") else ("sound-0",)
        assert self.made.send(what, act, *run, value) is None

    @rule()
    def restarts(self):
        self.made.restart()
        self.places = [p for p in range(len(SOUND)) if f"sound-{p}" in self.made.agreements]

    @invariant()
    def ledgers_on_disk_hold_what_left(self):
        made = getattr(self, "made", None)
        if made is not None and made._ledger == "sqlite":
            for silo, ledger in made.ledgers.items():
                for run in made.agreements:
                    rows = {(row.phase, row.round) for row in ledger.rows(run)}
                    assert {(p, r) for s, its, p, r in made.oracle.left if (s, its) == (silo, run)} <= rows

    def teardown(self):
        if hasattr(self, "made"):
            self.made.close()
            shutil.rmtree(self.folder)


def _sortable(tree) -> bool:
    try:
        json.dumps(tree, sort_keys=True)
    except TypeError:
        return False
    return True


def attack(number: int, examples: int, steps: int, shrink: bool = True) -> None:
    """Runs machines from this seed; a failing one is shrunk to the steps that matter."""
    phases = [Phase.generate, Phase.shrink] if shrink else [Phase.generate]
    options = settings(
        database=None,
        derandomize=False,
        deadline=None,
        max_examples=examples,
        stateful_step_count=steps,
        phases=phases,
        suppress_health_check=list(HealthCheck),
        print_blob=True,
    )
    seed(number)(machine_test(Arrivals, settings=options))()


def shown() -> str:
    """The tally as text."""
    heads = [f"{key}: {count}" for key, count in TALLY.items() if key.count(": ") < 2]
    messages = sorted(((key, count) for key, count in TALLY.items() if key.count(": ") >= 2), key=lambda pair: -pair[1])
    return "\n".join([*heads, *(f"{count:6d}  {key}" for key, count in messages)])


def test_messages_begin_with_every_method_and_every_objective():
    assert {type(method) for method, *_ in SOUND} == set(METHODS.values()) and len(METHODS) == len(ALGORITHMS) + 3
    assert {type(loss) for _, loss, *_ in SOUND if loss is not None} == set(OBJECTIVES.values())


@pytest.mark.minutes
def test_a_few_hundred_mutations_end_in_a_planned_release_or_a_public_sentence():
    TALLY.clear()
    for number in range(20, 30):  # Hypothesis tries the constants of the code: what a seed leads to changes with them
        attack(number, examples=12, steps=25)
        if enough := TALLY["sent"] >= 300 and TALLY["releases"] >= 50:
            break
    assert enough, shown()
    assert TALLY["decoded"] >= 0.3 * TALLY["sent"], shown()


def halved(charge):
    return replace(charge, mu_squared=charge.mu_squared / 2)


def quieter(row):
    return row._replace(event=replace(row.event, sigma=1.5 * row.event.sigma + 1e-3))


PLANTED = {
    "a second answer": lambda patch: (
        patch.setattr(MemoryLedger, "find", lambda *_: None),
        patch.setattr(MemoryLedger, "commit", lambda self, run, row, lease=0: None),
    ),
    "addresses beyond the plan": lambda patch: patch.setattr(Plan, "has", lambda *_: True),
    "half of the charge": lambda patch: patch.setattr(
        MemoryLedger,
        "open_run",
        lambda self, run, plan, key, charge, cap, *rest, real=MemoryLedger.open_run: real(
            self, run, plan, key, halved(charge), cap, *rest
        ),
    ),
    "an event with more noise": lambda patch: patch.setattr(
        MemoryLedger,
        "commit",
        lambda self, run, row, lease=0, real=MemoryLedger.commit: real(self, run, quieter(row), lease),
    ),
    "answers after the end": lambda patch: (
        patch.setattr(MemoryLedger, "is_closed", lambda *_: False),
        patch.setattr(MemoryLedger, "close_run", lambda *_: None),
    ),
    "an error of another type": lambda patch: patch.setattr(
        site_module, "with_public_errors", lambda _, act, *given: act(*given)
    ),
}


@pytest.mark.parametrize("name", some_in_make_test(PLANTED, [], list(PLANTED)[:2]))
def test_the_oracle_notices_a_planted_fault(monkeypatch, name):
    PLANTED[name](monkeypatch)
    with pytest.raises((AssertionError, ExceptionGroup)):
        attack(7, examples=100, steps=25, shrink=False)


@pytest.mark.hours
@pytest.mark.minutes
def test_ten_thousand_mutations_end_in_a_planned_release_or_a_public_sentence():
    number = fuzz_seed()
    TALLY.clear()
    batch = 0
    while TALLY["sent"] < 10_000:
        attack(number + batch, examples=50, steps=40)
        batch += 1
    print(shown())
    assert TALLY["decoded"] >= 0.3 * TALLY["sent"]


@pytest.mark.parametrize("kind", ["seeded", "guarded"])
def test_a_holder_of_a_worker_passes_on_the_same_refusals(tmp_path, kind, request):
    """The actor that Dask calls, without a worker: what it raises is what a driver would get pickled."""
    values = {
        "data": {"source": "synthetic", "silos": 2, "records": 30, "features": 3, "test_records": 5},
        "privacy": {"epsilon": 0.5, "delta": 1e-4, "noise": kind, "ledger": "sqlite"},
        "algorithm": {"name": "mbsgd", "rounds": 40},
    }
    if kind == "guarded":
        request.getfixturevalue("policies")
    prepared = Experiment.prepare(ExperimentConfig.model_validate(values), tmp_path / "silos")
    registered(prepared, LedgerFolders.below(tmp_path))
    names = [silo.name for silo in prepared.plan.problem.silos]
    holder = Holder(prepared.site_spec(names, LedgerFolders.below(tmp_path)).to_bytes(), "driver")
    agreement, random, ends = prepared.agreement.to_bytes(), Random(4), Counter()
    assert holder.approve(agreement) == names
    query = prepared.context.query(prepared.config.algorithm.init(prepared.start()))
    head = [query.run, query.plan, 1, 1, names]
    payloads: dict[tuple[str, int], bytes] = {}
    for _ in range(60):
        head[3] = random.randint(1, 42)
        sent = [
            (holder.answer, bent_query(random, head, dict(query.arrays), 10.0, {})),
            (holder.answer, bent_bytes(random, query.to_bytes(), agreement)),
            (holder.approve, json.dumps(bent_tree(random, json.loads(agreement))).encode()),
            (holder.restore, bent_bytes(random, b'[["silo-0", 1, 1, "ab", "cd"]]', agreement)),
            (holder.simulated, bent_bytes(random, packed({"w": np.zeros(4)}), agreement)),
            *((call, random.choice(ODD)) for call in (holder.accounts, holder.close_run, holder.forget_run)),
        ]
        for act, data in sent:
            run = () if act.__name__ not in ("restore", "simulated") else (random.choice([query.run, "never"]),)
            try:
                result = act(*run, data)
            except SiloError as error:
                assert error.__context__ is None and error.__cause__ is None and error.code != "failed"
                assert error.silo in names and str(pickle.loads(pickle.dumps(error))) == str(error)
                ends["refused"] += 1
                continue
            if act.__name__ == "answer" and len(result) > 100:
                address = json.loads(result.partition(b"\n")[0])
                for release in Releases.from_bytes(result, prepared.plan.problem.objective.dim):
                    key = (release.silo, release.round)
                    assert payloads.setdefault(key, release.payload.tobytes()) == release.payload.tobytes()
                assert address[0] == 1 and 1 <= address[1] <= 40
                ends["answered"] += 1
    assert ends["refused"] > 300 and ends["answered"] > 10, ends
    for account in holder.accounts(query.run):
        # What one silo has committed is not sent if another of the site refuses; it is charged all the same.
        assert len({round for silo, round in payloads if silo == account.silo}) <= account.releases <= 40
    holder.close()
