"""Methods with local steps against Algorithms 1 and 2 of Noble, Bellet and Dieuleveut 2022, written down a second time.

The second writing is the paper's: users keep their control variates and send two vectors, dy_i and dc_i.
"""

import dataclasses
import math
import struct
from collections import Counter

import numpy as np
import pytest

from fedcore.accounting.composition import spent
from fedcore.algorithms import ALGORITHMS, Fedavg, Fedprox, Fedsgd, Scaffold
from fedcore.errors import InputError, SiloError
from fedcore.losses import Squared
from fedcore.mechanisms.secret_sample import fixed_size_sample
from fedcore.messages import Query
from fedcore.models import OneHiddenLayer, SoftmaxRegression
from fedcore.models.linear import Linear
from fedcore.optim.local import local_step
from fedcore.planning.phases.local_phase import sample_size
from fedcore.randomness import draws, driver_key
from tests.fedcore.accounting import noble_table_1

CLIP = 0.4


def naive_gradient(X, y, w):
    """Mean of least-squares gradients, each clipped, one by one."""
    total = np.zeros_like(w)
    for x, label in zip(X, y, strict=True):
        g = (x @ w - label) * x
        total += g / max(1.0, np.linalg.norm(g) / CLIP)
    return total / len(X)


def batches(federation, name, query, steps):
    """The records of a silo's local steps, one after the other, from the samples of its questions."""
    silo, event = federation.silos[name], federation.plan.phases[query.phase - 1].event(name, query.round)
    approved = silo._runs["run"]
    stream = draws(approved.key, struct.pack("<QQQ", query.phase, query.round, 1), "sample")
    for _ in range(steps):
        if event.sampling == "full":
            yield approved.X, approved.y
        else:
            chosen = fixed_size_sample(stream, round(event.rate * event.stop), event.stop)
            yield approved.X[chosen], approved.y[chosen]


def paper(federation, *, control, prox=0.0, ridge=0.0):
    """x^T by the published listings, with the run's drawn silos and samples; `control`: Algorithm 1, else 2."""
    method, plan = federation.context.method, federation.plan
    names = [silo.name for silo in plan.problem.silos]
    d, K = plan.problem.objective.dim, plan.phases[-1].schedule.answers
    x, c, own = np.zeros(d), np.zeros(d), {name: np.zeros(d) for name in names}
    eta = local_step(method.step, method.sampling_rate, K)
    for query in federation.queries():
        if plan.phases[query.phase - 1].schedule.at_most_once:
            for name in query.participants:
                first = [naive_gradient(*drawn, x) + ridge * x for drawn in batches(federation, name, query, K)]
                own[name] = np.mean(first, axis=0)
                c = c + own[name] / len(names)
            continue
        moves, changes = [], []
        for name in query.participants:
            y = x.copy()
            for drawn in batches(federation, name, query, K):
                H = naive_gradient(*drawn, y) + ridge * y + prox * (y - x)
                y = y - eta * (H - own[name] + c if control else H)
            moves.append(y - x)
            if control:
                new = own[name] - c + (x - y) / (K * eta)
                changes.append(new - own[name])
                own[name] = new
        x = x + method.global_step * np.mean(moves, axis=0)
        if control:
            c = c + sum(changes) / len(names)
    return x


@pytest.mark.parametrize("participants", [None, 2])
@pytest.mark.parametrize("ridge", [0.0, 0.3])
@pytest.mark.parametrize(
    "method",
    [
        Scaffold(rounds=9, local_steps=4, sampling_rate=0.3, step=0.5),
        Scaffold(rounds=9, local_steps=3, sampling_rate=1.0, step=0.5, global_step=0.7),
        Scaffold(rounds=12, local_steps=4, sampling_rate=0.3, step=0.5, warm=True),
        Fedavg(rounds=9, local_steps=4, sampling_rate=0.3, step=0.5, global_step=1.2),
        Fedprox(rounds=9, local_steps=4, sampling_rate=0.3, step=0.5, prox_weight=0.8),
        Fedsgd(rounds=9, sampling_rate=0.3, step=0.5),
    ],
    ids=lambda method: f"{method.name}{' warm' if getattr(method, 'warm', False) else ''} {method.sampling_rate}",
)
def test_without_noise_it_is_the_papers_listing(method, participants, ridge, federate, toy):
    federation = federate(method, toy, epsilon=None, clip=CLIP, ridge=ridge, participants=participants, diameter=1e3)
    wanted = paper(federation, control=method.name == "scaffold", prox=getattr(method, "prox_weight", 0.0), ridge=ridge)
    found = federate(method, toy, epsilon=None, clip=CLIP, ridge=ridge, participants=participants, diameter=1e3).final()
    assert np.linalg.norm(wanted) > 0.05
    np.testing.assert_allclose(found, wanted, rtol=1e-10, atol=1e-11)


def test_without_noise_and_clipping_it_is_scaffold_by_plain_means(federate, toy):
    """No clipping: the mean gradient in closed form, X'(X w - y) / n, of all records of a silo."""
    method = Scaffold(rounds=30, local_steps=5, sampling_rate=1.0, step=0.2)
    found = federate(method, toy, epsilon=None, clip=1e6, diameter=1e6).final()
    x, c, own = np.zeros(4), np.zeros(4), {name: np.zeros(4) for name in toy}
    eta = 0.2 / 5
    for _ in range(30):
        moved = {}
        for name, (X, y) in toy.items():
            local = x.copy()
            for _ in range(5):
                local -= eta * (X.T @ (X @ local - y) / len(y) - own[name] + c)
            moved[name] = local
        fresh = {name: own[name] - c + (x - moved[name]) / (5 * eta) for name in toy}
        c, own = c + sum(fresh[name] - own[name] for name in toy) / 3, fresh
        x = np.mean(list(moved.values()), axis=0)
    np.testing.assert_allclose(found, x, rtol=1e-10, atol=1e-10)


def test_the_servers_control_variate_is_the_mean_of_all_silos(federate):
    rng = np.random.default_rng(2)
    data = {name: (rng.standard_normal((20, 3)), rng.standard_normal(20)) for name in "abcdefg"}
    for warm in (False, True):
        method = Scaffold(rounds=24, local_steps=3, sampling_rate=0.4, step=0.3, warm=warm)
        federation = federate(method, data, participants=2)
        answered = set()
        for query, releases, state in federation.play():
            answered |= set(query.participants)
            np.testing.assert_allclose(state.control, state.controls.mean(axis=0), atol=1e-13)
            for place, name in enumerate(data):
                assert state.controls[place].any() == (name in answered)
            for release in releases:  # a control variate is what its silo released last
                np.testing.assert_array_equal(state.controls[list(data).index(release.silo)], release.payload)


def test_with_one_local_step_and_all_silos_control_variates_change_nothing(federate, toy):
    """With equal noise, here none, both methods query the same samples' records."""
    same = {"rounds": 8, "local_steps": 1, "sampling_rate": 1.0, "step": 0.4}
    kept = federate(Scaffold(**same), toy, epsilon=None).final()
    plain = federate(Fedavg(**same), toy, epsilon=None).final()
    np.testing.assert_allclose(kept, plain, rtol=1e-12, atol=1e-13)


def test_fedprox_without_its_term_is_fedavg_up_to_rounding(federate, toy):
    """With full batches and without noise: draws are keyed by the method too, and so is the order of records."""
    same = {"rounds": 6, "local_steps": 3, "sampling_rate": 1.0}
    plain = federate(Fedavg(**same), toy, epsilon=None).final()
    without, with_it = (federate(Fedprox(**same, prox_weight=mu), toy, epsilon=None).final() for mu in (0.0, 0.5))
    np.testing.assert_allclose(without, plain, rtol=1e-12)
    assert np.abs(with_it - plain).max() > 1e-3


# The warm start


def warm(federate, silos=12, participants=3, **changes):
    rng = np.random.default_rng(1)
    data = {f"s{i:02d}": (rng.standard_normal((10, 2)), rng.standard_normal(10)) for i in range(silos)}
    method = Scaffold(rounds=24, local_steps=2, sampling_rate=0.5, warm=True)
    return federate(method, data, participants=participants, **changes)


def test_a_warm_start_asks_each_silo_once_and_leaves_the_model(federate):
    federation = warm(federate)
    first, second = federation.plan.phases
    assert (first.rounds, second.rounds, first.schedule.at_most_once, second.schedule.at_most_once) == (
        16,
        8,
        True,
        False,
    )
    asked, sizes = Counter(), []
    for query, releases, state in federation.play():
        if query.phase == 1:
            asked.update(query.participants)
            sizes.append(len(releases))
            assert not state.w.any()
            assert set(query.arrays) == {"w"} and not query.own
        else:
            assert set(query.own) == set(query.participants)
    assert set(asked.values()) == {1}
    assert sizes[0] == 3 and 0 in sizes  # late draws hold silos that have answered
    for name, silo in federation.silos.items():
        rows = silo.ledger.rows("run")
        assert sum(row.phase == 1 for row in rows) == asked[name]
        assert {row.event.count for row in rows} <= {2}


def test_a_silo_refuses_a_second_answer_of_a_warm_start(federate):
    federation = warm(federate)
    queries = [query for query in federation.queries() if query.phase == 1]
    fresh = warm(federate)
    name = queries[0].participants[0]
    fresh.ask(queries[0])
    again = dataclasses.replace(queries[1], participants=(name,))
    with pytest.raises(SiloError) as caught:
        fresh.ask(again)
    assert (caught.value.silo, caught.value.code) == (name, "plan")
    assert len(fresh.ask(queries[0])) == 3  # what was answered is sent again


def test_a_warm_starts_answer_is_repeated_though_another_run_came_in_between(federate):
    """A ledger in memory keeps the bytes of its newest release only: the older one is computed again, and checked."""
    query, federation = warm(federate).queries()[0], warm(federate)
    site = federation.sites[0]
    first = federation.ask(query)
    site._site.approve(dataclasses.replace(federation.agreement, run="other").to_bytes())
    federation.ask(dataclasses.replace(query, run="other"))
    again = federation.ask(query)
    for one, other in zip(first, again, strict=True):
        np.testing.assert_array_equal(one.payload, other.payload)
        assert one[:5] == other[:5]


def test_a_warm_starts_charge_is_one_turn_and_all_later_rounds(federate):
    plan = warm(federate).plan
    events = plan.silo_events("s00")
    assert [event.count for event in events] == [2, 8 * 2]
    assert plan.epsilon_accounted == pytest.approx(1.0, rel=1e-3)
    # Asked in every later round a silo comes to its planned charge; the draws make it less.
    federation = warm(federate)
    turns = Counter(release.silo for _, releases, _ in federation.play() for release in releases)
    for account in federation.sites[0].accounts("run"):
        assert account.releases == turns[account.silo] < 1 + 8
        whole = dataclasses.replace(events[0], count=2 * turns[account.silo])
        assert account.epsilon == pytest.approx(spent([whole], 1e-5), rel=3e-3) and account.epsilon < 1.0


@pytest.mark.minutes
def test_floats_of_a_warm_start_are_those_that_its_draws_come_to_on_average(federate):
    """400 runs' public draws; each silo answers at most once there, so a round may have no question."""
    federation = warm(federate)
    first, later = federation.plan.phases
    counted = []
    for number in range(400):
        context, state = (
            dataclasses.replace(federation.context, key=driver_key(0, number, "scaffold")),
            federation.start,
        )
        queries = [context.query(dataclasses.replace(state, round=at)) for at in range(1, first.rounds + 1)]
        counted.append(sum(len(query.participants) for query in queries))
    once, error = first.turns(3), np.std(counted) / 20
    assert error > 0 and np.mean(counted) == pytest.approx(once, abs=4 * error)
    totals, often, d = federation.plan.as_json()["totals"], later.rounds * 3, 2
    assert (totals["floats_up"], totals["floats_down"]) == pytest.approx((d * (once + often), d * (once + 2 * often)))


def test_a_warm_start_with_all_silos_takes_one_round(federate):
    first, second = warm(federate, participants=12).plan.phases
    assert (first.rounds, second.rounds) == (1, 23)


def test_too_few_rounds_for_a_warm_start_are_refused(federate, toy):
    with pytest.raises(InputError, match=r"algorithm.rounds = 6 must be more than the 6 rounds"):
        federate(Scaffold(rounds=6, warm=True), toy, participants=2)


def test_local_steps_that_run_away_are_held_where_no_predictor_overflows(federate, toy, monkeypatch):
    """Without the bound, some records would give NaN and others infinity, and timing would distinguish them."""
    asked, summed = [], Linear.clipped_gradient_sum

    def noting(self, w, *records):
        asked.append(w.copy())
        return summed(self, w, *records)

    monkeypatch.setattr(Linear, "clipped_gradient_sum", noting)
    method = Fedavg(rounds=1, local_steps=6, sampling_rate=0.5, step=1e50)
    federation = federate(method, toy)
    federation.ask(Query("run", federation.plan.digest, 1, 1, ("ash",), {"w": np.ones(4)}))
    reach = 1e6 * federation.plan.problem.objective.diameter / 2
    assert len(asked) == 6 and np.linalg.norm(asked[1]) == pytest.approx(reach)
    assert all(np.isfinite(w).all() and np.linalg.norm(w) <= 1.0001 * reach for w in asked)


def test_steps_that_a_ridge_or_prox_term_makes_grow_are_refused(federate, toy):
    """y -> (1 - eta (ridge + prox)) y grows where eta (ridge + prox) > 2; eta = step at s K = 1."""
    prox = Fedprox(local_steps=5, step=2.1, prox_weight=1.0)
    for method, ridge in ((prox, 0.0), (Scaffold(local_steps=5, step=5), 0.5)):
        with pytest.raises(InputError, match=r"algorithm\.step: local steps of length .* are more than 2"):
            federate(method, toy, ridge=ridge)
    federate(Fedprox(local_steps=5, step=2.0, prox_weight=1.0), toy)


@pytest.mark.parametrize("rounds", [1, 3])
def test_a_model_that_ran_away_is_refused_in_any_round(rounds, federate, toy):
    """Also in the last round, whose model no silo is queried about."""

    class Wild(Fedavg):
        def server_update(self, state, messages, phase):
            after = super().server_update(state, messages, phase)
            return dataclasses.replace(after, w=after.w * (math.nan if state.round == rounds else 1.0))

    federation = federate(Wild(rounds=rounds, local_steps=1), toy)
    with pytest.raises(InputError, match=rf"round 1\.{rounds}: values are not below 1e\+12, training diverged"):
        federation.final()


def test_more_local_steps_than_a_silo_can_number_are_refused(federate, toy):
    with pytest.raises(InputError, match="65536 answers in a round are more than the 65535"):
        federate(Fedavg(rounds=1, local_steps=2**16), toy)


# Sizes, steps, noise


def test_sizes_of_samples_are_guarded_against_rounding():
    assert [sample_size(0.29, 100), sample_size(0.58, 100), sample_size(0.2, 4000)] == [29, 58, 800]
    assert sample_size(0.2, 56) == 11


@pytest.mark.parametrize("sample, steps, wanted", [(0.2, 50, 0.1), (0.2, 1, 1.0), (0.05, 10, 1.0), (0.3, 5, 0.5)])
def test_local_step_lengths_are_those_of_the_released_code(sample, steps, wanted):
    assert local_step(1.0, sample, steps) == pytest.approx(wanted)


def test_fedsgd_takes_one_pass_or_one_step(federate, toy):
    assert federate(Fedsgd(rounds=2, sampling_rate=0.2), toy).plan.phases[0].schedule.answers == 5
    assert federate(Fedsgd(rounds=2, sampling_rate=0.2, local_steps="one"), toy).plan.phases[0].schedule.answers == 1


def test_samples_smaller_than_a_record_are_refused(federate, toy):
    with pytest.raises(InputError, match=r"algorithm.sampling_rate = 0.05 of the 16 records of silo ash"):
        federate(Fedavg(sampling_rate=0.05), toy)


@pytest.mark.parametrize("name", ["scaffold", "fedavg", "fedprox", "fedsgd"])
def test_floats_count_what_travels(name, federate, toy):
    method = ALGORITHMS[name](rounds=5)
    federation = federate(method, toy, participants=2)
    up = down = 0
    for query, releases, _ in federation.play():
        up += sum(release.payload.size for release in releases)
        down += sum(array.size for silo in query.participants for array in query.arrays_for(silo).values())
    totals = federation.plan.as_json()["totals"]
    assert (totals["floats_up"], totals["floats_down"]) == (up, down)
    assert down == up * (2 if name == "scaffold" else 1)


def test_noise_of_a_message_is_that_of_a_mean_of_k_answers(federate):
    data = {name: (np.zeros((20, 2000)), np.ones(20)) for name in "ab"}
    method = Fedavg(rounds=6, local_steps=8, sampling_rate=0.25)
    federation = federate(method, data)
    sigma = federation.plan.phases[0].sigma
    messages = [release.payload for _, releases, _ in federation.play() for release in releases]
    assert np.std(messages) == pytest.approx(sigma / math.sqrt(8), rel=0.02)


@pytest.mark.parametrize("model", [SoftmaxRegression(3), OneHiddenLayer(3, 4)], ids=str)
def test_scaffold_trains_models_of_several_classes(model, federate):
    rng = np.random.default_rng(5)
    data = {}
    for k, name in enumerate("abc"):
        y = rng.choice([k, (k + 1) % 3], 60).astype(float)
        data[name] = (rng.standard_normal((60, 3)) + 4 * np.eye(3)[y.astype(int)], y)
    method = Scaffold(rounds=60, local_steps=5, sampling_rate=0.5, step=0.5)
    federation = federate(method, data, epsilon=None, clip=5.0, loss=model, diameter=1e3)
    w0 = rng.standard_normal(model.weights(3)) * 0.3
    w = federation.final(method.init(w0))
    X, y = (np.concatenate([data[name][part] for name in data]) for part in (0, 1))
    assert model.evaluate(w, X, y)[1].mean() < 0.1


# A number of rounds that is found


def given_noise(federate, toy, method, **changes):
    problem = federate(Fedavg(), toy, approve=False, epsilon=2.0).plan.problem
    budget = dataclasses.replace(problem.budget, multiplier=6.0, **changes)
    return method.plan(dataclasses.replace(problem, budget=budget))


def test_the_largest_number_of_rounds_keeps_to_epsilon_and_one_more_does_not(federate, toy):
    method = Fedavg(rounds=50, local_steps=2, sampling_rate=0.4)
    plan = given_noise(federate, toy, dataclasses.replace(method, rounds=None))
    assert plan.epsilon_accounted <= 2.0
    more = given_noise(federate, toy, dataclasses.replace(method, rounds=plan.rounds + 1), epsilon=None)
    assert more.epsilon_accounted > 2.0
    for phase in more.phases:
        for share in phase.shares:
            assert share.sigma == pytest.approx(6.0 * 2 * 1.0 * (1 + 1e-6) / share.batch, rel=1e-12)


def test_noise_rounds_and_epsilon_that_fix_one_another_are_refused(federate, toy):
    with pytest.raises(InputError, match="fix one another: leave one out"):
        given_noise(federate, toy, Fedavg(rounds=5))
    with pytest.raises(InputError, match=r"algorithm.rounds = null asks for the largest number"):
        federate(Fedavg(rounds=None), toy)
    with pytest.raises(InputError, match=r"privacy.noise_multiplier = 0.01 is too little noise for a single round"):
        problem = federate(Fedavg(), toy, approve=False).plan.problem
        budget = dataclasses.replace(problem.budget, multiplier=0.01)
        Fedavg(rounds=None).plan(dataclasses.replace(problem, budget=budget))


def test_a_plan_by_the_papers_formula_has_the_papers_rounds(federate):
    """The cell K = 20, sigma_g = 10 of Table 1 through a plan; tests/fedcore/accounting/test_noble.py has all cells."""
    data = {f"s{i}": (np.zeros((4000, 1)), np.zeros(4000)) for i in range(100)}
    problem = federate(
        Fedavg(), data, approve=False, epsilon=3.0, delta=2.5e-6, calibration="exact", participants=5, loss=Squared()
    ).plan.problem
    budget = dataclasses.replace(problem.budget, calibration="paper", multiplier=10.0)
    plan = Scaffold(rounds=None, local_steps=20).plan(dataclasses.replace(problem, budget=budget))
    assert plan.rounds == noble_table_1.ROUNDS[10][noble_table_1.LOCAL_STEPS.index(20)] and plan.epsilon_paper <= 3.0
