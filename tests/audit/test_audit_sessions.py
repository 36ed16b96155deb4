"""Audit sessions: the auditor's own computation of a synthetic silo's answers agrees with the silo."""

import math
from dataclasses import replace

import numpy as np
import pytest

from fedcore.accounting.composition import worst_mu_squared
from fedcore.algorithms import ALGORITHMS, with_trait
from fedcore.algorithms.statistics.evaluated import evaluated
from fedcore.audit.audit_session import AuditSession, row_order
from fedcore.audit.audited_silo import AuditedSilo, auditable
from fedcore.audit.bench import no_canaries
from fedcore.audit.canaries import canary_count, canary_records, scores
from fedcore.audit.instruments.company import company
from fedcore.audit.reading import Reader
from fedcore.audit.releases import gather
from fedcore.audit.scenes import equal_records, mixed_records
from fedcore.data.records import Records
from fedcore.errors import InputError
from fedcore.losses import LOSSES
from fedcore.models import OneHiddenLayer, SoftmaxRegression, model_of
from fedcore.planning.evaluation import Evaluation
from fedcore.silo.answers.moments import moment_sum
from fedcore.silo.private_silo import PrivateSilo
from tests.audit.audited_silos import KINDS, NAME, make, problem
from tests.problems import changed

OBJECTIVES = {
    **{name: loss() for name, loss in LOSSES.items()},
    "softmax": SoftmaxRegression(3),
    "network": OneHiddenLayer(3, 4),
}


@pytest.mark.parametrize("loss", sorted(OBJECTIVES))
def test_gradients_of_records_are_those_of_the_silo(loss):
    chosen, rng = OBJECTIVES[loss], np.random.default_rng(4)
    dim = {"softmax": 15, "network": 35}.get(loss, 5)
    audited = make(0, loss=chosen, dim=dim, n=9, clip=0.8)
    for seed in range(3):
        records, w = mixed_records(audited, np.random.default_rng(seed)), rng.standard_normal(dim)
        model = model_of(chosen)
        for at in range(9):
            X, y = records.X[at : at + 1], records.y[at : at + 1]
            summed = model.clipped_gradient_sum(w, X, y, model.bounds(X, y, 0.8))
            np.testing.assert_allclose(audited.answer.parts(w, X, y)[0], summed, rtol=1e-9, atol=1e-15)


def test_moments_of_records_are_those_of_the_silo():
    audited = KINDS["moments"](0)
    X = np.random.default_rng(0).standard_normal((6, 7)) * np.array([[0.01, 0.3, 1.0, 3.0, 40.0, 1e5]]).T
    for at in range(6):
        mine = audited.answer.parts(np.zeros(35), X[at : at + 1], np.ones(1))[0]
        np.testing.assert_allclose(mine, moment_sum(X[at : at + 1], 1.5), rtol=1e-12)


@pytest.mark.parametrize("method", [name for name in with_trait("several_answers") if ALGORITHMS[name].sends_sums])
def test_a_message_of_local_steps_is_a_weighted_sum_of_answers(method):
    """Against the sums written out: ridge and proximal terms repeat earlier answers' effect on the model."""
    steps = {} if method == "fedsgd" else {"local_steps": 3}
    audited = make(0, method=method, hyper={"rounds": 4, "sampling_rate": 0.34, "step": 0.7, **steps})
    audited = replace(audited, plan=audited.method.plan(changed(audited.plan.problem, ridge=0.2)))
    step, pull = audited.plan.phases[0].settings["step"], 0.2 + getattr(audited.method, "prox_weight", 0.0)
    sent = {"w": np.zeros(32), **({"correction": np.ones(32)} if method == "scaffold" else {})}
    weights = Reader(audited).weights(sent)
    assert weights[-1] == pytest.approx(1 / 3)
    assert weights[1] == pytest.approx((1 - pull * step) / 3)
    assert weights[0] == pytest.approx((1 - pull * step - pull * step * (1 - pull * step)) / 3)


def test_a_method_whose_message_cannot_be_read_is_refused():
    class Squared:
        name = "squared"

        def silo_step(self, sent, silo):
            return silo.ask("gradient", sent["w"]) ** 2

    with pytest.raises(InputError, match="method squared sends something else"):
        Reader(replace(make(0), method=Squared())).weights({"w": np.zeros(32)})


@pytest.mark.parametrize("kind", KINDS)
def test_exact_means_are_exact_whatever_is_asked(kind):
    """Without noise every residual vanishes, also of samples, local steps and drawn points."""
    audited = KINDS[kind](0).without_noise()
    records = mixed_records(audited, np.random.default_rng(0))
    session = AuditSession(audited, records)
    for transcript in (session.train("a"), session.still("b"), session.far("c", None, np.random.default_rng(1))):
        assert len(transcript.payload) == len(audited.addresses)
        np.testing.assert_allclose(transcript.payload, transcript.exact, rtol=0, atol=1e-10 * audited.clip)
        assert np.abs(transcript.exact).max() > 1e-3


@pytest.mark.parametrize(
    ("method", "answer"),
    [(name, answer) for name, kind in sorted(ALGORITHMS.items()) if not kind.several_answers for answer in kind.asks],
)
def test_known_means_are_exact_in_a_whole_training(method, answer):
    hyper = {"rounds": (4, 2), "lam": 0.1} if method.startswith("localized") else {"rounds": 6}
    hyper |= {"period": 2} if len(ALGORITHMS[method].asks) > 1 else {}
    audited = replace(make(0, method=method, hyper=hyper, n=24, dim=5), kind=answer).without_noise()
    transcript = AuditSession(audited, equal_records(audited, np.random.default_rng(0))).train("run")
    assert len(transcript.events) + len(transcript.beside) == audited.walked.index(audited.addresses[-1]) + 1
    assert transcript.addresses == tuple(audited.addresses)
    close = 1e-10 if answer == "gradient-and-hessian" else 1e-12  # Hessians by central differences of gradients
    np.testing.assert_allclose(transcript.payload, transcript.exact, rtol=0, atol=close)
    assert np.abs(transcript.exact).max() > 1e-3


def test_queries_stay_within_the_domain_and_the_broadcast(monkeypatch):
    """A site may refuse queries that no server of the method sends: other names, models too far away."""
    seen = []
    ask = AuditSession.ask

    def noting(session, run, address, sent):
        seen.append((session.audited, address[0], {name: array.copy() for name, array in sent.items()}))
        return ask(session, run, address, sent)

    monkeypatch.setattr(AuditSession, "ask", noting)
    monkeypatch.setattr("fedcore.audit.releases.RELEASES", 240)
    monkeypatch.setattr("fedcore.audit.releases.FEWEST", 240)
    for kind in ("control variates", "network", "shards", "moments", "differences", "differences of a network"):
        gather(KINDS[kind](0), np.random.default_rng(0))
    assert len({phase for _, phase, _ in seen}) > 2
    for audited, phase, sent in seen:
        round = 2 if "before" in sent else 1
        state = replace(audited.method.init(audited.answer.start), phase=phase, round=round)
        plain = audited.method.broadcast(state, audited.plan.phases[phase - 1])
        assert set(sent) == set(plain) and all(array.shape == (audited.dim,) for array in sent.values())
        for name in {"w", "before"} & set(sent):
            assert np.linalg.norm(sent[name]) <= audited.plan.problem.objective.diameter / 2 * (1 + 1e-12)
        if "before" in sent:
            assert np.any(sent["w"] != sent["before"])


def test_order_of_rows_is_that_of_the_silos_split():
    audited = make(3, n=30, dim=4)
    records = Records(np.random.default_rng(0).standard_normal((30, 4)), np.arange(30.0))
    silos = []

    def opened(name, records, key, ledger):
        silos.append(PrivateSilo(name, records, key, ledger))
        return silos[-1]

    AuditSession(replace(audited, open=opened), records).still("run", 1)
    np.testing.assert_array_equal(silos[0]._runs["run"].y, records.y[row_order(audited, "run")])


@pytest.mark.parametrize("loss", [*sorted(LOSSES), "softmax"])
@pytest.mark.parametrize("method", ["mbsgd", "one-pass-mbsgd", "localized-mbsgd"])
def test_scores_separate_signs_as_well_as_the_plan_allows(method, loss):
    """Real-valued labels keep canaries at the full sensitivity: scores have the planned separation, mu^2."""
    hyper = {"rounds": (4, 2), "lam": 0.1} if method == "localized-mbsgd" else {"rounds": 4}
    audited = make(0, method=method, hyper=hyper, n=200, dim=60, loss=OBJECTIVES[loss])
    mu = math.sqrt(worst_mu_squared(audited.events))
    aligned = []
    for seed in range(10):
        canaries = canary_records(audited, "run", np.random.default_rng(seed))
        assert len(canaries.signs) == canary_count(audited)
        transcript = AuditSession(audited, canaries.records).train("run")
        aligned.append(scores(audited, canaries, transcript) * canaries.signs)
    flat = np.concatenate(aligned)
    error = mu / math.sqrt(flat.size)
    if loss == "softmax" or not audited.loss.labels.unbounded:
        # A confident prediction leaves one of the two gradients small.
        assert mu**2 / 8 < flat.mean() < mu**2 / 2 + 5 * error
    else:
        assert flat.mean() == pytest.approx(mu**2 / 2, abs=5 * error)
        assert flat.std() == pytest.approx(mu, rel=5 / math.sqrt(2 * flat.size))


def test_plans_without_an_audit_are_refused_and_instruments_that_do_not_apply_give_a_reason():
    with pytest.raises(InputError, match="nothing to audit"):
        auditable(make(0, epsilon=None))
    reasons = {kind: no_canaries(KINDS[kind](0)) for kind in KINDS}
    assert {kind for kind, reason in reasons.items() if reason is None} == {
        "full batches",
        "shards",
        "disjoint blocks",
        "softmax",
        "guarded",
        "restarts",
    }
    assert "both models" in reasons["differences"]
    assert "hidden units" in reasons["network"] and "secret samples" in reasons["coins"]


@pytest.mark.parametrize("kind", ["gradient", "histogram"])
def test_one_silo_of_several_can_be_trained_with_an_evaluation_of_every_phase(kind):
    """The server stores the histograms of all three silos, but only one silo answers."""
    method = ALGORITHMS["localized-mbsgd"](rounds=2)
    asked = problem(n=40, dim=5, others=(40, 40))
    silos = tuple(replace(silo, held=8) for silo in asked.silos)
    asked = replace(asked, silos=silos, evaluation=Evaluation(2.0, "phase", 2))
    plan = evaluated(method, asked).plan(asked)
    audited = AuditedSilo(plan, method, OBJECTIVES["logistic"], NAME, b"k" * 32, kind=kind)
    session = AuditSession(audited, mixed_records(audited, np.random.default_rng(0)))
    assert session.train("run").addresses == tuple(audited.addresses)
    # With 32 records in training there are five phases, each with an evaluation after it.
    odd = kind == "gradient"
    assert {phase for phase, _ in audited.addresses} == {2 * at - odd for at in range(1, 6)}


def test_rounds_of_several_kinds_are_looked_at_kind_by_kind():
    """The kinds' rounds are all rounds of the plan; a plan of several kinds is refused without a kind."""
    restarts, differences = (KINDS[kind](0) for kind in ("restarts", "differences"))
    assert restarts.kinds == differences.kinds == ("gradient", "gradient-difference")
    assert sorted(restarts.addresses + differences.addresses) == differences.walked
    assert len(restarts.addresses) == 20 and differences.in_company
    (event,) = {replace(event, count=1) for event in restarts.events}
    (other,) = {replace(event, count=1) for event in differences.events}
    assert differences.clip == 1.0 and event.sigma != other.sigma
    with pytest.raises(InputError, match="a plan of answers gradient, gradient-difference cannot be audited"):
        _ = replace(restarts, kind=None).answer


@pytest.mark.parametrize("server", ["still", "far", "train"])
def test_planned_noise_of_differences_is_in_units_of_their_steps(server):
    audited = KINDS["differences"](0)
    session = AuditSession(audited, mixed_records(audited, np.random.default_rng(0)))
    seen = {
        "still": lambda: session.still("run"),
        "far": lambda: session.far("run", None, np.random.default_rng(1)),
        "train": lambda: session.train("run"),
    }[server]()
    steps = np.array([np.linalg.norm(sent["w"] - sent["before"]) for sent in seen.sent])
    np.testing.assert_array_equal(seen.unit, steps)
    np.testing.assert_allclose(seen.sigma, steps * audited.events[0].sigma, rtol=1e-15)
    assert np.all(np.abs(steps - 1.0) > 1e-3) and (server == "still" or steps.max() > 2 * steps.min())
    assert len(seen.beside) == (len(KINDS["restarts"](0).addresses) if server == "train" else 0)


def test_steps_of_length_zero_are_answered_without_noise_and_not_read(monkeypatch):
    """A method whose server does not move asks about one model twice."""
    projection = "fedcore.algorithms.differences.running_estimate.onto_domain"
    monkeypatch.setattr(projection, lambda stepped, *rest: 0.0 * stepped)
    audited = KINDS["differences"](0)
    seen = AuditSession(audited, mixed_records(audited, np.random.default_rng(0))).train("run")
    assert len(seen.beside) == audited.plan.rounds and seen.payload.shape == (0, audited.dim)


def test_rounds_that_no_instrument_can_look_at_are_refused():
    asked = changed(problem(others=(20,)), aggregator=True)
    for method in ("diff2", "mbsgd"):
        chosen = ALGORITHMS[method](rounds=6)
        with pytest.raises(InputError, match="silos add no noise"):
            auditable(AuditedSilo(chosen.plan(asked), chosen, OBJECTIVES["logistic"], NAME, b"k" * 32))
    with pytest.raises(InputError, match="diff2-bvr cannot be audited: what a silo sends of its local steps"):
        auditable(make(0, method="diff2-bvr", hyper={"rounds": 6, "batch": 4}))


def test_a_silo_that_has_a_weight_is_audited_in_company():
    """A plan with one silo more keeps weights of mean 1, whatever the audited silo's own weight is."""
    audited = make(0, others=(30, 10))
    weights = dict(zip((facts.name for facts in audited.plan.problem.silos), (0.5, 1.0, 1.5), strict=True))
    silos = tuple(replace(facts, weight=weights[facts.name]) for facts in audited.plan.problem.silos)
    weighted = replace(audited, plan=audited.run_method.plan(replace(audited.plan.problem, silos=silos)))
    beside = weighted.beside("more").plan.problem
    assert [facts.weight for facts in beside.silos] == [0.5, 1.0, 1.5, 1.0]
    finding = company(weighted, np.random.default_rng(0))
    assert finding.passed and finding.detail.startswith("of 48 answers"), finding.detail
