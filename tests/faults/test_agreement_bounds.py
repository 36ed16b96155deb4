"""Agreements that would take a site minutes or gigabytes, or whose outcome would reveal a record."""

from __future__ import annotations

import copy
import json
import time

import numpy as np
import pytest

from fedcore.accounting.calibration import Budget
from fedcore.accounting.composition import worst_mu_squared
from fedcore.accounting.events import GaussianRelease
from fedcore.algorithms import (
    AcceleratedMbsgd,
    ColumnMoments,
    Fedavg,
    LocalizedAccelerated,
    LocalizedMbsgd,
    LocalizedSubgradient,
    Mbsgd,
    OnePassMbsgd,
    SecondMoments,
)
from fedcore.arrays import canonical_json
from fedcore.data.records import Records
from fedcore.errors import SiloError
from fedcore.ledger.memory import MemoryLedger
from fedcore.losses import Logistic
from fedcore.messages import Query, Releases
from fedcore.models import OneHiddenLayer, SoftmaxRegression
from fedcore.planning.problem import SiloFacts
from fedcore.planning.sensitivity.moments import half_diameter
from fedcore.silo import site as site_module
from fedcore.silo.agreement import Agreement
from fedcore.silo.keys import SecretKeys
from fedcore.silo.private_silo import PrivateSilo
from fedcore.silo.site import Site
from tests.faults.arrival_site import check_refusal, limited
from tests.problems import changed, problem_of

HELD = {
    "problem__silos": [
        {"name": "ash", "n": 24, "held": 4, "weight": 1.0},
        {"name": "elm", "n": 40, "held": 4, "weight": 1.0},
    ]
}
ASKED = {"epsilon": 1.0, "every": "end", "classes": 2, "bins": 4, "record_bound": 1.0}


def evaluating(held=HELD, **changes):
    """Fields of a problem with an evaluation, some of them others."""
    return held | {"problem__evaluation": ASKED | changes}


SOUND = problem_of((SiloFacts("ash", 24), SiloFacts("elm", 40)), 3, 1.0, 0.25, 6.0, 2, Budget(1.0, 1e-4))


def made(X=None, **options) -> Site:
    X = np.random.default_rng(0).standard_normal((24, 3)) if X is None else X
    return Site(
        [PrivateSilo("ash", Records(X, np.ones(len(X))), SecretKeys(b"k" * 32), MemoryLedger("ash"), **options)]
    )


def written(method, problem, loss=None, run="run", **changes) -> bytes:
    """The agreement's bytes with fields set past the constructors' checks, for instance `method__rounds=5`."""
    loss = None if isinstance(method, SecondMoments | ColumnMoments) else loss or Logistic()
    sound = Agreement(run, SOUND, method, loss, "0" * 64)
    tree = json.loads(sound.to_bytes())
    tree[2] = json.loads(Agreement(run, problem, method, loss, "0" * 64).to_bytes())[2]
    for key, value in changes.items():
        where, *path = key.split("__")
        node = {"problem": tree[2], "method": tree[3][1], "loss": tree[4] and tree[4][1]}[where]
        for step in path[:-1]:
            node = node[int(step) if step.isdigit() else step]
        node[path[-1]] = copy.deepcopy(value)
    return canonical_json(tree).encode()


def refused(data: bytes, site: Site | None = None) -> str:
    """The sentence, which comes within seconds of computing."""
    began = time.process_time()
    with limited(40), pytest.raises(SiloError) as caught:
        (site or made()).approve(data)
    assert time.process_time() - began < 20  # 2.5 at most where the bound was measured
    check_refusal(caught.value, "agreement")
    return caught.value.sentence


def silos(*sizes):
    return [
        {"name": f"s{number}" if number else "ash", "n": n, "held": 0, "weight": 1.0} for number, n in enumerate(sizes)
    ]


def weights(*values):
    return {f"problem__silos__{place}__weight": value for place, value in enumerate(values)}


@pytest.mark.parametrize("form", [None, 2, 4, "3", True, 3.0])
def test_an_agreement_of_another_version_is_refused_with_the_way_out(form):
    tree = json.loads(written(Mbsgd(), SOUND))
    tree = tree[:-1] if form is None else [*tree[:-1], form]
    keyed = {str(place): value for place, value in enumerate(tree)}
    for each in (tree, keyed):
        assert "install the same version of fedcore" in refused(canonical_json(each).encode())


NONE = {"problem__budget__epsilon": None}
MANY = {"problem__silos": silos(*[24] * 20_000)}
HOSTILE = {
    "rounds": (Mbsgd(), {"method__rounds": 10**12}, "at most 1000000000 rounds"),
    "rounds beyond floats": (Mbsgd(), {"method__rounds": 10**400}, "less than or equal to 9007199254740992"),
    "sampled rounds": (Mbsgd(batch=7), {"method__rounds": 10**7}, "at most 1048576 answers about samples"),
    "local steps": (Fedavg(), {"method__rounds": 10**6, "method__local_steps": 65535}, "at most 1048576 answers"),
    "most rounds": (Fedavg(rounds=None), {"problem__budget__multiplier": 1e9}, "at most 1048576 answers about samples"),
    "fresh blocks": (OnePassMbsgd(), MANY | {"method__rounds": 24}, "20000 silos are more than the 16384"),
    "stages": (LocalizedAccelerated(), NONE | {"method__rounds": 10**7}, "more than 32768 stages"),
    "stages of a ridge": (
        AcceleratedMbsgd(rounds=9),
        NONE | {"method__rounds": 10**7, "problem__objective__ridge": 0.5},
        "more than 32768 stages",
    ),
    "rounds by smoothness": (
        Mbsgd(rounds=None),
        {"problem__objective__smoothness": 1e300},
        "at most 1000000000 rounds",
    ),
    "rounds without an end": (AcceleratedMbsgd(), {"problem__objective__smoothness": 1.7e308}, "give no finite number"),
    "a domain of a point": (AcceleratedMbsgd(rounds=4), {"problem__objective__diameter": 1e-320}, "leaves no finite"),
    "theory's rounds": (LocalizedAccelerated(rounds_scale=1e50), {}, "at most 1000000000 rounds"),
    "exponent": (
        LocalizedSubgradient(exponent=1e50),
        {"problem__objective__smoothness": float("inf")},
        "lambda would be above 1e+100",
    ),
    "tiny epsilon": (Mbsgd(batch=7), {"problem__budget__epsilon": 1e-300}, "must lie between 1e-12 and 10000"),
    "huge epsilon": (Mbsgd(batch=7), {"problem__budget__epsilon": 1e300}, "must lie between 1e-12 and 10000"),
    "tiny delta": (Mbsgd(batch=7), {"problem__budget__fixed_delta": 5e-324}, "must lie between 1e-250 and 1"),
    "huge noise": (Mbsgd(batch=7), {"problem__budget__multiplier": 1e300}, "must lie between 5e-324 and 1000000000"),
    "weights": (Mbsgd(), {"problem__objective__dim": 2**40 - 1}, "1 to 67108864 do"),
    "tiny clip": (Mbsgd(), {"problem__objective__clip": 5e-324}, "must be more than 1e-100"),
    "participants": (Mbsgd(), {"problem__participants": 10**13}, "1e+13 participants make no problem"),
    "more participants than silos": (  # the variance between silos came out negative, and planning failed at its root
        LocalizedAccelerated(rounds=4, lam=0.5),
        {"problem__participants": 21},
        "21 participants make no problem",
    ),
    "participants of a list without any": (Mbsgd(), {"problem__participants": []}, "at least 1 item"),
    "participants of a list with none": (Mbsgd(), {"problem__participants": [1, 0]}, "participants.tuple.1: Input"),
    "participants of a list above all": (Mbsgd(), {"problem__participants": [1, 3]}, "3 participants make no problem"),
    "participants of a list below none": (Mbsgd(), {"problem__participants": [-1]}, "participants.tuple.0: Input"),
    "participants of a long list": (Mbsgd(), {"problem__participants": [1] * 70_000}, "a list or a section"),
    "participants by halves": (Mbsgd(), {"problem__participants": [1.5]}, "valid integer"),
    "participants in floats": (Mbsgd(), {"problem__participants": [1.0]}, "an agreement has one form"),
    "participants that nobody draws": (Mbsgd(), {"problem__participants": {"poisson": 0.5}}, "participants"),
    "participants by no coin": (Mbsgd(), {"problem__participants": {"binomial": 0.0}}, "greater than 0"),
    "participants by more than a coin": (Mbsgd(), {"problem__participants": {"binomial": 1.5}}, "less than or equal"),
    "participants by what is no number": (Mbsgd(), {"problem__participants": {"binomial": float("nan")}}, "binomial"),
    "participants in two forms": (Mbsgd(), {"problem__participants": {"binomial": True}}, "not numbers"),
    "a long name": (Mbsgd(), {"problem__silos": [{"name": "x" * 10**6, "n": 9}]}, "1 to 200 printable characters"),
    "a name of no letters": (Mbsgd(), {"problem__silos": [{"name": "a\n", "n": 9}]}, "1 to 200 printable characters"),
    "columns": (ColumnMoments(3), {"method__columns": -5}, "greater than or equal to 1"),
    "moments": (SecondMoments(3, 1.5), {"method__features": -5}, "greater than or equal to 1"),
    "evaluations of nobody": (Mbsgd(), {"problem__evaluation": ASKED}, "needs records of each silo"),
    "nobody to train on": (Mbsgd(), evaluating({**HELD, "problem__silos__0__held": 24}), "needs records of each silo"),
    "fewer than none held out": (
        Mbsgd(),
        evaluating({**HELD, "problem__silos__0__held": -3}),
        "needs records of each silo",
    ),
    "held out for nothing": (Mbsgd(), HELD, "needs records of each silo"),
    "evaluations without noise": (Mbsgd(), evaluating(epsilon=None), "where training adds noise"),
    "cells beyond memory": (Mbsgd(), evaluating(classes=10**6), "2 to 1000 classes"),
    "bins beyond memory": (Mbsgd(), evaluating(bins=10**9), "an even number from 2 to 64"),
    "classes that a loss has not": (Mbsgd(), evaluating(classes=3), "the evaluation says 3 classes"),
    "scores in units of nothing": (Mbsgd(), evaluating(record_bound=0.0), "a norm of records"),
    "evaluations at a huge target": (Mbsgd(), evaluating(epsilon=1e300), "must lie between 1e-12 and 10000"),
    "evaluations at no time": (Mbsgd(), evaluating(every="never"), "every"),
    "weights below none": (Mbsgd(), weights(3.0, -1.0), "weight is above 0"),
    "weights that are no numbers": (Mbsgd(), weights(float("nan"), 1.0), "weight is above 0"),
    "weights without an end": (Mbsgd(), weights(float("inf"), 1.0), "weight is above 0"),
    "weights of nothing": (Mbsgd(), weights(2.0, 0.0), "weight is above 0"),
    "weights of another mean": (Mbsgd(), weights(1.0, 2.0), "weights of silos have mean 1"),
    "weights that are nobody's": (Mbsgd(), weights(None, 1.0), "silos.0.weight: Input should be a valid number"),
    "weights in lists": (Mbsgd(), weights([1.0], [1.0]), "silos.0.weight: Input should be a valid number"),
    "a silo of one record": (LocalizedMbsgd(), {"problem__silos": silos(24, 1)}, "makes no plan of these"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_an_agreement_beyond_a_bound_is_refused_at_once_and_the_bound_is_named(name):
    method, changes, message = HOSTILE[name]
    assert message in refused(written(method, SOUND, **changes))


def test_a_silo_compares_its_records_before_a_plan_is_made(monkeypatch):
    """Planning for other sizes may take minutes, and is of no use."""
    monkeypatch.setattr(Mbsgd, "plan", lambda *_: pytest.fail("planned"))
    assert "24000 records, it holds 24" in refused(written(Mbsgd(), SOUND, problem__silos=silos(24000, 40)))
    assert "the plan says 4 weights" in refused(written(Mbsgd(), SOUND, problem__objective__dim=4))


def test_classes_whose_indicators_would_not_fit_into_memory_are_refused():
    """2^20 columns for each record, before the run is refused or not: weights and problem agree with each other."""
    problem = changed(SOUND, dim=3 * 2**20)
    message = refused(written(Mbsgd(), problem, SoftmaxRegression(2), loss__classes=2**20))
    assert "less than or equal to 4096" in message
    rows = made(np.ones((2**17, 1)))
    problem = changed(
        SOUND, silos=(SiloFacts("ash", 2**17),), dim=2 * 2**14 + 4, participants=1, budget=Budget(1.0, 1e-6)
    )
    loss = OneHiddenLayer(2, 2**13 * 2)
    problem = changed(problem, dim=2**14 + 2 * (2**14 + 1))
    data = Agreement("run", problem, Mbsgd(), loss, Mbsgd().plan(problem).digest).to_bytes()
    assert "more than the 134217728 numbers" in refused(data, rows)


def test_moments_of_a_negative_bound_do_not_tell_of_a_record_of_zeros():
    """The norm of zeros is above such a bound: a division by it once made the whole answer NaN, or failed."""
    outcomes = set()
    for zeros in (False, True):
        X = np.ones((40, 3))
        X[7] *= not zeros
        problem = changed(
            SOUND,
            silos=(SiloFacts("ash", 40),),
            dim=9,
            clip=half_diameter(2.0),
            smoothness=np.inf,
            diameter=np.inf,
            participants=1,
        )
        method = SecondMoments(3, 2.0)
        object.__setattr__(method, "bound", -2.0)
        plan = method.plan(problem).digest
        site = made(X)
        try:
            site.approve(Agreement("run", problem, method, None, plan).to_bytes())
            answer = site.answer(Query("run", plan, 1, 1, ("ash",), {}).to_bytes())
            outcomes.add(str(np.isfinite(Releases.from_bytes(answer, 9)[0].payload).all()))
        except SiloError as error:
            outcomes.add(error.sentence)
    assert outcomes == {"this is no agreement: its method does not fit: bound: Input should be greater than 0"}


def test_no_address_of_this_process_is_in_a_sentence():
    """For a field of one of several kinds, pydantic names the kind by its validators' repr."""
    text = refused(written(LocalizedAccelerated(), SOUND, method__rounds=0))
    assert "0x" not in text and "functools" not in text and text.endswith("greater than or equal to 1")


def test_a_site_keeps_a_bounded_number_of_runs_open(monkeypatch):
    monkeypatch.setattr(site_module, "MOST_OPEN", 3)
    site, plan = made(), Mbsgd(rounds=5).plan(SOUND).digest
    sent = [Agreement(f"run-{n}", SOUND, Mbsgd(rounds=5), Logistic(), plan).to_bytes() for n in range(4)]
    for data in sent[:3]:
        site.approve(data)
    assert "3 runs open" in refused(sent[3], site)
    site.approve(sent[0])
    site.forget_run("run-1")
    site.approve(sent[3])


def test_a_run_that_one_silo_refuses_is_kept_by_none():
    """Without the bound, a copy of the first silo's records would stay in memory for each such run."""
    rng = np.random.default_rng(0)
    first, second = (
        PrivateSilo(name, Records(rng.standard_normal((24, 3)), np.ones(24)), SecretKeys(b"k" * 32), MemoryLedger(name))
        for name in ("ash", "elm")
    )
    site = Site([first, second])
    method = Mbsgd(rounds=5)
    data = Agreement("run", SOUND, method, Logistic(), method.plan(SOUND).digest).to_bytes()
    assert "40 records, it holds 24" in refused(data, site)
    assert first._runs == {} and second._runs == {}


@pytest.mark.parametrize("run", [None, 5, [], {}, b"run", ["run"]])
def test_a_run_id_of_another_type_is_refused_wherever_one_is_named(run):
    site = made()
    for call in (site.accounts, site.close_run, site.forget_run):
        with pytest.raises(SiloError) as caught:
            call(run)
        check_refusal(caught.value, "run")


def test_composition_over_disjoint_pieces_is_the_sum_at_each_position():
    """Against positions one by one, with shards that begin, end and repeat anywhere; and many take no minutes."""
    rng = np.random.default_rng(4)
    for _ in range(50):
        at = np.sort(rng.integers(0, 12, (9, 2)), axis=1)
        sigmas = rng.choice([1.0, 2.0, 0.3], 9)
        events = [GaussianRelease(int(a), int(b) + 1, 0.1, s) for (a, b), s in zip(at, sigmas, strict=True)]
        total = np.zeros(14)
        for event in events:
            total[event.start : event.stop] += (event.sensitivity / event.sigma) ** 2
        assert worst_mu_squared(events) == pytest.approx(total.max(), rel=1e-12)
    with limited(10):
        worst_mu_squared(GaussianRelease(block, block + 1, 0.1, 1.0) for block in range(30_000))
