"""Made-up silos have the assumed properties, and the chosen settings are the best of the tried ones."""

import numpy as np
import pytest
from sklearn.linear_model import LinearRegression, LogisticRegression

from fedcore.configfile.reading import validated
from fedcore.data.constants.whitening import Whitening
from fedcore.data.file_sources import schema_beforehand
from fedcore.data.schema import Column, longest
from fedcore.data.silo_file import SiloSource
from fedcore.data.sources.made_up.assumed import Assumptions, made_up
from fedcore.errors import InputError
from fedcore.experiment import tuning
from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.simulated.resampled import public_records, resampled
from fedcore.experiment.simulated.scaled import World, scaled_world
from fedcore.experiment.tuning import default_grid, points, tune, with_values
from fedcore.planning.problem import SiloFacts

NUMBERS = tuple(Column(name=f"x{k}", range=(0, 10)) for k in range(6))
MIXED = (
    *NUMBERS,
    Column(name="k", categories=("a", "b", "c"), missing=()),
    Column(name="z", centre=1, scale=2, missing=()),
)
TWO = (SiloFacts("a", 4000), SiloFacts("b", 12000))


def all_records(silos):
    return [np.concatenate([getattr(made, key) for made in silos.values()]) for key in ("features", "labels")]


@pytest.mark.parametrize("signal", [0.2, 0.5, 0.9])
def test_the_signal_is_the_share_of_variance_that_was_assumed(signal):
    assumed = Assumptions(signal=signal, heterogeneity=0)
    silos, test = made_up(NUMBERS, TWO, None, assumed, 8000, 3)
    X, y = all_records(silos)
    # Clipping of features and labels takes a little away.
    assert LinearRegression().fit(X, y).score(test.features, test.labels) == pytest.approx(signal, abs=0.05)
    silos, test = made_up(NUMBERS, TWO, 2, assumed, 8000, 3)
    X, y = all_records(silos)
    # Sign of a score of which a part s is known: the best error is arccos(sqrt(s)) / pi.
    error = 1 - LogisticRegression().fit(X, y).score(test.features, test.labels)
    assert error == pytest.approx(np.arccos(np.sqrt(signal)) / np.pi, abs=0.02)
    assert np.mean(y) == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize("classes", [2, 3, None])
def test_made_up_records_are_of_the_schema(classes):
    silos, test = made_up(MIXED, TWO, classes, Assumptions(), 1000, 5)
    assert {name: len(made.labels) for name, made in silos.items()} == {"a": 4000, "b": 12000}
    assert len(test.labels) == 1000
    for made in (*silos.values(), test):
        assert made.features.shape[1] == sum(len(column.names) for column in MIXED)
        assert np.linalg.norm(made.features, axis=1).max() <= longest(MIXED) * (1 + 1e-12)
        kinds = made.features[:, 6:11]
        assert set(kinds.ravel()) == {0.0, 1.0} and (kinds.sum(axis=1) == 1).all()
        assert kinds[:, 4].mean() == pytest.approx(0.1, abs=0.04)  # missing, as assumed
        gone = made.features[:, 12] == 1
        assert not made.features[gone, 11].any()
        if classes is not None:
            assert set(made.labels) == set(range(classes))


def test_heterogeneity_moves_silos_apart_and_none_leaves_them_alike():
    apart = []
    for heterogeneity in (0.0, 1.0):
        silos, _ = made_up(NUMBERS, TWO, 2, Assumptions(heterogeneity=heterogeneity), 10, 1)
        means = [made.features.mean(axis=0) for made in silos.values()]
        apart.append(np.abs(means[0] - means[1]).max())
    assert apart[0] < 0.03 < 0.1 < apart[1]


def config(**changes):
    values = {
        "data": {"source": "hospitals", "features": {"age": {"range": [30, 80]}, "sex": {"range": [0, 1]}}},
        "privacy": {"epsilon": 4},
        "algorithm": {"name": "mbsgd", "rounds": 10},
    }
    return validated(ExperimentConfig, {**values, **changes}, "test")


def test_all_points_are_tried_on_the_same_silos_and_the_best_comes_first():
    grid = {"algorithm.step": [0.01, 2.0], "model.clip": [0.2, 0.5]}
    assumed = Assumptions(heterogeneity=0, signal=0.9)
    made = tune(config(), grid, assumed, 3)
    assert sorted(map(repr, (trial.point for trial in made.trials))) == sorted(map(repr, points(grid)))
    errors = [trial.error for trial in made.trials]
    assert errors == sorted(errors) and made.best == made.trials[0]
    # Points share silos and noise, so one that is better is so without chance; a longer step may do as well.
    by_clip = [
        {trial.point["algorithm.step"]: trial.error for trial in made.trials if trial.point["model.clip"] == clip}
        for clip in grid["model.clip"]
    ]
    assert all(each[2.0] <= each[0.01] for each in by_clip) and any(each[2.0] < each[0.01] for each in by_clip)
    assert made.best.error < made.baseline
    again = tune(config(), {key: values[::-1] for key, values in grid.items()}, assumed, 3)
    assert {repr(sorted(t.point.items())): t.error for t in again.trials} == {
        repr(sorted(t.point.items())): t.error for t in made.trials
    }


def test_of_many_points_a_third_is_tried_on_all_simulations_with_the_same_errors(monkeypatch):
    grid = {"algorithm.step": [0.01, 2.0, 8.0], "model.clip": [0.2, 0.5]}
    one_by_one = tune(config(), grid, Assumptions(), 4)
    monkeypatch.setattr(tuning, "MANY", 5)
    monkeypatch.setattr(tuning, "FEW", 2)
    made = tune(config(), grid, Assumptions(), 4)
    few = tune(config(), grid, Assumptions(), 2)
    assert (made.tried, len(made.trials), len(few.trials)) == (6, 2, 6)
    whole = {repr(trial.point): trial for trial in one_by_one.trials}
    assert {repr(trial.point) for trial in made.trials} == {repr(trial.point) for trial in few.trials[:2]}
    for trial in made.trials:
        assert whole[repr(trial.point)] == trial
    assert made.baseline == one_by_one.baseline


def test_points_that_cannot_be_planned_are_left_out_and_none_at_all_is_an_error():
    made = tune(config(), {"algorithm.rounds": [10, -3]}, Assumptions(), 2)
    assert [trial.point for trial in made.trials] == [{"algorithm.rounds": 10}]
    with pytest.raises(InputError, match=r"algorithm\.rounds"):
        tune(config(), {"algorithm.rounds": [-3]}, Assumptions(), 2)
    plain = {"source": "digits"}
    with pytest.raises(InputError, match="there is none"):
        tune(config(data=plain), {"algorithm.rounds": [3]}, Assumptions(), 2)


def test_the_grid_is_of_keys_that_the_method_has():
    common = {"model.clip", "model.diameter"}
    assert set(default_grid(config())) == common | {"algorithm.step", "algorithm.rounds", "algorithm.average"}
    left = config(algorithm={"name": "mbsgd", "rounds": None, "step": "theory", "average": "theory"})
    assert set(default_grid(left)) == common  # what is left to a theorem stays so
    localized = config(algorithm={"name": "localized-mbsgd"})
    assert "algorithm.rounds" not in default_grid(localized)
    own = {
        "scaffold": {"step", "rounds"},
        "one-pass-mbsgd": {"step", "rounds", "average"},
        "localized-accelerated": {"lam"},
        "accelerated-mbsgd": {"lam"},
        "fedavg": {"step", "rounds"},
        "diff2": {"step", "rounds"},
        "noised-newton": {"shift", "rounds"},
        "dp-fcrn": {"scale", "rounds"},
    }
    for key, its in own.items():
        made = config(algorithm={"name": key})
        for point in list(points(default_grid(made)))[:1]:
            with_values(made, point)
        assert set(default_grid(made)) == common | {f"algorithm.{each}" for each in its}
    # A public number for the curvature is tried beside its quarter and sixteenth; logistic, of records of norm 1.
    known = config(algorithm={"name": "accelerated-mbsgd", "smoothness": 0.2})
    assert default_grid(known)["algorithm.smoothness"] == [0.25, 0.0625, 0.015625]
    # A loss without a bound on its slope: clips are of the record's norm.
    real = {"loss": {"name": "squared"}, "clip": 3.0, "feature_bound": 2.0}
    silos = [{"name": "a", "path": "a.csv"}]
    data = {"source": "files", "silos": silos, "features": ["x"], "label": "y", "classes": None}
    assert default_grid(config(model=real, data=data))["model.clip"][0] == 2.0


def test_the_grid_is_the_same_for_what_tuning_has_written():
    grid = default_grid(config())
    assert grid["model.diameter"] == [config().model.diameter, 80.0]
    chosen = {"diameter": 80.0, "clip": 0.1}
    assert default_grid(config(model=chosen, algorithm={"name": "mbsgd", "step": 128.0})) == grid
    assert grid["algorithm.step"] == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0]


def write_public(path, n, labels=("0", "1")):
    rng = np.random.default_rng(3)
    rows = [f"{rng.uniform(0, 10)},{rng.choice(['a', 'b'])},{labels[k % len(labels)]}" for k in range(n)]
    path.write_text("x,kind,y\n" + "\n".join(rows) + "\n")
    columns = (Column(name="x", range=(0, 10)), Column(name="kind", categories=("a", "b")))
    return SiloSource("p", str(path), "csv", ("x", "kind"), "y", (0, 1), True, 1.0, 1.0, "v", schema=columns)


def test_silos_are_drawn_from_two_thirds_of_a_public_file_and_tested_on_the_rest(tmp_path):
    public = public_records(write_public(tmp_path / "p.csv", 90, ("0", "1", "spam")))
    assert len(public.labels) == 60 and set(public.labels) == {0.0, 1.0}  # a label that is none is left out
    for seed in (0, 1):
        silos, test = resampled(public, (SiloFacts("a", 50), SiloFacts("b", 200)), seed)
        assert {name: len(made.labels) for name, made in silos.items()} == {"a": 50, "b": 200}
        assert len(test.labels) == 20
        known = {row.tobytes() for row in public.features}
        tested = {row.tobytes() for row in test.features}
        trained = {row.tobytes() for made in silos.values() for row in made.features}
        assert trained | tested <= known and not trained & tested
    assert tested != {row.tobytes() for row in resampled(public, TWO, 0)[1].features}


def test_a_public_file_that_is_too_small_or_not_there_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"has 29 records with a label that fits; settings are tried on at least 30"):
        public_records(write_public(tmp_path / "p.csv", 29))
    source = write_public(tmp_path / "p.csv", 30)
    (tmp_path / "p.csv").unlink()
    with pytest.raises(InputError, match=r"public file .*p\.csv does not exist"):
        public_records(source)


def released_config(epsilon, privacy):
    values = {
        "data": {
            "source": "files",
            "silos": [{"name": "a", "path": "a.csv"}],
            "label": "y",
            "features": {
                "x": {"range": [0, 10]},
                "k": {"categories": ["u", "v"]},
                "z": {"range": [1, 9], "missing": [], "fill": 3},
            },
            "scaling": {"constants": "released", "epsilon": epsilon, "limit": 2.0},
        },
        "privacy": privacy,
        "algorithm": {"name": "mbsgd"},
    }
    return validated(ExperimentConfig, values, "test")


@pytest.mark.parametrize("epsilon", [None, 0.5])
def test_simulated_silos_release_the_constants_that_their_records_are_prepared_with(epsilon):
    made = released_config(epsilon, {"trust": "none"} if epsilon is None else {"epsilon": 2.0})
    ranges = made.data.features
    facts = (SiloFacts("a", 300), SiloFacts("b", 700))
    world = World(ranges, *made_up(ranges, facts, 2, Assumptions(), 500, 3))
    scaled = scaled_world(made, world, 3)
    released = scaled.schema
    raw, inner = all_records(world.silos)[0], all_records(scaled.silos)[0]
    assert [column.names for column in released] == [column.names for column in ranges]
    assert np.array_equal(raw[:, 1:4], inner[:, 1:4]) and np.array_equal(raw[:, 5], inner[:, 5])
    half = (made.data.features[0].range[1] - made.data.features[0].range[0]) / 2
    expected = np.clip((5 + half * raw[:, 0] - released[0].centre) / released[0].scale, -2, 2)
    np.testing.assert_allclose(inner[:, 0], expected, atol=1e-12)
    gone = raw[:, 5] == 1
    assert gone.any() and np.allclose(inner[gone, 4], released[2].unit(np.array([3.0])))
    assert np.linalg.norm(inner, axis=1).max() <= longest(released) * (1 + 1e-12)
    centre = (released[0].centre - 5) / half
    if epsilon is None:
        assert abs(inner[:, 0].mean()) < 0.05 and inner[:, 0].std() == pytest.approx(1, abs=0.1)
    else:
        assert 0 < abs(centre - raw[:, 0].mean()) < 0.2
        assert scaled_world(made, world, 3).schema == released != scaled_world(made, world, 4).schema
    tried = tune(made, {"algorithm.rounds": [2, 5]}, Assumptions(), 2, facts)
    assert len(tried.trials) == 2 and 0 < tried.best.error < 1


def whitened_config(tmp_path, scaling, privacy):
    rng = np.random.default_rng(0)
    rows = [f"{a},{b},1" for a, b in rng.uniform(0, 10, (40, 2))]
    (tmp_path / "p.csv").write_text("x,z,y\n" + "\n".join(rows) + "\n")
    values = {
        "data": {
            "source": "files",
            "silos": [{"name": "a", "path": "a.csv"}],
            "label": "y",
            "features": {"x": {"range": [0, 10]}, "k": {"categories": ["u", "v"]}, "z": {"range": [0, 10]}},
            "scaling": {**scaling, "whiten": True},
        },
        "privacy": privacy,
        "algorithm": {"name": "mbsgd"},
    }
    return validated(ExperimentConfig, values, "test")


@pytest.mark.parametrize("origin", ["public", "released"])
def test_simulated_records_are_whitened_by_what_their_own_world_says(tmp_path, origin):
    scaling = {"path": str(tmp_path / "p.csv")} if origin == "public" else {"constants": "released", "epsilon": None}
    made = whitened_config(tmp_path, scaling, {"trust": "none"})
    schema, _ = schema_beforehand(made.data)
    facts = (SiloFacts("a", 3000),)
    world = World(schema, *made_up(schema, facts, 2, Assumptions(correlation=0.8, heterogeneity=0), 500, 3))
    scaled = scaled_world(made, world, 3)
    assert scaled.whitening.columns == ("x", "z")
    raw, inner = all_records(world.silos)[0], scaled.records(scaled.silos["a"], made).X
    before, after = (np.corrcoef(X[:, 0], X[:, -2 if X is inner else -1])[0, 1] for X in (raw, inner))
    assert abs(before) > 0.6 and abs(after) < 0.35
    known = Whitening.of(("x", "z"), 3.0, np.eye(2))
    assert (scaled_world(made, world, 3, known).whitening == known) is (origin == "public")
    tried = tune(made, {"algorithm.rounds": [2, 5]}, Assumptions(), 2, facts)
    assert len(tried.trials) == 2 and 0 < tried.best.error < 1
