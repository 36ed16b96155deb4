"""A silo's policy: its file, its refusals with the line, its clock, and its entries in the ledger."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import sqlite3
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta, timezone

import numpy as np
import pytest
import yaml

from fedcore.accounting.calibration import Budget
from fedcore.accounting.filters import Cap, Charge
from fedcore.algorithms import (
    ALGORITHMS,
    ColumnMoments,
    Fedsgd,
    LargestEigenvalue,
    LocalizedSubgradient,
    Mbsgd,
    Scaffold,
    SecondMoments,
)
from fedcore.data.records import Records
from fedcore.errors import InputError, SiloError
from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.experiment import Experiment, make_plan
from fedcore.federation.in_process import InProcess
from fedcore.federation.rounds import rounds
from fedcore.home import LedgerFolders
from fedcore.ledger.memory import MemoryLedger
from fedcore.ledger.sqlite import SqliteLedger
from fedcore.ledger.storage.verify import faults
from fedcore.losses import LOSSES, Convolution, DrawnConvolution, Hinge, Huber, Logistic, Moreau, Squared
from fedcore.models import OneHiddenLayer, RegressionNetwork, SoftmaxRegression
from fedcore.planning.problem import SiloFacts
from fedcore.planning.sensitivity.moments import half_diameter, length
from fedcore.silo.keys import SecretKeys
from fedcore.silo.opening import open_site
from fedcore.silo.policies.policy import METHODS, OBJECTIVES, Policy, loss_names, method_names
from fedcore.silo.policies.policy_file import policy_of, policy_path, read_policy
from fedcore.silo.policies.policy_in_force import PolicyInForce
from fedcore.silo.private_silo import PrivateSilo
from tests.fedcore.refusal import refusal
from tests.policies import ALL, write_policy
from tests.problems import problem_of
from tests.registers import registered

N = 50


def policy(**changes) -> Policy:
    return Policy.model_validate(ALL | changes)


def asked(held: Policy, charge: Charge, method=None, loss=None, ledger=None, run="new", now=None) -> str | None:
    """The policy's refusal of one more run, at a silo of N records; None if it allows the run."""
    clock = (lambda: now) if now is not None else (lambda: datetime(2026, 1, 1, tzinfo=UTC))
    force = PolicyInForce(held, "ash", N, clock)
    loss = None if isinstance(method, SecondMoments) else loss or Logistic()
    try:
        force.approve(run, method or Mbsgd(), loss, charge, ledger or MemoryLedger("ash"))
    except SiloError as error:
        assert (error.silo, error.code) == ("ash", "policy")
        return error.sentence
    return None


def charge(mu: float, epsilon: float = 1.0, delta: float = 1e-5) -> Charge:
    return Charge(mu**2, epsilon, delta)


# The file


def test_all_that_is_wrong_with_a_policy_is_said_by_key(tmp_path):
    path = tmp_path / "p.yaml"
    path.write_text(
        "methods: [mbsdg]\nlosses: logistic\ncap: {epsilon: -1, rul: gdp}\none_run: {delta: 1}\nruns: 1000001\n"
        "expires: 2027-01-31T18:00:00\nexpire: 2027-01-31\n"
    )
    lines = refusal(read_policy, path).splitlines()
    assert all(line.startswith(f"{path}: ") for line in lines)
    assert [line.removeprefix(f"{path}: ") for line in lines] == [
        "methods = ['mbsdg']: 'mbsdg' is no method; did you mean mbsgd?",
        "losses = 'logistic': give a list of names, for instance [absolute]",
        "cap.epsilon = -1: it should be greater than 0",
        "cap.rul is not a known key; did you mean rule?",
        "one_run.epsilon is missing",
        "runs = 1000001: it should be less than or equal to 1000000",
        "expires = '2027-01-31T18:00:00': give a date (2027-01-31) or a date-time with a zone "
        "(2027-01-31T18:00:00+01:00)",
        "expire is not a known key; did you mean expires?",
    ]


@pytest.mark.parametrize("key", ["methods", "losses", "cap", "runs", "expires"])
def test_every_bound_has_to_be_given(tmp_path, key):
    path = tmp_path / "p.yaml"
    path.write_text(yaml.safe_dump({name: value for name, value in ALL.items() if name != key}))
    assert refusal(read_policy, path) == f"{path}: {key} is missing"
    assert policy(one_run=None).one_run is None  # the only one that is not


@pytest.mark.parametrize(
    "change",
    [
        {"cap": {"epsilon": 1, "delta": 0}},
        {"cap": {"epsilon": 1, "delta": 1}},
        {"cap": {"epsilon": math.inf}},
        {"cap": {"epsilon": True}},
        {"one_run": {"epsilon": 1, "delta": 2}},
        {"one_run": {"epsilon": math.nan}},
        {"runs": 0},
        {"runs": True},
        {"runs": 1.5},
        {"methods": []},
        {"losses": [None]},
        {"losses": {"logistic": 1}},
        {"expires": 20270131},
        {"expires": "soon"},
        {"expires": "2027-01-31T10:00"},
        {"expires": None},
        {"cap": None},
    ],
)
def test_what_is_no_bound_is_refused(change):
    with pytest.raises(ValueError):
        policy(**change)


def test_equal_policies_have_one_digest_whatever_they_look_like(tmp_path):
    first, second = tmp_path / "1.yaml", tmp_path / "2.yaml"
    first.write_text(
        "methods: [mbsgd, scaffold]\nlosses: [logistic]\ncap: {epsilon: 2}\nruns: 3\nexpires: 2027-01-31\n"
    )
    second.write_text(
        "# mine\nexpires: '2027-01-31'\nruns: 3\ncap: {rule: gdp, delta: 1/n^2, epsilon: 2.0}\nlosses: [logistic]\n"
        "one_run: null\nmethods:\n- scaffold\n- mbsgd\n- mbsgd\n"
    )
    by_hand = (
        '{"cap": {"delta": "1/n^2", "epsilon": 2.0, "rule": "gdp"}, "expires": "2027-01-31", "losses": ["logistic"], '
        '"methods": ["mbsgd", "scaffold"], "one_run": null, "runs": 3}'
    )
    for path in (first, second):
        held = read_policy(path)
        assert (held.text, held.digest) == (by_hand, hashlib.sha256(by_hand.encode()).hexdigest())
    assert read_policy(first).model_copy(update={"runs": 4}).digest != read_policy(first).digest


def test_a_silo_has_its_own_policy_or_that_of_its_machine(policies):
    write_policy(policies, "ash", runs=7)
    assert (policy_of("ash", True).runs, policy_of("birch", True).runs) == (7, ALL["runs"])
    assert policy_path("ash") == policies / "ash.yaml"
    for silo, guarded in itertools.product(("ash", "birch"), (False,)):
        with pytest.raises(SiloError, match="never opened unguarded"):
            policy_of(silo, guarded)
    (policies / "default.yaml").unlink()
    assert policy_of("birch", False) is None
    with pytest.raises(SiloError, match=r"birch\.yaml, or default\.yaml beside it"):
        policy_of("birch", True)


@pytest.mark.parametrize("silo", ["../policies/ash", "/etc/ash", "", "a\0b", "."])
def test_a_name_does_not_lead_out_of_the_folder(policies, silo):
    write_policy(policies, "ash")
    for guarded in (False, True):
        with pytest.raises(SiloError, match=r"its policy cannot be read|never opened unguarded") as caught:
            policy_of(silo, guarded)
        assert caught.value.code == "policy"


def test_a_folder_that_is_not_there_does_not_make_silos_unguarded(tmp_path, monkeypatch):
    """A disk that is not mounted, a name with a mistake in it. Without the variable there may be no folder."""
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "gone", tmp_path / "file"):
        monkeypatch.setenv("FEDCORE_POLICIES", str(place))
        with pytest.raises(SiloError, match="cannot be read"):
            policy_of("ash", False)
    monkeypatch.delenv("FEDCORE_POLICIES")
    monkeypatch.setenv("FEDCORE_HOME", str(tmp_path / "home"))
    assert policy_of("ash", False) is None
    write_policy(tmp_path / "home" / "policies")
    assert policy_of("ash", True) == policy()


# Its lines


def test_each_line_is_named_by_the_refusal():
    one = charge(0.1)
    held = {"a": charge(0.1), "b": charge(0.1)}
    ledger = MemoryLedger("ash")
    for run, before in held.items():
        ledger.open_run(run, "plan", b"k", before, None)
    late = datetime(2030, 5, 1, tzinfo=timezone(timedelta(hours=2)))
    for change, arguments, sentence in (
        ({"methods": ["scaffold"]}, {}, "methods = [scaffold]; run new asks for mbsgd"),
        ({"losses": ["hinge"]}, {}, "losses = [hinge]; run new asks for logistic"),
        ({"runs": 2}, {}, "runs = 2 (2 approved before); run new is one more"),
        ({"one_run": {"epsilon": 0.99}}, {}, "one_run.epsilon = 0.99; run new asks for 1"),
        ({"one_run": {"epsilon": 1, "delta": 9e-6}}, {}, "one_run.delta = 9e-06; run new asks for 1e-05"),
        (
            {"cap": {"epsilon": 2.5, "delta": 1e-4, "rule": "basic"}},
            {},
            "cap.epsilon = 2.5 over all runs (0.5 left); run new asks for 1",
        ),
        (
            {"cap": {"epsilon": 9, "delta": 2.5e-5, "rule": "basic"}},
            {},
            "cap.delta = 2.5e-05 over all runs (4.999e-06 left); run new asks for 1e-05",
        ),
        (
            {"expires": "2030-04-29"},
            {"now": late},
            "nothing new after expires = 2030-04-29; run new asks at 2030-04-30 22:00:00+00:00",
        ),
    ):
        start = "its policy allows "
        assert asked(policy(**change), one, ledger=ledger, **arguments) == start + sentence
    assert asked(policy(runs=3, one_run={"epsilon": 1, "delta": 1e-5}), one, ledger=ledger) is None
    assert list(ledger.charges()) == ["a", "b"]  # a policy reserves nothing


def test_the_limits_of_one_run_are_kept_to_the_last_digit():
    one = policy(one_run={"epsilon": 1, "delta": 1e-5})
    mu = charge(0.1).mu_squared
    assert asked(one, Charge(mu, 1.0, 1e-5)) is None
    message = asked(one, Charge(mu, math.nextafter(1.0, 2.0), 1e-5))
    assert message == "its policy allows one_run.epsilon = 1; run new asks for 1.001"
    message = asked(one, Charge(mu, 1.0, math.nextafter(1e-5, 1)))
    assert message == "its policy allows one_run.delta = 1e-05; run new asks for 1.001e-05"


@pytest.mark.parametrize("epsilon", [0.1, 0.3, 1.0, 1.7, 3.0, 8.0])
@pytest.mark.parametrize("method", [{"rounds": 7}, {"rounds": 20, "batch": 10}])
def test_a_run_of_the_largest_epsilon_of_one_run_fits(epsilon, method):
    """Noise that is searched for keeps to its target without a tolerance: rounding is on its side."""
    data = {"source": "synthetic", "silos": 2, "records": 313, "features": 3}
    values = {"data": data, "algorithm": {"name": "mbsgd", **method}, "privacy": {"epsilon": epsilon}}
    made = make_plan(ExperimentConfig.model_validate(values))
    planned = Charge.of(made.charged_events(made.problem.silos[0].name), made.problem.budget.delta(313))
    assert epsilon * (1 - 1e-3) < planned.epsilon <= epsilon and planned.delta <= 1.0 / 313**2


def test_deltas_of_a_policy_are_of_the_silos_own_size():
    """1/n^2 of its 50 records is 4e-4."""
    assert asked(policy(one_run={"epsilon": 1}), charge(0.1, delta=4e-4)) is None
    message = asked(policy(one_run={"epsilon": 1}), charge(0.1, delta=4.01e-4))
    assert message == "its policy allows one_run.delta = 0.0004; run new asks for 0.000401"
    basic = policy(cap={"epsilon": 5, "rule": "basic"})
    assert asked(basic, charge(0.1, delta=4e-4)) is None
    assert asked(basic, charge(0.1, delta=4.01e-4)).startswith("its policy allows cap.delta = 0.0004 over all runs")


def test_answers_without_noise_are_refused_whatever_the_cap():
    none = Charge(math.inf, math.inf, 1e-5)
    for change in ({}, {"cap": {"epsilon": 1e9, "delta": 0.5, "rule": "basic"}}, {"one_run": {"epsilon": 1e300}}):
        assert asked(policy(**change), none).endswith("run new asks for answers without noise")


def test_a_policy_knows_methods_and_losses_by_their_class():
    """A pickled object may carry any name."""
    forged = Scaffold()
    object.__setattr__(forged, "name", "mbsgd")
    assert method_names(forged) == ("scaffold",)
    statistics = [SecondMoments(3, 1.0), ColumnMoments(3), LargestEigenvalue(1.0)]
    known = [*(kind() for kind in ALGORITHMS.values()), *statistics]
    assert {name for method in known for name in method_names(method)} == set(METHODS)
    assert method_names(type("Mbsgd", (Mbsgd,), {})()) == ("an unknown method",)
    assert "an unknown method" not in METHODS and "an unknown loss" not in OBJECTIVES

    hinge = Hinge()
    object.__setattr__(hinge, "name", "logistic")
    assert loss_names(hinge) == ("hinge",)
    assert [loss_names(kind()) for kind in LOSSES.values()] == [(name,) for name in LOSSES]
    assert loss_names(Moreau(Hinge(), 1.0)) == ("moreau", "hinge")
    assert loss_names(Convolution(Hinge(), 1.0, 3)) == ("convolution", "hinge")
    assert loss_names(DrawnConvolution(Hinge(), 1.0, 1.0, 3)) == ("convolution-sampled", "hinge")
    assert loss_names(SoftmaxRegression(3)) == ("softmax",) and loss_names(OneHiddenLayer(3, 4)) == ("network",)
    assert loss_names(RegressionNetwork(3)) == ("network", "squared")
    assert loss_names(RegressionNetwork(3, "softplus", Huber())) == ("network", "huber")
    assert loss_names(type("RegressionNetwork", (RegressionNetwork,), {})(3)) == ("an unknown loss",)
    assert loss_names(type("Logistic", (Logistic,), {})()) == ("an unknown loss",)
    assert loss_names(object()) == ("an unknown loss",)


def test_a_smoothed_loss_needs_both_names_and_moments_need_none():
    one, smoothed = charge(0.1), Moreau(Hinge(), 1.0)
    for names, missing in ((["hinge"], "moreau"), (["moreau"], "hinge")):
        message = asked(policy(losses=names), one, LocalizedSubgradient(), smoothed)
        assert message == f"its policy allows losses = {[*names]}; run new asks for {missing}".replace("'", "")
    assert asked(policy(losses=["hinge", "moreau"]), one, LocalizedSubgradient(), smoothed) is None
    assert asked(policy(losses=["hinge"]), one, SecondMoments(3, 1.0)) is None
    assert "asks for column-moments" in asked(policy(methods=["mbsgd", "second-moments"]), one, ColumnMoments(3))
    message = asked(policy(methods=["mbsgd"]), one, SecondMoments(3, 1.0))
    assert message.endswith("asks for second-moments")


def test_a_policy_can_ask_for_persons_of_one_column_and_without_it_has_the_digest_it_had():
    held = policy(person="patient")
    for unit, words in ((None, "records"), ("visit", "persons by column 'visit'")):
        force = PolicyInForce(held, "ash", N, person=unit)
        with pytest.raises(SiloError) as caught:
            force.allows("new", Mbsgd(), Logistic(), MemoryLedger("ash"))
        assert caught.value.sentence == f"its policy allows person = 'patient'; run new asks for {words}"
    for other in (held, policy()):
        PolicyInForce(other, "ash", N, person="patient").allows("new", Mbsgd(), Logistic(), MemoryLedger("ash"))
    assert "person" not in policy().text and '"person": "patient"' in held.text


def test_the_cap_of_a_policy_is_the_filter_of_the_ledgers(tmp_path):
    """gdp by hand: mu^2 of runs add up to that of the cap. Charges of closed runs count as they were settled."""
    ledger = SqliteLedger("ash", tmp_path / "v" / "a.sqlite", tmp_path / "a.anchor")
    held = policy(cap={"epsilon": 1.0, "delta": 1e-5})
    largest = math.sqrt(Cap(1.0, 1e-5)._largest_mu_squared())
    ledger.open_run("a", "plan", b"k" * 32, charge(0.8 * largest), None)
    assert asked(held, charge(0.6 * largest * (1 - 1e-9)), ledger=ledger) is None
    assert "cap.epsilon = 1 over all runs" in asked(held, charge(0.6 * largest * (1 + 1e-9)), ledger=ledger)
    ledger.close_run("a", (0.1 * largest) ** 2)
    assert asked(held, charge(0.99 * largest), ledger=ledger) is None
    ledger.close()


# Its clock


def test_a_date_ends_with_its_day_in_utc_and_a_moment_at_once():
    east = timezone(timedelta(hours=14))
    last = policy(expires="2027-01-31")
    assert not last.expired(datetime(2027, 1, 31, 23, 59, 59, tzinfo=UTC))
    assert last.expired(datetime(2027, 2, 1, tzinfo=UTC))
    assert not last.expired(datetime(2027, 2, 1, 13, 59, tzinfo=east))
    moment = policy(expires="2027-01-31T18:00:00+01:00")
    assert not moment.expired(datetime(2027, 1, 31, 17, 0, tzinfo=UTC))
    assert moment.expired(datetime(2027, 1, 31, 17, 0, 1, tzinfo=UTC))
    assert not policy(expires=date.max).expired(datetime(9999, 12, 31, 23, tzinfo=UTC))


def test_a_policy_that_expires_during_a_run_ends_it(tmp_path, policies):
    """Earlier rounds are answered, the next one not; answers are repeated, and the rest of the budget is returned."""
    write_policy(policies, expires="2027-01-31T18:00:00+00:00")
    made = Experiment.prepare(
        ExperimentConfig.model_validate(
            {
                "data": {"source": "synthetic", "silos": 2, "records": 50, "features": 4, "test_records": 9},
                "privacy": {"epsilon": 2, "delta": 1e-5, "ledger": "sqlite", "noise": "guarded"},
                "algorithm": {"name": "mbsgd", "rounds": 4},
            }
        ),
        tmp_path / "silos",
    )
    registered(made, LedgerFolders.below(tmp_path))
    names, now = [silo.name for silo in made.plan.problem.silos], [datetime(2027, 1, 31, 17, 59, tzinfo=UTC)]
    site = open_site(made.site_spec(names, LedgerFolders.below(tmp_path)), lambda: now[0])
    backend = InProcess(site, made.agreement)
    backend.open()

    def play(count):
        loop = rounds(made.context, made.config.algorithm.init(made.start()), backend.ask)
        return [[release.payload.tobytes() for release in next(loop)[1]] for _ in range(count)]

    first = play(2)
    now[0] = datetime(2027, 1, 31, 18, 0, 0, 1, tzinfo=UTC)
    assert play(2) == first
    with pytest.raises(SiloError, match=r"nothing new after expires = 2027-01-31 18:00:00\+00:00; run") as caught:
        play(3)
    assert caught.value.code == "policy"
    backend.open()  # a driver that comes back
    assert play(2) == first
    assert {message.releases for message in backend.accounts(made.run)} == {2}
    now[0] = datetime(2027, 1, 31, 18, tzinfo=UTC)  # a clock that is set back brings nothing back
    backend.open()
    with pytest.raises(SiloError, match="nothing new after expires"):
        play(4)
    backend.close_run(made.run)
    backend.close()


# At a silo


def silo(folder, held: Policy | None, method, epsilon=1.0, cap=None, multiplier=None, mechanism="discrete-gaussian"):
    """A guarded silo of N records with three features, and a plan for it."""
    records = Records(np.random.default_rng(1).standard_normal((N, 3)), np.ones(N))
    ledger = SqliteLedger("ash", folder / "v" / "ash.sqlite", folder / "ash.anchor")
    moments = isinstance(method, SecondMoments)
    problem = problem_of(
        (SiloFacts("ash", N),),
        length(3) if moments else 3,
        half_diameter(1.0) if moments else 1.0,
        1.0,
        10.0,
        1,
        Budget(epsilon, 1e-5, mechanism=mechanism, multiplier=multiplier),
    )
    made = PrivateSilo("ash", records, SecretKeys(b"k" * 32), ledger, cap, True, held)
    return made, method.plan(problem), ledger


def refused(made, plan, method, loss=None, run="run") -> SiloError:
    loss = None if isinstance(method, SecondMoments) else loss or Squared()
    with pytest.raises(SiloError) as caught:
        made.approve(run, plan, method, loss)
    return caught.value


@pytest.mark.parametrize("method", [Mbsgd(rounds=3), Fedsgd(rounds=2), SecondMoments(3, 1.0)])
def test_both_caps_must_admit_a_run_and_the_policy_speaks_first(tmp_path, method):
    small, large = {"epsilon": 0.9, "delta": 1e-5}, {"epsilon": 9.0, "delta": 1e-5, "rule": "basic"}
    for number, (mine, theirs, code) in enumerate(((small, large, "policy"), (large, small, "cap"))):
        made, plan, ledger = silo(tmp_path / str(number), policy(cap=mine), method, cap=Cap(**theirs))
        error = refused(made, plan, method)
        assert error.code == code and ("its policy allows cap.epsilon = 0.9" in error.sentence) == (code == "policy")
        assert ledger.charges() == {}
        ledger.close()


def test_a_plan_without_noise_is_refused_by_the_policy(tmp_path):
    for number, mechanism in enumerate(("discrete-gaussian", "gaussian")):
        made, plan, ledger = silo(tmp_path / str(number), policy(), Mbsgd(), epsilon=None, mechanism=mechanism)
        error = refused(made, plan, Mbsgd())
        assert error.code == "policy" and error.sentence.endswith("run run asks for answers without noise")
        assert ledger.charges() == {}
        ledger.close()


def test_noise_that_the_server_names_is_priced_like_any_other(tmp_path):
    """`privacy.noise_multiplier` instead of epsilon: little noise is a high price."""
    made, plan, ledger = silo(tmp_path, policy(cap={"epsilon": 3, "delta": 1e-5}), Mbsgd(), None, multiplier=0.5)
    assert "its policy allows cap.epsilon = 3 over all runs (3 left)" in refused(made, plan, Mbsgd()).sentence
    ledger.close()


# In the ledger


def opened(folder) -> SqliteLedger:
    return SqliteLedger("ash", folder / "v" / "ash.sqlite", folder / "ash.anchor")


def test_runs_that_a_ledger_has_lost_count_among_those_approved(tmp_path):
    """Its file is rolled back to before each run, and its operator reconciles; the anchor has counted the run."""
    path, anchor, held = tmp_path / "v" / "ash.sqlite", tmp_path / "ash.anchor", policy(runs=3)
    opened(tmp_path).close()
    for number in range(3):
        before = path.read_bytes()
        ledger = opened(tmp_path)
        assert asked(held, charge(0.1), ledger=ledger) is None, f"{number} runs of 3 were approved"
        ledger.open_run(f"run {number}", "plan", b"k" * 32, charge(0.1), None)
        ledger.close()
        path.write_bytes(before)
        ledger = SqliteLedger("ash", path, anchor, fitting=False)
        ledger.reconcile()
        assert ledger.runs == number + 1 and not ledger.is_run(f"run {number}")
        ledger.close()
    ledger = opened(tmp_path)
    message = asked(held, charge(0.1), ledger=ledger)
    ledger.close()
    assert message == "its policy allows runs = 3 (3 approved before); run new is one more"
    assert faults("ash", path, anchor) == []


def test_each_change_of_a_policy_is_an_entry_of_the_ledger(tmp_path):
    first, second = policy(), policy(runs=5)
    for held in (first, first, second, second, first):
        made, plan, ledger = silo(tmp_path, held, Mbsgd())
        made.approve("run", plan, Mbsgd(), Squared())
        ledger.close()
    ledger = opened(tmp_path)
    assert [(digest, text) for _, digest, text in ledger.policies()] == [
        (held.digest, held.text) for held in (first, second, first)
    ]
    assert [number for number, _, _ in ledger.policies()] == [2, 5, 6]  # 1 is the opening, 3 the cap, 4 the approval
    assert Policy.model_validate(json.loads(ledger.policies()[1][2])) == second
    assert list(ledger.charges()) == ["run"]
    ledger.close()
    assert faults("ash", tmp_path / "v" / "ash.sqlite", tmp_path / "ash.anchor") == []


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE entries SET body = replace(body, '1000.0', '9000.0') WHERE sequence = 2",
        "DELETE FROM entries WHERE sequence = 2",
    ],
)
def test_an_entry_of_a_policy_is_chained_like_any_other(tmp_path, statement):
    *_, ledger = silo(tmp_path, policy(), Mbsgd())
    ledger.record_policy(policy(runs=5).digest, policy(runs=5).text)
    ledger.close()
    db = sqlite3.connect(tmp_path / "v" / "ash.sqlite")
    assert db.execute(statement).rowcount == 1
    db.commit()
    db.close()
    assert faults("ash", tmp_path / "v" / "ash.sqlite", tmp_path / "ash.anchor") != []


def test_a_recorded_policy_is_anchored(tmp_path):
    """A copy of the ledger from before the change is behind its anchor."""
    *_, ledger = silo(tmp_path, policy(), Mbsgd())
    ledger.close()
    path = tmp_path / "v" / "ash.sqlite"
    before = path.read_bytes()
    *_, ledger = silo(tmp_path, policy(runs=5), Mbsgd())
    ledger.close()
    path.write_bytes(before)
    with pytest.raises(SiloError) as caught:
        opened(tmp_path)
    assert caught.value.code == "ledger-lost"


def test_a_ledger_in_memory_keeps_policies_too():
    ledger, first = MemoryLedger("ash"), policy()
    for held in (first, first, replace_runs(first, 5), first):
        ledger.record_policy(held.digest, held.text)
    assert [digest for digest, _ in ledger._policies] == [
        held.digest for held in (first, replace_runs(first, 5), first)
    ]


def replace_runs(held: Policy, runs: int) -> Policy:
    return held.model_copy(update={"runs": runs})


def test_specs_say_nothing_of_policies(tmp_path, policies):
    made = Experiment.prepare(
        ExperimentConfig.model_validate(
            {
                "data": {"source": "synthetic", "silos": 1, "records": 20, "features": 2, "test_records": 5},
                "privacy": {"epsilon": 2, "ledger": "sqlite", "noise": "guarded"},
                "algorithm": {"name": "mbsgd"},
            }
        ),
        tmp_path / "silos",
    )
    spec = made.site_spec(["silo-000"], LedgerFolders.below(tmp_path))
    assert "polic" not in repr(replace(spec, sources=())).replace(str(tmp_path), "")
    with pytest.raises(InputError, match="there is no policy"):
        read_policy(policies / "other.yaml")
