"""Runs in step: each ends as it does alone, whatever other runs do, fail, lose or stop."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest

from fedcore.errors import SiloError
from fedcore.federation.rounds import rounds
from fedcore.home import LedgerFolders
from tasks.calls import Call, alone, in_step
from tasks.workers.batch import answers_of, packed_calls
from tasks.workers.cluster import local_cluster, worker_addresses
from tasks.workers.holder import Holder, HolderPool, site_key
from tasks.workers.places import Place
from tasks.workers.sites import DaskSites
from tests.patience import HANGS
from tests.tasks.five_silos import experiment, train


class Echo:
    """A backend that answers with its arguments and counts its messages; one `batch_group` travels together."""

    def __init__(self, batch_group=None, refuses=()) -> None:
        self.batch_group, self.refuses, self.messages = batch_group, refuses, []

    def ask(self, value):
        self.messages.append([value])
        if value in self.refuses:
            raise SiloError("ash", "planted", f"not {value}")
        return value

    @staticmethod
    def batched(calls):
        calls[0][0].messages.append([value for _, _, (value,) in calls])
        found = []
        for backend, method, (value,) in calls:
            assert method == "ask"
            found.append(SiloError("ash", "planted", f"not {value}") if value in backend.refuses else value)
        return lambda: found


def counting(backend, name, rounds, log=None):
    """A run that calls for `name`1, `name`2, ... and returns the answers."""
    heard = []
    try:
        for number in range(1, rounds + 1):
            heard.append((yield Call(backend, "ask", (f"{name}{number}",))))
    except BaseException as error:
        if log is not None:
            log.append((name, type(error).__name__))
        raise
    return heard


def whole(name, rounds):
    return [f"{name}{number}" for number in range(1, rounds + 1)]


def test_a_run_alone_hears_its_answers_and_its_refusals():
    assert alone(counting(Echo(), "a", 3)) == ["a1", "a2", "a3"]
    with pytest.raises(SiloError, match="not a2"):
        alone(counting(Echo(refuses=("a2",)), "a", 3))


@pytest.mark.parametrize("width", [1, 2, 3, 16])
def test_runs_in_step_hear_what_they_hear_alone(width):
    backend, lengths = Echo("sites"), {"a": 3, "b": 1, "c": 4, "d": 0, "e": 2}
    made = dict(in_step(((name, counting(backend, name, n)) for name, n in lengths.items()), width))
    assert made == {name: whole(name, n) for name, n in lengths.items()}
    assert max(map(len, backend.messages)) == {1: 1, 2: 1, 3: 2, 16: 4}[width], "of two waves, the larger"
    assert sorted(value for message in backend.messages for value in message) == sorted(
        value for name, n in lengths.items() for value in whole(name, n)
    )


def test_a_run_begins_when_another_has_ended():
    begun = []

    def runs():
        for name in "abcdef":
            begun.append(name)
            yield name, counting(backend, name, 2)

    backend = Echo("sites")
    ending = in_step(runs(), 2)
    first, _ = next(ending)
    assert first == "a" and begun == ["a", "b"]
    assert [name for name, _ in ending] == list("bcdef")


def test_runs_at_other_sites_are_asked_by_themselves():
    one, other, nowhere = Echo("one"), Echo("other"), Echo()
    places = {"a": one, "b": other, "c": one, "d": nowhere, "e": nowhere}
    made = dict(in_step(((name, counting(backend, name, 2)) for name, backend in places.items()), 16))
    assert made == {name: whole(name, 2) for name in places}
    assert one.messages == [["a1", "c1"], ["a2", "c2"]]
    assert other.messages == [["b1"], ["b2"]]
    assert nowhere.messages == [["d1"], ["e1"], ["d2"], ["e2"]]


def test_a_refusal_ends_one_run_and_stops_no_other():
    backend = Echo("sites", refuses=("b2", "c1"))
    made = dict(in_step(((name, counting(backend, name, 3)) for name in "abc"), 3))
    assert made["a"] == whole("a", 3)
    assert [str(made[name]) for name in "bc"] == ["silo ash: not b2", "silo ash: not c1"]


@pytest.mark.parametrize("stop", [KeyboardInterrupt, GeneratorExit])
def test_what_stops_the_caller_stops_every_run(stop):
    backend, log = Echo("sites"), []
    ending = in_step(((name, counting(backend, name, n, log)) for name, n in (("a", 1), ("b", 9), ("c", 9))), 3)
    assert next(ending) == ("a", ["a1"])
    if stop is GeneratorExit:
        ending.close()
    else:
        with pytest.raises(KeyboardInterrupt):
            ending.throw(KeyboardInterrupt())
    assert sorted(log) == [("b", stop.__name__), ("c", stop.__name__)]


def test_a_signal_in_the_middle_of_a_call_stops_every_run():
    log = []

    class Interrupted(Echo):
        @staticmethod
        def batched(calls):
            raise KeyboardInterrupt

    backend = Interrupted("sites")
    with pytest.raises(KeyboardInterrupt):
        list(in_step(((name, counting(backend, name, 2, log)) for name in "ab"), 4))
    assert sorted(log) == [("a", "KeyboardInterrupt"), ("b", "KeyboardInterrupt")]


# On Dask


def asked(made, backend):
    """All rounds of an experiment as calls; its final weights."""
    backend.open()
    backend.restore(made.run, receipts := [])
    query, state = made.context.query(state := made.config.algorithm.init(made.start())), state
    while query is not None:
        releases = yield Call(backend, "ask", (query,))
        receipts += releases.receipts
        state = made.context.fold(state, query, releases)
        query = made.context.query(state)
    accounts = yield Call(backend, "accounts", (made.run,))
    simulated = yield Call(backend, "simulated", (made.run, made.config.algorithm.output(state)))
    yield Call(backend, "close_run", (made.run,))
    backend.close()
    return made.config.algorithm.output(state), accounts, simulated


def experiments(folder):
    """Runs of two federations: other methods, other budgets, another repetition; other records."""
    made = [experiment(folder, method) for method in ("mbsgd", "localized-accelerated", "one-pass-mbsgd", "scaffold")]
    made += [experiment(folder, "mbsgd", privacy={"epsilon": epsilon}) for epsilon in (1, 8)]
    made.insert(1, experiment(folder, "mbsgd", seed=made[0].config.seed + 1))
    return [*made, experiment(folder, "mbsgd", repetition=1)]


@pytest.mark.slow
@pytest.mark.parametrize("workers, width", [(1, 4), (2, 4), (2, 2), (2, 64)])
def test_runs_in_step_on_dask_have_the_bits_of_each_alone(tmp_path, workers, width):
    made, folders = experiments(tmp_path), LedgerFolders.below(tmp_path)
    expected = [train(each, each.in_process(folders)) for each in made]
    with local_cluster(workers) as client:
        pool = HolderPool()
        runs = ((n, asked(each, DaskSites(client, each, folders, HANGS, pool=pool))) for n, each in enumerate(made))
        found = dict(in_step(runs, width))
        pool.close()
    for number, each in enumerate(made):
        w, accounts, simulated = found[number]
        np.testing.assert_array_equal(w, expected[number])
        assert sum(account.releases for account in accounts) == sum(
            len(query.participants) for query, _, _ in played(each, folders)
        )
        assert len(simulated) == 5


def played(made, folders):
    backend = made.in_process(folders)
    backend.open()
    return list(rounds(made.context, made.config.algorithm.init(made.start()), backend.ask))


@pytest.mark.slow
def test_a_worker_that_dies_under_runs_in_step_costs_none_of_them_a_bit(tmp_path):
    made, folders = experiments(tmp_path), LedgerFolders.below(tmp_path)
    expected = [train(each, each.in_process(folders)) for each in made]
    with local_cluster(2) as client:
        pool, sites = HolderPool(), []

        def runs():
            for number, each in enumerate(made):
                sites.append(DaskSites(client, each, folders, HANGS, pool=pool))
                yield number, killing(asked(each, sites[-1]), number)

        def killing(calls, number):
            """The third call of the second run finds a worker dead."""
            answer, count = None, 0
            while True:
                try:
                    call = calls.send(answer)
                except StopIteration as end:
                    return end.value
                count += 1
                if (number, count) == (1, 3):
                    os.kill(client.run(os.getpid)[worker_addresses(client)["site-1"]], signal.SIGKILL)
                answer = yield call

        found = dict(in_step(runs(), 4))
        pool.close()
    assert [made for made in found.values() if isinstance(made, Exception)] == []
    for number, weights in enumerate(expected):
        np.testing.assert_array_equal(found[number][0], weights)
    assert sum(each.recovered for each in sites) == 4, "the runs that went on then, each by itself"


def together(holder, calls):
    return answers_of(holder.each(packed_calls(calls)), [operation for _, operation, _ in calls])


@pytest.mark.slow
def test_a_holder_answers_no_other_call_together(tmp_path):
    made = experiment(tmp_path, "mbsgd")
    names = [silo.name for silo in made.plan.problem.silos]
    spec = made.site_spec(names, LedgerFolders.below(tmp_path)).to_bytes()
    holder, here = Holder(spec, "driver"), site_key(spec)
    for method in ("close", "__init__", "_site", "approve", "forget_run"):
        with pytest.raises(SiloError, match="this is no batch"):
            holder.each(packed_calls([(here, method, ())]))
    calls = [(here, "accounts", ("no run",)), (here, "answer", (b"no query",)), (b"elsewhere", "answer", (b"",))]
    first, second, third = together(holder, calls)
    assert first[1:] == ("plan", "it has not approved a run of this id") and second[1] == "query"
    assert third[1:] == ("lost", "the site that is asked is not open at this worker")
    holder.close()


def test_a_holder_answers_for_another_site_of_its_own_driver_only(tmp_path):
    made = experiment(tmp_path, "mbsgd")
    names = [silo.name for silo in made.plan.problem.silos]
    specs = [made.site_spec(some, LedgerFolders.below(tmp_path)).to_bytes() for some in (names[:2], names[2:])]
    one, other, stranger = Holder(specs[0], "driver"), Holder(specs[1], "driver"), Holder(specs[0], "another")
    calls = [(site_key(spec), "accounts", ("no run",)) for spec in specs]
    assert [each[0] for each in together(one, calls)] == [names[0], names[2]], "each site's first silo refuses"
    assert [each[1] for each in together(stranger, calls)] == ["plan", "lost"]
    other.close()
    assert [each[1] for each in together(one, calls)] == ["plan", "lost"]
    one.close()
    stranger.close()


class Bare(DaskSites):
    """One place without a holder; a call outside of a batch is refused."""

    def __init__(self, made) -> None:
        names = tuple(silo.name for silo in made.plan.problem.silos)
        self._places, self._plan, self._ended = [Place("site-0", b"", names)], made.plan, False

    def ask(self, query):
        raise SiloError("ash", "planted", "asked by itself")


@pytest.mark.parametrize("answer", [None, [], ["x"], [b"", b""], b"no releases", 7], ids=repr)
def test_what_a_site_says_instead_of_answers_is_an_error_of_its_run(tmp_path, answer):
    made = experiment(tmp_path, "mbsgd")
    query = made.context.query(made.config.algorithm.init(made.start()))
    found = Bare(made)._answered("ask", (query,), [answer])
    assert isinstance(found, SiloError) and found.sentence == "its site sent something else than releases of its silos"


@pytest.mark.parametrize("answers", [None, [("a", "b", "c")], [("a", "b")], [()]], ids=repr)
def test_a_run_whose_site_was_lost_or_refuses_asks_by_itself(tmp_path, answers):
    made = experiment(tmp_path, "mbsgd")
    query = made.context.query(made.config.algorithm.init(made.start()))
    assert str(Bare(made)._answered("ask", (query,), answers)) == "silo ash: asked by itself"
