"""Synthetic silos: their shared parts, the law of their labels, the spectrum and the centre of their features."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from fedcore.data.sources.streams import stream
from fedcore.data.sources.synthetic import SyntheticData, synthetic


def rows(table):
    return [row.tobytes() for row in table.features]


def made_of(seed, **keys):
    return synthetic(SyntheticData(**keys), seed)


@given(st.integers(1, 12), st.integers(1, 12), st.integers(0, 2**70))
@settings(max_examples=25, deadline=None)
def test_a_silo_does_not_depend_on_the_number_of_silos_or_test_records(few, many, seed):
    a = made_of(seed, silos=few, records=5, features=3, heterogeneity=1.5, test_records=7)
    b = made_of(seed, silos=many, records=5, features=3, heterogeneity=1.5, test_records=40)
    shared = sorted(a.silos.keys() & b.silos.keys())
    assert len(shared) == min(few, many)
    for name in shared:
        assert rows(a.silos[name]) == rows(b.silos[name])
        assert a.silos[name].labels.tolist() == b.silos[name].labels.tolist()


def test_no_two_silos_and_no_test_record_are_drawn_alike():
    made = made_of(5, silos=30, records=20, features=2, heterogeneity=0, test_records=100)
    seen = [row for table in (*made.silos.values(), made.test) for row in rows(table)]
    assert len(set(seen)) == len(seen) == 30 * 20 + 100


@pytest.mark.parametrize("test_records", [1, 5, 17])
def test_test_records_have_their_number(test_records):
    made = made_of(0, silos=5, records=2, features=3, test_records=test_records)
    assert made.test.features.shape == (test_records, 3) and made.test.labels.shape == (test_records,)


def test_heterogeneity_is_the_spread_of_the_silos():
    """Means of silos spread by heterogeneity / sqrt(d) per coordinate, apart from 1 / sqrt(n) of sampling."""
    d, n = 10, 400

    def spread(heterogeneity):
        made = made_of(0, silos=60, records=n, features=d, heterogeneity=heterogeneity, test_records=1)
        return np.array([table.features.mean(axis=0) for table in made.silos.values()]).std()

    assert spread(0.0) == pytest.approx(1 / np.sqrt(n), rel=0.1)
    assert spread(2.0) == pytest.approx(np.sqrt(4.0 / d + 1 / n), rel=0.1)


def test_labels_follow_the_logistic_law():
    """Without heterogeneity all silos share w0: a fit on many records finds it."""
    from scipy.optimize import minimize

    made = made_of(1, silos=4, records=5000, features=3, heterogeneity=0, test_records=5000)
    X = np.concatenate([t.features for t in made.silos.values()])
    sign = 2 * np.concatenate([t.labels for t in made.silos.values()]) - 1
    w = minimize(lambda w: np.logaddexp(0, -sign * (X @ w)).mean(), np.zeros(3)).x
    w0 = stream(1, 101).standard_normal(3)
    np.testing.assert_allclose(w, w0, atol=0.1)
    chance = 1 / (1 + np.exp(-made.test.features @ w0))  # the test set obeys the same weights
    assert made.test.labels.mean() == pytest.approx(chance.mean(), abs=4 * 0.5 / np.sqrt(5000))


def test_records_follow_the_law_without_a_spectrum():
    """The law, written down once more: the streams' numbers, as they come."""
    made = made_of(3, silos=2, records=4, features=3, heterogeneity=0.5, test_records=2)
    common = stream(3, 101).standard_normal(3)
    for index, table in enumerate(made.silos.values()):
        rng = stream(3, 102, index)
        mean = 0.5 * rng.standard_normal(3) / np.sqrt(3)
        weights = common + 0.5 * rng.standard_normal(3)
        X = mean + rng.standard_normal((4, 3))
        np.testing.assert_array_equal(table.features, X)
        np.testing.assert_array_equal(table.labels, X @ weights + rng.logistic(size=4) > 0)


def test_a_spectrum_and_a_centre_move_features_and_no_label():
    keys = {"silos": 2, "records": 50_000, "features": 4, "heterogeneity": 0, "test_records": 10}
    plain, made = made_of(1, **keys), made_of(1, **keys, condition=1e3, offset=6)
    for name, table in made.silos.items():
        np.testing.assert_array_equal(table.labels, plain.silos[name].labels)
        np.testing.assert_allclose(table.features.mean(axis=0), 3.0, atol=0.02)  # 6 / sqrt(4)
        np.testing.assert_allclose(table.features.var(axis=0), [1.0, 1e-1, 1e-2, 1e-3], rtol=0.05)
    deviations = np.sqrt([1.0, 1e-1, 1e-2, 1e-3])
    np.testing.assert_allclose(made.test.features - 3, plain.test.features * deviations, atol=1e-12)


def test_one_feature_has_no_spectrum():
    made = made_of(0, silos=1, records=2000, features=1, heterogeneity=0, condition=100.0)
    assert made.silos["silo-000"].features.var() == pytest.approx(1.0, rel=0.1)


@pytest.mark.parametrize("classes", [2, 3])
def test_labels_depend_on_the_informative_features_alone(classes):
    keys = {"silos": 2, "records": 400, "features": 6, "heterogeneity": 0.5, "classes": classes, "test_records": 400}
    plain, made = made_of(2, **keys), made_of(2, **keys, informative=2)
    shape = (6,) if classes == 2 else (3, 6)
    common = stream(2, 101).standard_normal(shape)
    for index, name in enumerate(made.silos):
        rng = stream(2, 102, index)
        mean = 0.5 * rng.standard_normal(6) / np.sqrt(6)
        w = (common + 0.5 * rng.standard_normal(shape))[..., :2]
        X = mean + rng.standard_normal((400, 6))
        np.testing.assert_array_equal(made.silos[name].features, X)
        if classes == 2:
            labels = X[:, :2] @ w + rng.logistic(size=400) > 0
        else:
            labels = (X[:, :2] @ w.T + rng.gumbel(size=(400, 3))).argmax(axis=1)
        np.testing.assert_array_equal(made.silos[name].labels, labels)
        assert (plain.silos[name].labels != labels).any()
    whole = made_of(2, **keys, informative=6)
    np.testing.assert_array_equal(whole.test.labels, plain.test.labels)


def test_no_more_informative_features_than_features():
    with pytest.raises(ValidationError, match="informative is 7, of 6 features"):
        SyntheticData(features=6, informative=7)


BEYOND = [{"condition": 0.5}, {"condition": 1e13}, {"offset": -1}, {"offset": 1e7}, {"informative": 0}]


@pytest.mark.parametrize("keys", BEYOND)
def test_no_spectrum_or_centre_beyond_bounds(keys):
    with pytest.raises(ValidationError, match=next(iter(keys))):
        SyntheticData(**keys)
