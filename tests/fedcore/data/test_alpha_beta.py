"""synthetic(alpha, beta): moments against the formulas of its law, and independence of a silo's records from others."""

from collections import Counter

import numpy as np
import pytest

from fedcore.data.dataset import facts, prepare, records_of
from fedcore.data.silo_file import open_records
from fedcore.data.sources.alpha_beta import AlphaBetaData, alpha_beta, draw_law, draw_records, split_sizes, standardised
from fedcore.errors import InputError, SiloError
from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.experiment import Experiment
from fedcore.experiment.problem import make_problem
from fedcore.experiment.result import stamp
from fedcore.home import LedgerFolders
from fedcore.models.model_config import ModelConfig
from fedcore.silo.opening import SiteSpec, open_site
from tasks.statement import privacy_tags
from tests.registers import register_all

DEFAULT = {
    "silos": 4,
    "records": 60,
    "test_fraction": 0.2,
    "features": 40,
    "classes": 10,
    "alpha": 0.0,
    "beta": 0.0,
    "flip": 0.05,
    "standardise": "none",
    "seed": 0,
}
MODEL = ModelConfig.model_validate({"loss": {"name": "softmax"}})


def make(**changes):
    return alpha_beta(**{**DEFAULT, **changes})


def laws(alpha, beta, users=300, features=40, classes=10):
    made = [draw_law(features, classes, alpha, beta, np.random.default_rng(i)) for i in range(users)]
    return (np.stack([getattr(law, part) for law in made]) for part in ("weights", "bias", "mean"))


@pytest.mark.parametrize(("alpha", "beta"), [(0.0, 0.0), (5.0, 0.0), (0.0, 5.0), (2.0, 3.0)])
def test_alpha_and_beta_are_variances_on_top_of_one(alpha, beta):
    """W_i ~ N(u_i, I), u_i ~ N(0, alpha I): over users each entry has mean 0 and variance alpha + 1; v_i, beta + 1.

    A standard deviation of alpha would give alpha^2 + 1. The relative error of a variance from N draws is sqrt(2 / N).
    """
    weights, bias, mean = laws(alpha, beta)
    for drawn, variance in ((weights, alpha + 1), (bias, alpha + 1), (mean, beta + 1)):
        count = drawn.size
        assert (drawn**2).mean() == pytest.approx(variance, rel=5 * np.sqrt(2 / count))
        assert drawn.mean() == pytest.approx(0, abs=5 * np.sqrt(variance / count))


def test_entries_of_a_law_have_means_of_their_own():
    """Entries of one user are uncorrelated; FedProx's recipe has one scalar for all."""
    weights, bias, mean = laws(5.0, 5.0)
    for drawn in (weights.reshape(len(weights), -1), bias, mean):
        between_users = drawn.mean(axis=1).var()
        assert between_users == pytest.approx(6.0 / drawn.shape[1], rel=5 * np.sqrt(2 / len(drawn)))


def test_features_have_their_mean_and_variances():
    law = draw_law(40, 10, 1.0, 1.0, np.random.default_rng(3))
    n = 40_000
    X = draw_records(law, n, 0.05, np.random.default_rng(4)).features
    variances = np.array([j**-1.2 for j in range(1, 41)])
    np.testing.assert_allclose(X.var(axis=0), variances, rtol=5 * np.sqrt(2 / n))
    assert (np.abs(X.mean(axis=0) - law.mean) < 5 * np.sqrt(variances / n)).all()
    correlations = np.corrcoef(X.T)[np.triu_indices(40, 1)]
    assert np.abs(correlations).max() < 5 / np.sqrt(n)


@pytest.mark.parametrize(("flip", "classes"), [(0.05, 10), (0.05, 3), (1.0, 4), (0.0, 10)])
def test_labels_are_the_largest_predictor_but_for_flips(flip, classes):
    """A flip draws from all classes, so the label changes with probability flip (1 - 1 / classes): 0.045 by default."""
    law = draw_law(40, classes, 0.0, 0.0, np.random.default_rng(5))
    n = 60_000
    made = draw_records(law, n, flip, np.random.default_rng(6))
    best = np.array([max(range(classes), key=lambda k, z=z: z[k]) for z in made.features @ law.weights + law.bias])
    changed, rate = made.labels != best, flip * (1 - 1 / classes)
    assert changed.mean() == pytest.approx(rate, abs=5 * np.sqrt(rate * (1 - rate) / n) + 1e-12)
    assert set(made.labels.tolist()) <= set(range(classes)) and made.labels.dtype == np.int64
    if flip == 1.0:  # then labels are uniform, whatever the records are
        shares = np.bincount(made.labels, minlength=classes) / n
        np.testing.assert_allclose(shares, 1 / classes, atol=5 * np.sqrt(rate / classes / n))


def test_far_means_leave_a_user_with_fewer_classes():
    """Users' means of variance 26 dominate their records' own spread, so one class is the largest more often."""
    spread = []
    for beta in (0.0, 25.0):
        made = make(silos=60, records=200, alpha=1.0, beta=beta)
        shares = [np.bincount(table.labels, minlength=10).max() / len(table.labels) for table in made.silos.values()]
        spread.append(np.mean(shares))
    assert spread[1] > spread[0] + 0.1


def test_split_sizes_are_inside_each_user():
    made = make(silos=3, records=50, test_fraction=0.3)
    assert [len(table.labels) for table in made.silos.values()] == [35, 35, 35] and len(made.test.labels) == 45
    assert split_sizes(5000, 0.2) == (4000, 1000)
    whole = make(silos=3, records=50, test_fraction=0.1)  # the same records, cut elsewhere
    for index, name in enumerate(made.silos):
        parts = (made.silos[name].features, made.test.features[15 * index : 15 * (index + 1)])
        others = (whole.silos[name].features, whole.test.features[5 * index : 5 * (index + 1)])
        np.testing.assert_array_equal(np.concatenate(parts), np.concatenate(others))


@pytest.mark.parametrize("fraction", [0.001, 0.99])
def test_a_fraction_that_leaves_a_part_empty_is_refused(fraction):
    with pytest.raises(InputError, match=rf"data\.test_fraction = {fraction} sets aside \d+ of the data\.records = 60"):
        make(test_fraction=fraction)
    with pytest.raises(InputError, match="must set aside at least one and leave 2"):
        facts(AlphaBetaData(records=60, test_fraction=fraction), MODEL, 0)


def rows(made):
    tables = (*made.silos.values(), made.test)
    return [row.tobytes() + bytes([label]) for t in tables for row, label in zip(t.features, t.labels, strict=True)]


def test_records_follow_the_seed_and_no_two_are_alike():
    assert rows(make()) == rows(make())
    assert not set(rows(make())) & set(rows(make(seed=1)))
    assert set(Counter(rows(make(silos=30))).values()) == {1}


def test_a_silo_does_not_depend_on_the_number_of_silos():
    few, many = make(silos=2, alpha=1.0, beta=2.0), make(silos=7, alpha=1.0, beta=2.0)
    assert list(few.silos) == ["silo-000", "silo-001"] and len(many.silos) == 7
    for name, table in few.silos.items():
        assert table.features.tobytes() == many.silos[name].features.tobytes()
        assert table.labels.tolist() == many.silos[name].labels.tolist()
    assert few.test.features.tobytes() == many.test.features[:24].tobytes()


def test_global_z_scores_by_a_plain_loop():
    plain, made = make(silos=3, beta=2.0), make(silos=3, beta=2.0, standardise="global")
    pooled = [row for table in plain.silos.values() for row in table.features.tolist()]
    for j in range(40):
        values = [row[j] for row in pooled]
        mean = sum(values) / len(values)
        deviation = (sum((value - mean) ** 2 for value in values) / len(values)) ** 0.5
        for name, table in plain.silos.items():
            np.testing.assert_allclose(made.silos[name].features[:, j], (table.features[:, j] - mean) / deviation)
        np.testing.assert_allclose(made.test.features[:, j], (plain.test.features[:, j] - mean) / deviation)
    assert [t.labels.tolist() for t in made.silos.values()] == [t.labels.tolist() for t in plain.silos.values()]


def test_row_minmax_by_a_plain_loop_over_lists():
    """The released code's step: record j, partly rescaled already, in place of column j; the test part likewise."""
    plain, made = make(silos=3, beta=2.0), make(silos=3, beta=2.0, standardise="row-minmax")
    for index, name in enumerate(plain.silos):
        train = plain.silos[name].features.tolist()
        test = plain.test.features[12 * index : 12 * (index + 1)].tolist()
        for j in range(40):
            low, high = min(train[j]), max(train[j])
            for row in train + test:
                row[j] = (row[j] - low) / (high - low)
        np.testing.assert_allclose(made.silos[name].features, train, rtol=1e-9)
        np.testing.assert_allclose(made.test.features[12 * index : 12 * (index + 1)], test, rtol=1e-9)
    columns = plain.silos["silo-000"].features
    proper = (columns - columns.min(axis=0)) / (columns.max(axis=0) - columns.min(axis=0))
    assert np.abs(made.silos["silo-000"].features - proper).max() > 0.1  # what was meant is something else


@pytest.mark.parametrize("changes", [{"features": 1}, {"records": 45}])
def test_row_minmax_needs_a_record_for_each_of_several_features(changes):
    with pytest.raises(InputError, match=r"data\.standardise = row-minmax needs at least 2 features and a training"):
        make(standardise="row-minmax", **changes)


def test_a_feature_that_does_not_vary_stays_finite():
    X, aside = np.ones((4, 2)), np.full((1, 2), 3.0)
    X[:, 0] = [1, 2, 3, 4]
    standardised("global", [X], [aside])
    assert X[:, 1].tolist() == [0.0] * 4 and aside[0, 1] == 2.0


def test_planning_and_running_agree(tmp_path):
    data = AlphaBetaData(silos=3, records=30, features=6, classes=4)
    planned, dim = facts(data, MODEL, 5)
    ready = prepare(data, MODEL, 5, tmp_path)
    assert (ready.facts, ready.dim) == (planned, dim) and dim == 7
    assert [(fact.name, fact.n) for fact in planned] == [(f"silo-00{i}", 24) for i in range(3)]
    made = alpha_beta(3, 30, 0.2, 6, 4, 0.0, 0.0, 0.05, "none", 5)
    for source, table in zip(ready.sources, made.silos.values(), strict=True):
        records = open_records(source)
        whole = np.hstack([table.features, np.ones((24, 1))])
        whole /= np.maximum(1.0, np.linalg.norm(whole, axis=1))[:, None]
        np.testing.assert_allclose(records.X, whole, rtol=1e-12)
        assert records.y.tolist() == table.labels.tolist()
    assert ready.test.n == 18
    assert AlphaBetaData() == AlphaBetaData(
        silos=100,
        records=5000,
        test_fraction=0.2,
        features=40,
        classes=10,
        alpha=0,
        beta=0,
        flip=0.05,
        standardise="none",
    )
    assert make_problem(config(), planned, dim).objective.dim == 4 * 7


def config(standardise="none"):
    return ExperimentConfig.model_validate(
        {
            "data": {
                "source": "synthetic-alpha-beta",
                "silos": 3,
                "records": 30,
                "features": 6,
                "classes": 4,
                "standardise": standardise,
            },
            "model": {"loss": {"name": "softmax"}},
            "privacy": {"epsilon": 2},
            "algorithm": {"name": "mbsgd", "rounds": 2},
        }
    )


@pytest.mark.usefixtures("policies")
@pytest.mark.parametrize(
    ("standardise", "message"),
    [
        ("none", None),
        ("global", "means and standard deviations of all silos' records"),
        ("row-minmax", "the smallest and largest entries of single records of each silo"),
    ],
)
def test_standardised_data_are_said_to_be_outside_of_the_guarantee_and_refused_by_guarded_silos(
    tmp_path, standardise, message
):
    made = Experiment.prepare(config(standardise), tmp_path / "silos")
    tags = privacy_tags(made.config, made.plan)
    for text in (stamp(made.config), tags["privacy.noise"], tags["privacy.statement"]):
        assert (f"OUTSIDE OF THE GUARANTEE (data.standardise = {standardise})" in text) == (message is not None)
        assert message is None or message in text
    assert tags["privacy.statement"].startswith("With the preparation's constants given") == (message is not None)
    spec = SiteSpec(made.dataset.sources, 0, "sqlite", LedgerFolders.below(tmp_path), guarded=True)
    if message is None:
        register_all(made.dataset.sources, LedgerFolders.below(tmp_path))
        open_site(spec).close()
        return
    with pytest.raises(SiloError, match="prepares its records with public or released constants only"):
        open_site(spec)


def test_ways_to_standardise_are_ways_to_prepare_the_same_persons():
    """A sweep's account of a silo adds them up, although each is a separate data set."""
    keys = {records_of(config(kind).data) for kind in ("none", "global", "row-minmax")}
    assert len(keys) == 1 != len(keys | {records_of(config().data.model_copy(update={"alpha": 1.0}))})
