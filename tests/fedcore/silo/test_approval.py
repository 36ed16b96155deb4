"""A silo's check of charges: answers that share a sample, and the distance of discrete noise."""

from dataclasses import replace

import pytest

from fedcore.algorithms import ALGORITHMS
from fedcore.errors import SiloError
from fedcore.planning.phase import Phase
from fedcore.silo.approval import check_answers, check_noise
from tests.audit.audited_silos import NAME, evaluations, problem

STEPS = 4
"""Of a round, as DP-FCRN counts them: one less are answers about the round's one record."""


@pytest.fixture
def fcrn():
    """fcrn(sampling): the method and its plan, 3 rounds of 3 answers about vectors of 4 numbers."""

    def made(sampling):
        method = ALGORITHMS["dp-fcrn"](rounds=3, local_steps=STEPS, kept=0.5, sampling=sampling, convexity=1.0)
        return method, method.plan(problem(n=20, dim=8, delta=1e-5))

    return made


def test_answers_about_one_sample_are_one_release_of_all_their_numbers(fcrn):
    """Replacing the record moves each of the three by twice the bound, so together by sqrt(3) times that."""
    _, plan = fcrn("record")
    (phase,) = plan.phases
    (event,) = phase.events(NAME)
    assert (event.count, event.sampling, event.rate) == (3, "without-replacement", 1 / 20)
    assert event.sensitivity == pytest.approx(3**0.5 * 2 * phase.question.clip, rel=1e-5)
    assert event.sensitivity >= 3**0.5 * 2 * phase.question.clip
    assert phase.event(NAME, 2) == replace(event, count=1)
    assert phase.charged(NAME) == [event]


def test_answers_about_all_records_are_charged_one_by_one(fcrn):
    (phase,) = fcrn("all")[1].phases
    (event,) = phase.events(NAME)
    assert event.count == 9
    assert 0 <= event.sensitivity / (2 * phase.question.clip / 20) - 1 < 1e-5


@pytest.mark.parametrize("sampling, least", [("record", 3**0.5), ("all", 1.0)])
def test_a_silo_refuses_a_charge_below_that_of_its_answers_and_takes_that(fcrn, monkeypatch, sampling, least):
    """The silo's own check and the planner's are each correct by themselves, whatever the other finds."""
    method, plan = fcrn(sampling)
    (phase,) = plan.phases
    alone, planned = 2 * phase.question.clip / phase.by_silo[NAME].batch, Phase.event
    for factor, passes in ((1.0, least == 1.0), (least * (1 - 1e-9), False), (least, True), (3.0, True)):
        sensitivity = alone * factor * (1 + 1e-5 * passes)  # rounding of sums is charged, too
        monkeypatch.setattr(
            Phase,
            "event",
            lambda self, silo, round, sensitivity=sensitivity: replace(
                planned(self, silo, round), sensitivity=sensitivity
            ),
        )
        if passes:
            check_answers(NAME, plan, method)
        else:
            with pytest.raises(SiloError, match="does not charge for its answers"):
                check_answers(NAME, plan, method)


@pytest.mark.parametrize("dim", [600, 4])
def test_discrete_noise_is_paid_for_by_the_longest_answer(dim):
    """Three answers, of `dim` numbers twice and of 8 once. By hand: (1 + e^2) 3 max(dim, 8) 2^-125 <= 1e-18 delta."""
    least = (1 + 2.718281828459045**2) * 3 * max(dim, 8) * 2.0**-125 / 1e-18
    for part, passes in ((0.9, False), (1.1, True)):
        audited = evaluations(1, dim=dim, mechanism="discrete-gaussian", delta=part * least)
        if passes:
            check_noise(NAME, 40, True, audited.plan)
        else:
            with pytest.raises(SiloError, match="too small for the distance of discrete noise"):
                check_noise(NAME, 40, True, audited.plan)
