"""Errors, recall and areas from histograms: against scikit-learn without noise, their intervals by simulation."""

import math
from dataclasses import replace

import numpy as np
import pytest
from sklearn import metrics

from fedcore.accounting.calibration import Budget
from fedcore.experiment.held_out import Counts, area, error, expected_width, gain, held_out, majority_error
from fedcore.experiment.result import shortfall
from fedcore.planning.evaluation import Evaluation
from fedcore.planning.phases.assembly import assembled
from fedcore.planning.problem import SiloFacts
from fedcore.planning.questions.statistics import HistogramQuestion
from fedcore.planning.schedule import Schedule, Share
from tests.flows.results import made_result
from tests.problems import problem_of

EDGES = np.array([-0.25, 0.0, 0.25])


def scored(n, seed, positive=0.4):
    """Labels and scores of n records; scores are on the grid of bin edges, so bins lose only the order within them."""
    rng = np.random.default_rng(seed)
    labels = rng.random(n) < positive
    return labels, np.clip(rng.normal(np.where(labels, 0.1, -0.15), 0.3), -1, 1)


def histogram(labels, scores):
    cells = np.zeros((2, 4))
    np.add.at(cells, (labels.astype(int), np.searchsorted(EDGES, scores, side="right")), 1.0)
    return cells


def test_without_noise_measures_are_those_of_scikit_learn_on_binned_scores():
    labels, scores = scored(500, 0)
    counts = Counts(histogram(labels, scores), 500, 0.0)
    bins = np.searchsorted(EDGES, scores, side="right")
    assert error(counts).value == pytest.approx(1 - metrics.accuracy_score(labels, scores >= 0))
    assert area(counts).value == pytest.approx(metrics.roc_auc_score(labels, bins))
    assert majority_error(counts).value == pytest.approx(min(labels.mean(), 1 - labels.mean()))


def phase_of(sizes, epsilon, classes=2, columns=4):
    """A phase in which silos of these names and numbers of held-out records answer."""
    evaluation = Evaluation(epsilon, "end", classes)
    silos = tuple(SiloFacts(name, 5 * held, held) for name, held in sizes.items())
    problem = problem_of(silos, 3, 1.0, 1.0, 10.0, len(silos), Budget(epsilon, 1e-5), evaluation=evaluation)
    shares = [Share(s.name, s.held, s.trained, s.held, 0.0, 1.0, math.inf, 1e-5) for s in silos]
    question = HistogramQuestion(clip=0.5**0.5, cells=classes * columns)
    return assembled(problem, 2, Schedule(1), shares, {}, question=question), evaluation


def test_several_classes_and_silos_are_told_apart():
    rng = np.random.default_rng(3)
    phase, evaluation = phase_of({"ash": 40, "birch": 60}, None, 3, 3)
    y, predicted, names = rng.integers(3, size=100), rng.integers(3, size=100), ("red", "green", "blue")
    answers = []
    for at in (slice(0, 40), slice(40, 100)):
        answers.append(metrics.confusion_matrix(y[at], predicted[at], labels=[0, 1, 2]).ravel() / len(y[at]))
    found = held_out(phase, evaluation, answers, names)
    assert found.records == 100 and found.auc is None and list(found.recall) == list(names)
    assert found.error.value == pytest.approx(1 - metrics.accuracy_score(y, predicted))
    recalls = metrics.recall_score(y, predicted, average=None)
    assert [interval.value for interval in found.recall.values()] == pytest.approx(list(recalls))
    assert found.silos["birch"].value == pytest.approx(np.mean(y[40:] != predicted[40:]))
    assert found.majority_error.value == pytest.approx(1 - np.bincount(y).max() / 100)


def test_silos_of_other_sizes_and_noise_are_pooled_by_records():
    phase, evaluation = phase_of({"ash": 20, "birch": 80}, None)
    small, large = np.zeros((2, 4)), np.zeros((2, 4))
    small[0, 3] = small[1, 3] = 10  # half of them wrong
    large[0, 0] = large[1, 3] = 40  # none
    found = held_out(phase, evaluation, [small.ravel() / 20, large.ravel() / 80], (0, 1))
    assert found.silos["ash"].value == 0.5 and found.silos["birch"].value == 0.0
    assert found.error.value == pytest.approx(0.1) and list(found.recall) == ["0", "1"]


@pytest.mark.parametrize("deviation", [0.0, 3.0, 12.0])
@pytest.mark.parametrize("measure", [error, area, majority_error, gain])
def test_intervals_hold_what_is_true_of_all_records_as_often_as_they_say(measure, deviation):
    """400 drawn samples of 300 records with noise; the truth is the measure of the cells' probabilities."""
    labels, scores = scored(200_000, 11)
    shares = histogram(labels, scores).ravel() / len(labels)
    truth = measure(Counts(shares.reshape(2, 4) * 1e6, 10**6, 0.0)).value
    rng, held = np.random.default_rng(5), 0
    for _ in range(400):
        noised = rng.multinomial(300, shares).reshape(2, 4) + deviation * rng.standard_normal((2, 4))
        found = measure(Counts.of(noised, 300, deviation**2))
        held += found is None or found.low <= truth <= found.high
    assert held >= 400 * 0.95 - 4 * math.sqrt(400 * 0.95 * 0.05)
    if measure is error:  # nor are they wider than they need to be
        assert held <= 400 * 0.95 + 4.5 * math.sqrt(400 * 0.95 * 0.05)


@pytest.mark.parametrize("measure", [error, area, majority_error, gain])
def test_an_interval_follows_from_the_gradient_by_finite_differences(measure):
    cells, records, variance, step = histogram(*scored(400, 2)), 400, 9.0, 1e-5
    gradient = np.zeros_like(cells)
    for at in np.ndindex(*cells.shape):
        shift = np.zeros_like(cells)
        shift[at] = step
        ends = [measure(Counts(cells + sign * shift, records, 0.0)).value for sign in (1, -1)]
        gradient[at] = (ends[0] - ends[1]) / (2 * step)
    centred = gradient - gradient.mean()
    of_sample = (cells * gradient**2).sum() - (cells * gradient).sum() ** 2 / records
    off = 1.959964 * math.sqrt(variance * (centred**2).sum() + of_sample)
    found = measure(Counts(cells, records, variance))
    assert (found.low, found.high) == pytest.approx((found.value - off, found.value + off), rel=1e-4)


def test_what_is_expected_of_an_interval_before_is_its_width_afterwards():
    phase, evaluation = phase_of({"ash": 40, "birch": 60}, 1.0)
    shares = tuple(replace(share, sigma=0.02) for share in phase.shares)
    expected = expected_width(replace(phase, shares=shares), evaluation)
    # By hand: cells that add up to 100, of which noise has deviation hypot(0.8, 1.2); g - mean g is 1/200 in all 8.
    noise = 8 * (0.8**2 + 1.2**2) / 200**2
    assert expected == pytest.approx(1.959964 * math.sqrt(noise + 0.2 * 0.8 / 100), rel=1e-6)


def test_noise_below_zero_leaves_an_interval_that_has_a_width():
    counts = Counts.of(np.array([[60.0, 50.0, -30.0, -40.0], [-35.0, -25.0, 20.0, 40.0]]), 100, 400.0)
    found = error(counts)
    assert found.value == found.low == 0.0 and found.high > 0.2
    hidden = Counts.of(np.array([[60.0, 50.0, 30.0, 40.0], [-35.0, -25.0, -20.0, -40.0]]), 60, 400.0)
    assert area(hidden) is None


def test_counts_are_shifted_alike_to_the_public_number_of_records():
    counts = Counts.of(np.array([[10.0, 0.0], [0.0, 6.0]]), 20, 1.0)
    assert counts.cells.sum() == pytest.approx(20) and counts.cells[0, 0] - counts.cells[1, 1] == pytest.approx(4)


def held(error, low, high, alone):
    ends = {"value": error, "low": low, "high": high}
    alike = {"value": alone, "low": alone - 0.01, "high": alone + 0.01}
    less = {"value": alone - error, "low": alone - high, "high": alone - low}
    return {
        "phase": 2,
        "records": 80,
        "error": ends,
        "majority_error": alike,
        "gain": less,
        "recall": {},
        "auc": None,
        "silos": {},
    }


def test_a_result_without_test_data_is_judged_by_its_last_evaluation():
    result = made_result(test_error=None, held_out=(held(0.4, 0.3, 0.5, 0.45), held(0.2, 0.1, 0.3, 0.45)))
    assert (result.error, result.baseline, result.measure) == (0.2, 0.45, "held-out error")
    assert shortfall(result) is None
    unsure = made_result(test_error=None, held_out=(held(0.2, 0.0, 0.5, 0.45),))
    assert shortfall(unsure) == (
        "not shown by held-out records to be better than always answering the most frequent class: error "
        "0.200, without a model 0.450, less by -0.050 to 0.450"
    )
    tested = made_result(test_error=0.3, majority_error=0.4, held_out=(held(0.9, 0.8, 1.0, 0.45),))
    assert (tested.error, tested.baseline, tested.measure) == (0.3, 0.4, "test error")
