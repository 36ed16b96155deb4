"""Every registered method through one set of tests: what it plans, answers, charges, and where it arrives.

Whoever adds a method to ALGORITHMS is tested with its default hyperparameters; a row in QUICK or EXACT makes the
tests faster or sharper. A method with a `batch` is tested with secret samples too.
"""

import dataclasses
import functools
import math
import warnings
from collections import Counter

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, NeighboringRelation, PoissonSampledDpEvent
from dp_accounting.pld import PLDAccountant, pld_pmf
from scipy import stats
from scipy.optimize import brentq

from fedcore.algorithms import ALGORITHMS
from fedcore.arrays import pack, unpack
from fedcore.data.records import Records
from fedcore.errors import InputError, SiloError
from fedcore.ledger.ledger import MemoryLedger
from fedcore.ledger.sqlite import SqliteLedger
from fedcore.losses import Squared
from fedcore.messages import Query
from fedcore.planning.problem import SiloFacts
from fedcore.silo.private_silo import PrivateSilo
from fedcore.silo.question import Question
from fedcore.silo.site import Site
from fedcore.state import dump_state, load_state
from tests.wire import on_the_wire

QUICK = {
    "localized-mbsgd": {"rounds": (4, 3, 2), "step": 0.5},
    "localized-accelerated": {"rounds": (4, 3, 2), "lam": 0.1},
    "one-pass-mbsgd": {"rounds": 5},
    "mbsgd": {"rounds": 6, "step": 0.5},
    "localized-subgradient": {"rounds": (4, 3, 2)},
    "mb-subgradient": {"rounds": 6},
    "scaffold": {"rounds": 5, "local_steps": 3, "sampling_rate": 0.4},
    "fedavg": {"rounds": 5, "local_steps": 3, "sampling_rate": 0.4},
    "fedprox": {"rounds": 5, "local_steps": 3, "sampling_rate": 0.4},
    "fedsgd": {"rounds": 5, "sampling_rate": 0.4},
}
"""Few rounds. {} for a method that has no row here: its defaults."""

EXACT = {
    "localized-mbsgd": ({"step": 1, "lam": 0.005, "exponent": 0, "rounds": 50, "average": "last"}, 1e-8),
    "localized-accelerated": ({"lam": 0.005, "exponent": 0, "rounds": 160}, 1e-8),
    "one-pass-mbsgd": ({"step": 1, "rounds": 64, "average": "last"}, 1e-8),
    "mbsgd": ({"step": 1, "rounds": 60, "average": "last"}, 1e-8),
    "localized-subgradient": ({"lam": 0.005, "exponent": 0, "rounds": 400}, 1e-4),
    "mb-subgradient": ({"lam": 0.005, "rounds": 4000}, 2e-2),  # the regulariser pulls by 1 % of the answer
    "scaffold": ({"step": 0.5, "sampling_rate": 1.0, "local_steps": 4, "rounds": 400}, 1e-8),
    # Of heterogeneous silos local steps alone find another point, by the order of the step length.
    "fedavg": ({"step": 0.01, "sampling_rate": 1.0, "local_steps": 4, "rounds": 2500}, 5e-3),
    "fedprox": ({"step": 0.01, "sampling_rate": 1.0, "local_steps": 4, "rounds": 2500}, 5e-3),
    "fedsgd": ({"step": 1.0, "sampling_rate": 1.0, "rounds": 100}, 1e-8),
}
"""Hyperparameters with which a method solves least squares without noise, and how closely (relative)."""


EXPECTED = 3
"""Records expected of a sample: of pieces of 8 and 4 records in the first phases of `toy`, of 2 there is no sample."""


def quick(name):
    return ALGORITHMS[name](**QUICK.get(name, {}))


SAMPLING = sorted(name for name, kind in ALGORITHMS.items() if "batch" in kind.__dataclass_fields__)


@pytest.fixture(params=[*sorted(ALGORITHMS), *(f"{name} of samples" for name in SAMPLING)])
def method(request):
    name, _, samples = request.param.partition(" of ")
    return dataclasses.replace(quick(name), batch=EXPECTED) if samples else quick(name)


@pytest.fixture(params=sorted(ALGORITHMS))
def full_method(request):
    """For what a sample changes, and test_secret_samples.py and test_local_steps.py look at."""
    made = quick(request.param)
    return dataclasses.replace(made, sampling_rate=1.0) if made.several_answers else made


def bare(method):
    """Without the proximal term, which moves a message by what earlier steps of its round have moved the model."""
    return dataclasses.replace(method, prox_weight=0.0) if hasattr(method, "prox_weight") else method


def samples(method):
    return getattr(method, "batch", None) is not None or method.several_answers


def events_by_hand(plan, silo):
    """(phase, round, first position, last + 1, K, sigma) of every planned round, from the shares' public numbers."""
    for phase in plan.phases:
        share = phase.by_silo[silo]
        for round in range(1, phase.rounds + 1):
            start = share.start + (round - 1) * share.batch if phase.fresh_blocks else share.start
            stop = start + (share.batch if phase.fresh_blocks else share.n)
            yield phase.index, round, start, stop, share.batch, share.sigma


def epsilon_by_hand(plan, silo, n, delta):
    """Epsilon of the worst position. Full batches: composition of mu = 2 C / (K sigma), and the plain formula.

    Samples: dp-accounting's own composition, whose Poisson mechanism takes noise relative to C / K under REPLACE_ONE.
    """
    if any(share.rate < 1 for phase in plan.phases for share in phase.shares):
        return max(_library_epsilon(plan, phase, silo, delta) for phase in plan.phases)
    mu_squared = np.zeros(n)
    for index, _, start, stop, K, sigma in events_by_hand(plan, silo):
        answers = plan.phases[index - 1].answers
        mu_squared[start:stop] += answers * (2 * plan.problem.clip * (1 + 1e-6) / (K * sigma)) ** 2
    mu, cdf = math.sqrt(mu_squared.max()), stats.norm.cdf

    def excess(e):
        return cdf(mu / 2 - e / mu) - math.exp(e) * cdf(-mu / 2 - e / mu) - delta

    return brentq(excess, 0.0, 60.0, xtol=1e-13, rtol=1e-13)


@functools.cache
def _library(z, rate, rounds, delta):
    accountant = PLDAccountant(NeighboringRelation.REPLACE_ONE)
    accountant.compose(PoissonSampledDpEvent(rate, GaussianDpEvent(z)), rounds)
    return accountant.get_epsilon(delta)


@functools.cache
def _library_of_fixed_size(z, rate, answers, delta):
    """Balle, Barthe, Gaboardi 2018, Theorem 9, made symmetric, as points of dp-accounting's own distribution."""

    def hockey_stick(e):
        at = abs(e)
        amplified = math.log1p(math.expm1(at) / rate)
        cdf = stats.norm.cdf
        above = rate * (cdf(0.5 / z - amplified * z) - math.exp(amplified) * cdf(-0.5 / z - amplified * z))
        return above if e >= 0 else 1 - math.exp(-at) * (1 - above)

    step, reach = 2e-3, 40.0 / z + 2.0
    places = np.arange(-math.ceil(reach / step), math.ceil(reach / step) + 1)
    mass = pld_pmf.create_pmf_pessimistic_connect_dots(step, places, [hockey_stick(step * k) for k in places])
    return mass.self_compose(answers).get_epsilon_for_delta(delta)


def _library_epsilon(plan, phase, silo, delta):
    """Of one phase: pieces are disjoint, which another test looks at."""
    share = phase.by_silo[silo]
    if phase.sampling == "without-replacement":
        z = share.sigma * share.batch / (2 * plan.problem.clip * (1 + 1e-6))
        return _library_of_fixed_size(float(f"{z:.12g}"), share.rate, phase.rounds * phase.answers, delta)
    z = share.sigma * share.rate * share.n / (plan.problem.clip * (1 + 1e-6))
    return _library(float(f"{z:.12g}"), share.rate, phase.rounds, delta)


# What is planned


def test_says_what_it_is(method):
    kind = type(method)
    assert ALGORITHMS[method.name] is kind
    assert kind.title and kind.source
    with pytest.raises(dataclasses.FrozenInstanceError):
        method.name = "other"
    assert kind(**dataclasses.asdict(method)) == method


def test_ledger_is_the_plan_row_by_row(method, federate, toy):
    federation = federate(method, toy)
    for _ in federation.play():
        pass
    for name, silo in federation.silos.items():
        rows = silo.ledger.rows("run")
        found = [(row.phase, row.round, row.event.start, row.event.stop, row.event.sigma) for row in rows]
        planned = list(events_by_hand(federation.plan, name))
        assert found == [(*where, sigma) for *where, _, sigma in planned]
        for row, (*_, K, _) in zip(rows, planned, strict=True):
            rate = federation.plan.phases[row.phase - 1].by_silo[name].rate
            drawn = "without-replacement" if method.several_answers else "poisson"
            assert (row.event.sampling, row.event.rate) == ("full" if rate == 1 else drawn, rate)
            assert math.isclose(K, rate * (row.event.stop - row.event.start), rel_tol=1e-15)
            assert (row.event.mechanism, row.event.adjacency) == ("gaussian", "replace-one")
            assert row.event.count == getattr(method, "steps", 1)
            assert row.event.sensitivity == pytest.approx(2 * federation.plan.problem.clip / K, rel=2e-6)
            assert row.event.sensitivity > 2 * federation.plan.problem.clip / K


def test_ledger_epsilon_is_the_plans_and_an_independent_composition(method, federate, toy):
    federation = federate(method, toy)
    for _ in federation.play():
        pass
    (site,) = federation.sites
    for account in site.accounts("run"):
        by_hand = epsilon_by_hand(federation.plan, account.silo, account.n, 1e-5)
        close = 3e-3 if samples(method) else 1e-8
        assert account.epsilon == pytest.approx(by_hand, rel=close)
        assert federation.plan.silo_epsilon(account.silo) == pytest.approx(by_hand, rel=close)
        assert (account.releases, account.delta) == (federation.plan.rounds, 1e-5)


def test_pieces_lie_within_the_silo_and_phases_are_disjoint(method, federate, toy):
    plan = federate(method, toy).plan
    for facts in plan.problem.silos:
        phases = {}
        for phase, _, start, stop, _, _ in events_by_hand(plan, facts.name):
            assert 0 <= start < stop <= facts.n
            phases.setdefault(phase, set()).update(range(start, stop))
        assert sum(map(len, phases.values())) == len(set().union(*phases.values()))


@pytest.mark.parametrize("epsilon", [0.05, 1.0, 8.0])
@pytest.mark.parametrize("delta", [None, 1e-6])
def test_exact_calibration_spends_the_target_and_not_more(method, federate, toy, epsilon, delta):
    if samples(method) and (epsilon == 0.05 or delta is None):
        pytest.skip("a search for each silo and phase; the accountant has tests of its own")
    close = 3e-3 if samples(method) else 1e-9
    plan = federate(method, toy, epsilon=epsilon, delta=delta).plan
    for phase in plan.phases:
        for share in phase.shares:
            assert 0.999 * epsilon <= share.epsilon_accounted <= epsilon
    for facts in plan.problem.silos:
        by_hand = epsilon_by_hand(plan, facts.name, facts.n, delta or 1 / facts.n**2)
        assert (0.999 - close) * epsilon <= by_hand <= epsilon * (1 + close)
        assert plan.silo_epsilon(facts.name) <= epsilon
    assert 0.999 * epsilon <= plan.epsilon_accounted <= epsilon


def test_paper_calibration_is_far_below_its_target(method, federate, toy):
    if method.several_answers:
        pytest.skip("its paper's bound has a floor, and no such relation: test_local_steps.py")
    plan = federate(method, toy, epsilon=1.0, calibration="paper").plan
    assert plan.epsilon_paper == pytest.approx(1.0, rel=1e-12)
    assert plan.as_json()["totals"]["epsilon_target"] == 1.0
    for facts in plan.problem.silos:
        assert 0 < epsilon_by_hand(plan, facts.name, facts.n, 1e-5) < 0.6
    assert plan.epsilon_accounted < 0.6


def test_paper_calibration_refuses_what_it_is_not_stated_for(method, federate, toy):
    epsilon = 1 if method.several_answers else 1000
    with pytest.raises(InputError, match=rf"privacy\.epsilon = {epsilon} .*privacy\.calibration = exact"):
        federate(method, toy, epsilon=float(epsilon), calibration="paper")


def test_plan_as_json_has_what_it_must_show(method, federate, toy):
    plan = federate(method, toy).plan
    shown = plan.as_json()
    keys = {"n", "rounds", "batch", "lam", "radius", "clip", "sigma"}
    keys |= {"epsilon_target", "epsilon_accounted", "epsilon_paper"}
    assert len(shown["phases"]) == len(plan.phases)
    for phase, shown_phase in zip(plan.phases, shown["phases"], strict=True):
        assert keys <= shown_phase.keys()
        assert shown_phase["sigma"] == max(share["sigma"] for share in shown_phase["shares"]) > 0
        assert shown_phase["rounds"] == phase.rounds
    assert {"epsilon_target", "epsilon_accounted", "epsilon_paper", "rounds", "delta"} <= shown["totals"].keys()
    assert shown["totals"]["rounds"] == sum(phase["rounds"] for phase in shown["phases"])
    evaluations = sum(K * plan.phases[p - 1].answers for silo in toy for p, *_, K, _ in events_by_hand(plan, silo))
    assert shown["totals"]["gradient_evaluations"] == pytest.approx(evaluations, rel=1e-14)
    assert any(phase["rate"] < 1 for phase in shown["phases"]) == samples(method)


def test_plan_depends_on_sizes_only(method, federate, toy):
    other = {name: (-3 * X[::-1], y + 5) for name, (X, y) in toy.items()}
    assert federate(method, other).plan.digest == federate(method, toy).plan.digest
    fewer = {name: (X[:-1], y[:-1]) for name, (X, y) in toy.items()}
    assert federate(method, fewer).plan.digest != federate(method, toy).plan.digest


# Where it arrives


@pytest.mark.parametrize("ridge", [0.0, 0.2])
@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_without_noise_it_reaches_the_minimiser_of_a_quadratic(name, ridge, federate):
    """Each silo repeats one record, so all of its pieces are the same problem; the silos contradict each other.

    The ridge term is no part of what is clipped: with it the minimiser solves (X'X/6 + ridge) w = X'y/6.
    """
    hyper, tolerance = EXACT.get(name, ({}, 1e-2))
    rng = np.random.default_rng(3)
    X = np.linalg.qr(rng.standard_normal((6, 3)))[0] * math.sqrt(6) * np.array([1.0, 0.8, 0.6])
    y = X @ [1.0, -2.0, 3.0] + rng.standard_normal(6)
    wanted = np.linalg.solve(X.T @ X / 6 + ridge * np.eye(3), X.T @ y / 6)
    data = {f"s{i}": (np.tile(X[i], (64, 1)), np.full(64, y[i])) for i in range(6)}
    federation = federate(
        ALGORITHMS[name](**hyper), data, epsilon=None, clip=1e3, smoothness=(X**2).sum(1).max(), diameter=1e3,
        ridge=ridge,
    )  # fmt: skip
    assert np.linalg.norm(federation.final() - wanted) <= tolerance * np.linalg.norm(wanted)


def test_one_silo_is_the_centralised_method(full_method, federate):
    """The full_method's own server side, fed with a naive clipped mean over the records of the plan's positions."""
    rng = np.random.default_rng(4)
    X, y = 2 * rng.standard_normal((23, 3)), rng.standard_normal(23)
    federation = federate(full_method, {"only": (X, y)}, epsilon=None, clip=1.5)
    # The split is a permutation of rows; labels that are row numbers show it.
    probe = federate(full_method, {"only": (X, np.arange(23.0))}, epsilon=None, clip=1.5)
    order = probe.silos["only"]._runs["run"].y.astype(int)
    state = federation.start
    for index, _, start, stop, K, _ in events_by_hand(federation.plan, "only"):
        phase = federation.plan.phases[index - 1]

        class Naive:
            ridge, rows, divisor = 0.0, order[start:stop], K

            def ask(self, kind, w):
                assert kind == "gradient"
                total = np.zeros(3)
                for j in self.rows:
                    g = (X[j] @ w - y[j]) * X[j]
                    total += g * min(1.0, 1.5 / np.linalg.norm(g))
                return total / self.divisor

        sent = {key: array.reshape(-1, 3)[0] for key, array in full_method.broadcast(state, phase).items()}
        state = full_method.server_update(state, {0: full_method.silo_step(sent, Naive())}, phase)
    np.testing.assert_allclose(federation.final(), full_method.output(state), rtol=1e-10, atol=1e-12)


def test_identical_silos_act_as_one(full_method, federate):
    X, y = np.tile([0.6, -0.8], (16, 1)), np.full(16, 2.0)
    one = federate(full_method, {"a": (X, y)}, epsilon=None)
    four = federate(full_method, {name: (X, y) for name in "abcd"}, epsilon=None)
    if one.plan.as_json()["phases"][0]["lam"] == four.plan.as_json()["phases"][0]["lam"]:  # lambda may depend on M
        np.testing.assert_allclose(four.final(), one.final(), rtol=1e-12, atol=1e-14)
    else:
        assert QUICK.get(full_method.name, {}).get("lam") is None


def test_models_stay_in_the_domain_and_in_the_phases_ball(method, federate, toy):
    federation = federate(method, toy, epsilon=0.01, diameter=1.0)
    state = federation.start
    centre, closest = method.output(state), 0.0
    for _, _, after in federation.play():
        phase = federation.plan.phases[state.phase - 1]
        sent = method.broadcast(state, phase)["w"]
        reach = [sent, method.output(state), method.output(after)]
        # Points by the names of the house; a direction (velocity, control variate) need not lie in the domain.
        points = (getattr(after, name, None) for name in ("w", "aggregate", "centre", "mean"))
        reach += [value for value in points if value is not None and np.any(value)]
        for w in reach:
            assert np.linalg.norm(w) <= 0.5 * (1 + 1e-9)
            assert np.linalg.norm(w - centre) <= phase.radius * (1 + 1e-9) + 1e-12
            closest = max(closest, np.linalg.norm(w) / 0.5, np.linalg.norm(w - centre) / phase.radius)
        if after.round == 1:
            centre = method.output(after)
        state = after
    assert closest > 0.999  # so much noise that the constraints have work to do


# Messages, seeds and order


def test_messages_are_float64_vectors_of_public_size(method, federate, toy):
    for query, releases, state in federate(method, toy).play():
        assert [release.silo for release in releases] == list(query.participants)
        for release in releases:
            assert isinstance(release.payload, np.ndarray)
            assert (release.payload.dtype, release.payload.shape) == (np.float64, (4,))
            assert np.isfinite(release.payload).all()
        assert isinstance(state, type(method).state)


def test_equal_seeds_give_equal_bits(method, federate, toy):
    first = [[r.payload.tobytes() for r in releases] for _, releases, _ in federate(method, toy).play()]
    again = [[r.payload.tobytes() for r in releases] for _, releases, _ in federate(method, toy).play()]
    other = [[r.payload.tobytes() for r in releases] for _, releases, _ in federate(method, toy, seed=1).play()]
    assert first == again
    assert not {b for row in first for b in row} & {b for row in other for b in row}


def pure_noise(federate, method, d=3000, n=16, names=("a", "b", "c"), **changes):
    """Messages of silos whose gradients are all zero, in units of the planned sigma, by (silo, phase, round)."""
    federation = federate(bare(method), {name: (np.zeros((n, d)), np.ones(n)) for name in names}, **changes)
    return {
        (r.silo, r.phase, r.round): r.payload
        / federation.plan.phases[r.phase - 1].by_silo[r.silo].sigma
        * math.sqrt(federation.plan.phases[r.phase - 1].answers)  # of whose answers a message is the mean
        for _, releases, _ in federation.play()
        for r in releases
    }


def test_noise_is_independent_over_silos_rounds_seeds_and_runs(method, federate):
    samples = []
    for changes in ({}, {"seed": 1}, {"run": "another"}, {"epsilon": 2.0}):
        samples += pure_noise(federate, method, **changes).values()
    correlation = np.corrcoef(samples)
    np.fill_diagonal(correlation, 0.0)
    assert np.abs(correlation).max() < 6 / math.sqrt(3000)


def test_noise_has_the_planned_sigma(method, federate):
    samples = np.array(list(pure_noise(federate, method, epsilon=0.7).values()))
    low, high = stats.chi2.ppf([1e-5, 1 - 1e-5], samples.size)
    assert low < (samples**2).sum() < high
    low, high = stats.chi2.ppf([1e-6, 1 - 1e-6], samples.shape[1])
    assert ((low < (samples**2).sum(1)) & ((samples**2).sum(1) < high)).all()
    assert abs(samples.mean()) < 5 / math.sqrt(samples.size)
    assert stats.kstest(samples.ravel()[:20000], "norm").pvalue > 1e-4


def test_silos_that_were_given_one_key_do_not_share_noise(method, federate):
    """Else equal messages of two silos would tell that their records are equal."""
    d = 1000
    messages = pure_noise(federate, method, d=d, names=("a", "b"), key=lambda name: b"one key for all silos")
    for silo, phase, round in messages:
        if silo == "a":
            both = np.corrcoef(messages["a", phase, round], messages["b", phase, round])
            assert abs(both[0, 1]) < 6 / math.sqrt(d)


@pytest.mark.parametrize("sites", [2, 3])
def test_result_does_not_depend_on_where_silos_live(method, federate, toy, sites):
    together, apart = federate(method, toy), federate(method, toy, sites=sites)
    assert together.final().tobytes() == apart.final().tobytes()


def test_fold_refuses_a_wrong_order_a_missing_silo_and_answers_to_another_query(method, federate, toy):
    federation = federate(method, toy)
    context, state = federation.context, federation.start
    query = context.query(state)
    releases = federation.ask(query)
    for wrong, silo in ((releases[::-1], None), (releases[:-1], "cedar"), (releases[1:], "ash"), ([], "ash")):
        with pytest.raises(SiloError) as caught:
            context.fold(state, query, wrong)
        assert caught.value.code == "no-answer" and caught.value.silo == (silo or caught.value.silo)
    with pytest.raises(SiloError) as caught:
        context.fold(state, query, [*releases, releases[0]])
    for changes in ({"round": 2}, {"phase": 2}, {"query_digest": bytes(32)}):
        with pytest.raises(SiloError) as caught:
            context.fold(state, query, [releases[0]._replace(**changes), *releases[1:]])
        assert (caught.value.silo, caught.value.code) == ("ash", "answer")
    assert context.fold(state, query, releases).round == 2


@pytest.mark.parametrize("participants", [1, 2])
def test_only_the_planned_silos_take_part(method, federate, participants):
    rng = np.random.default_rng(0)
    data = {name: (rng.standard_normal((16, 3)), rng.standard_normal(16)) for name in "abcde"}
    federation = federate(method, data, participants=participants)
    asked = Counter()
    for query, releases, _ in federation.play():
        assert len(set(query.participants)) == participants
        assert [release.silo for release in releases] == list(query.participants)
        asked.update(query.participants)
    assert {name: len(silo.ledger.rows("run")) for name, silo in federation.silos.items()} == {
        name: asked[name] for name in data
    }
    # Noise is for the largest number of answers that a silo may be asked for, not for the average one.
    for name in data:
        assert federation.plan.silo_epsilon(name) == pytest.approx(1.0, rel=1e-3)
        spent = {account.silo: account.epsilon for account in federation.sites[0].accounts("run")}[name]
        assert spent <= federation.plan.silo_epsilon(name)


# State and resume


def test_state_survives_its_byte_form(method, federate, toy):
    for _, _, state in federate(method, toy).play():
        data = pack(dump_state(state))
        copy = load_state(type(method).state, unpack(data))
        assert pack(dump_state(copy)) == data
        for field in dataclasses.fields(state):
            before, after = getattr(state, field.name), getattr(copy, field.name)
            assert type(before) is type(after)
            assert np.asarray(before).tobytes() == np.asarray(after).tobytes()


@pytest.mark.parametrize("participants", [None, 2])
def test_resume_from_every_round_ends_with_the_same_bits(method, federate, toy, participants):
    whole = federate(method, toy, participants=participants)
    receipts, checkpoints = [], [(pack(dump_state(whole.start)), [])]
    for _, releases, state in whole.play():
        receipts += [release.receipt for release in releases]
        checkpoints.append((pack(dump_state(state)), list(receipts)))
    wanted = method.output(state).tobytes()
    for data, kept in checkpoints:
        fresh = federate(method, toy, participants=participants)
        for site in fresh.sites:
            site.restore("run", kept)
        assert fresh.final(load_state(type(method).state, unpack(data))).tobytes() == wanted
        for name, silo in fresh.silos.items():
            rows, all_rows = silo.ledger.rows("run"), whole.silos[name].ledger.rows("run")
            assert [row[:5] for row in rows] == [row[:5] for row in all_rows]


# Replays and refusals


def refused(ask, query):
    with pytest.raises(SiloError) as caught:
        ask(query)
    return caught.value.code


@pytest.mark.parametrize("kind", ["memory", "sqlite", "restored", "reopened"])
def test_a_repeated_query_repeats_its_bytes_and_another_model_is_refused(method, federate, toy, tmp_path, kind):
    durable = kind in ("sqlite", "reopened")

    def ledger(name):
        if not durable:
            return MemoryLedger(name)
        return SqliteLedger(name, tmp_path / f"{name}.sqlite", tmp_path / f"{name}.anchor")

    federation = federate(method, toy, ledger=ledger)
    history = [(query, releases) for query, releases, _ in federation.play()]
    rows = {name: [row[:5] for row in silo.ledger.rows("run")] for name, silo in federation.silos.items()}
    if kind == "reopened":
        federation.sites[0].close()
    if kind in ("restored", "reopened"):
        federation = federate(method, toy, ledger=ledger)
        federation.sites[0].restore("run", [r.receipt for _, releases in history for r in releases])
    for query, releases in (history[-1], *history):  # the newest first, while its bytes are still held
        again = federation.ask(Query.from_bytes(query.to_bytes()))
        assert [r[:5] for r in again] == [r[:5] for r in releases]
        assert [r.payload.tobytes() for r in again] == [r.payload.tobytes() for r in releases]
        other = dataclasses.replace(query, arrays={k: np.nextafter(v, 0.1) for k, v in query.arrays.items()})
        assert refused(federation.ask, other) == "replayed"
    assert {name: [row[:5] for row in s.ledger.rows("run")] for name, s in federation.silos.items()} == rows
    if durable:
        assert all(silo.computed == (0 if kind == "reopened" else len(history)) for silo in federation.silos.values())


def test_what_is_not_in_the_approved_plan_is_refused_before_records_are_read(method, federate, toy):
    federation = federate(method, toy)
    good = federation.context.query(federation.start)
    rounds, phases = federation.plan.phases[0].rounds, len(federation.plan.phases)
    name = next(iter(good.arrays))

    def array(value):
        return {**good.arrays, name: np.asarray(value)}

    wrong = {
        "run": ("plan", {"run": "unknown"}),
        "plan": ("plan", {"plan": "0" * 64}),
        "past the phase": ("plan", {"round": rounds + 1}),
        "round 0": ("query", {"round": 0}),
        "round -1": ("query", {"round": -1}),
        "phase 0": ("query", {"phase": 0}),
        "past the last phase": ("plan", {"phase": phases + 1}),
        "half a round": ("query", {"round": 1.5}),
        "half a phase": ("query", {"phase": 1.5}),
        "true": ("query", {"round": True}),
        "outside of the domain": ("query", {"arrays": array([0, 0, 0, federation.plan.problem.diameter])}),
        "nan": ("query", {"arrays": array([np.nan, 0, 0, 0])}),
        "infinite": ("query", {"arrays": array([0, -np.inf, 0, 0])}),
        "huge": ("query", {"arrays": array([0, 0, 0, -1e12])}),
        "short": ("query", {"arrays": array(np.zeros(3))}),
        "long": ("query", {"arrays": array(np.zeros(5))}),
        "column": ("query", {"arrays": array(np.zeros((4, 1)))}),
        "scalar": ("query", {"arrays": array(0.0)}),
        "float32": ("query", {"arrays": array(np.zeros(4, np.float32))}),
        "a word": ("query", {"arrays": {**good.arrays, name: np.frombuffer(b"four", "S1")}}),
        "complex": ("query", {"arrays": array(np.zeros(4, complex))}),
        "extra array": ("query", {"arrays": {**good.arrays, "more": np.zeros(4)}}),
        "no array": ("query", {"arrays": {}}),
        "another array": ("query", {"arrays": {"more": np.zeros(4)}}),
        "an array of its own": ("query", {"own": {silo: {"more": np.zeros(4)} for silo in good.participants}}),
        "a stranger's array": ("query", {"own": {**good.own, "dogwood": {"correction": np.zeros(4)}}}),
        "asked twice": ("query", {"participants": good.participants * 2}),
    }
    found = {}
    for case, (_, changes) in wrong.items():
        try:
            federation.sites[0]._site.answer(on_the_wire(dataclasses.replace(good, **changes)))
            found[case] = "answered"
        except SiloError as error:
            found[case] = error.code
            assert "-1e12" not in str(error)
        except Exception as error:
            found[case] = repr(error)
    assert found == {case: code for case, (code, _) in wrong.items()}
    assert all(silo.computed == 0 and silo.ledger.rows("run") == [] for silo in federation.silos.values())
    assert len(federation.ask(good)) == 3


def test_rounds_between_the_planned_ones_are_no_way_to_more_answers(method, federate, toy):
    """1.25, 1.5, ... are not rounds of any plan: each answer would be a release that the plan did not count."""
    federation = federate(method, toy)
    good = federation.context.query(federation.start)
    answered = []
    for round in (1.25, np.float64(1.5), 1.75):
        try:
            answered += federation.sites[0]._site.answer(on_the_wire(dataclasses.replace(good, round=round)))
        except SiloError:
            continue
    assert answered == []


def test_a_run_that_was_not_approved_is_refused(method, federate, toy):
    federation = federate(method, toy, approve=False)
    assert refused(federation.ask, federation.context.query(federation.start)) == "plan"
    (site,) = federation.sites
    claimed = dataclasses.replace(federation.agreement, plan="0" * 64)
    with pytest.raises(SiloError, match="its own plan"):
        site._site.approve(claimed.to_bytes())
    site.open()
    changed = dataclasses.replace(
        federation.agreement,
        problem=dataclasses.replace(federation.agreement.problem, clip=2.0),
    )
    changed = dataclasses.replace(changed, plan=method.plan(changed.problem).digest)
    with pytest.raises(SiloError) as caught:  # the run's id stands for one plan, for ever
        site._site.approve(changed.to_bytes())
    assert caught.value.code == "plan"


@pytest.mark.parametrize("claim", [-1, 1])
def test_a_wrong_claim_about_a_silos_records_is_refused(method, federate, toy, claim):
    federation = federate(method, toy, approve=False)
    problem = federation.agreement.problem
    silos = tuple(SiloFacts(s.name, s.n + claim * (s.name == "birch")) for s in problem.silos)
    lie = dataclasses.replace(problem, silos=silos)
    agreement = dataclasses.replace(federation.agreement, problem=lie, plan=method.plan(lie).digest)
    with pytest.raises(SiloError) as caught:
        federation.sites[0]._site.approve(agreement.to_bytes())
    assert (caught.value.silo, caught.value.code) == ("birch", "size")
    wide = dataclasses.replace(problem, dim=5)
    agreement = dataclasses.replace(federation.agreement, problem=wide, plan=method.plan(wide).digest)
    with pytest.raises(SiloError) as caught:
        federation.sites[0]._site.approve(agreement.to_bytes())
    assert caught.value.code == "width"


def test_a_silo_that_is_not_in_the_plan_refuses(method, federate, toy):
    federation = federate(method, toy)
    stranger = PrivateSilo("dogwood", Records(*toy["ash"]), b"key", MemoryLedger("dogwood"))
    with pytest.raises(SiloError) as caught:
        Site([stranger]).approve(federation.agreement.to_bytes())
    assert (caught.value.silo, caught.value.code) == ("dogwood", "size")


# One record


@pytest.mark.parametrize("x, y", [([1, 1, 1, 1], np.nan), ([np.nan, 1, 1, 1], 1), ([np.inf, -np.inf, 0, 0], np.inf)])
def test_a_record_without_a_finite_gradient_counts_as_zero_in_silence(method, federate, toy, x, y):
    """A message that is not a number would tell of the record, whatever noise was added."""
    X, labels = (part.copy() for part in toy["ash"])
    X[5], labels[5] = x, y
    zero = X.copy()
    zero[5] = 0.0
    queries = federate(method, toy, epsilon=None).queries()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a warning that becomes an exception is an outcome that depends on records
        poisoned = federate(method, {**toy, "ash": (X, labels)}, epsilon=None)
        messages = [poisoned.ask(query)[0].payload for query in queries]
    zeroed = federate(method, {**toy, "ash": (zero, toy["ash"][1])}, epsilon=None)
    for query, message in zip(queries, messages, strict=True):
        np.testing.assert_allclose(message, zeroed.ask(query)[0].payload, rtol=1e-12, atol=1e-14)


def test_replacing_one_record_moves_only_the_messages_of_its_position_and_by_at_most_2C_over_K(full_method, federate):
    """The worst pair: a record that pulls with all its clipped force, replaced by one that pushes as hard."""
    full_method = bare(full_method)
    n, C, rng = 16, 0.7, np.random.default_rng(5)
    X, y = 10 * rng.standard_normal((n, 3)), np.full(n, 1e6)
    base = federate(full_method, {"a": (X, y), "b": (X, -y)}, epsilon=None, clip=C, diameter=2.0)
    queries = base.queries()
    before = {(q.phase, q.round): base.ask(q) for q in queries}
    batches = {(p, r): (range(start, stop), K) for p, r, start, stop, K, _ in events_by_hand(base.plan, "a")}
    changed, closest = [], 0.0
    for j in range(n):
        flipped = y.copy()
        flipped[j] = -1e6
        neighbour = federate(full_method, {"a": (X, flipped), "b": (X, -y)}, epsilon=None, clip=C, diameter=2.0)
        moved = set()
        for query in queries:
            address = (query.phase, query.round)
            (mine, other), (mine_before, other_before) = neighbour.ask(query), before[address]
            assert other.payload.tobytes() == other_before.payload.tobytes()
            bound = 2 * C / batches[address][1]
            distance = float(np.linalg.norm(mine.payload - mine_before.payload))
            assert distance <= bound * (1 + 1e-9)
            closest = max(closest, distance / bound)
            if distance > 0:
                moved.add(address)
        assert len({phase for phase, _ in moved}) <= 1
        changed.append(frozenset(moved))
    by_position = [frozenset(a for a, (part, _) in batches.items() if p in part) for p in range(n)]
    assert Counter(changed) == Counter(by_position)
    assert closest > 1 - 1e-9


def test_regulariser_and_constraint_do_not_reach_the_silos(full_method, federate, toy):
    """The same query gets the same un-noised answer whatever lambda the server uses."""
    if not hasattr(full_method, "lam"):
        pytest.skip("no lambda")
    first = federate(dataclasses.replace(full_method, lam=0.1), toy, epsilon=None)
    other = federate(dataclasses.replace(full_method, lam=10.0), toy, epsilon=None)
    w = np.array([0.3, -0.1, 0.2, 0.9])
    orders = [f.silos["ash"]._runs["run"] for f in (first, other)]
    for federation, order in zip((first, other), orders, strict=True):
        share = federation.plan.phases[0].by_silo["ash"]
        X, y = order.X[: share.n], order.y[: share.n]
        g = (X @ w - y)[:, None] * X
        g *= np.minimum(1, 1 / np.linalg.norm(g, axis=1))[:, None]
        query = dataclasses.replace(federation.context.query(federation.start), arrays={"w": w})
        np.testing.assert_allclose(federation.ask(query)[0].payload, g.mean(0), rtol=1e-10)


def test_an_attack_on_the_worst_pair_stays_below_epsilon_and_comes_near_it(full_method, federate):
    """Likelihood ratio test of whoever knows all but one record: its error rates bound epsilon from below."""
    n, runs, epsilon, delta = 8, 900, 2.0, 1e-2
    probe = federate(full_method, {"a": (np.ones((n, 1)), np.arange(n))}, epsilon=epsilon, delta=delta)
    plan, key = probe.plan, probe.silos["a"]._key
    touched = {(p, r): (K, sigma) for p, r, start, _, K, sigma in events_by_hand(plan, "a") if start == 0}
    scores = {1e6: [], -1e6: []}
    for number in range(runs):
        run = f"run {number}"
        labels = PrivateSilo("a", Records(np.ones((n, 1)), np.arange(float(n))), key, MemoryLedger("a"))
        labels.approve(run, plan, full_method, Squared())
        first = int(labels._runs[run].y[0])  # the row at position 0 of this run's split
        for label, found in scores.items():
            y = np.zeros(n)
            y[first] = label
            silo = PrivateSilo("a", Records(np.ones((n, 1)), y), key, MemoryLedger("a"))
            silo.approve(run, plan, full_method, Squared())
            score = 0.0
            for (p, r), (K, sigma) in touched.items():
                asked = Question(run, p, r, {"w": np.zeros(1)}, b"q" * 32)
                message = silo.answer(asked, plan.phases[p - 1]).payload[0]
                score += plan.phases[p - 1].answers * message * 2 / K / sigma**2
            found.append(score)
    # y = 1e6 pulls the mean gradient to -C/K, y = -1e6 pushes it to +C/K.
    low, high = np.sort(scores[1e6]), np.sort(scores[-1e6])
    mu = (high.mean() - low.mean()) / math.sqrt((high.var() + low.var()) / 2)
    answers = [plan.phases[p - 1].answers for p, _ in touched]
    mu_squared = [a * (2 / (K * sigma)) ** 2 for a, (K, sigma) in zip(answers, touched.values(), strict=True)]
    expected = math.sqrt(sum(mu_squared))
    assert mu == pytest.approx(expected, abs=6 * math.sqrt(2 / runs))
    best = 0.0
    for cut in np.quantile(high, np.linspace(0.05, 0.95, 19)):
        hits = stats.beta.ppf(1e-4, (high >= cut).sum(), runs - (high >= cut).sum() + 1)
        alarms = stats.beta.ppf(1 - 1e-4, (low >= cut).sum() + 1, runs - (low >= cut).sum())
        best = max(best, math.log(max(hits - delta, 1e-9) / alarms))
    assert 0.2 * epsilon < best <= epsilon
