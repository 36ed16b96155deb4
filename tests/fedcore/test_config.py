"""Config files: what is refused and how it is told, overrides, sweeps, and the identity of a run."""

import dataclasses
import json
from pathlib import Path

import pytest

from fedcore.algorithms import ALGORITHMS, SUBGRADIENT
from fedcore.config import AlphaBetaData, ExperimentConfig, MnistData, PcaConfig, SimilarityConfig
from fedcore.configfile import load_experiment
from fedcore.errors import InputError
from fedcore.identity import canonical, code_version, run_id
from fedcore.losses import LOSSES
from fedcore.sweepfile import load_sweep

BASE = """
privacy: {epsilon: 1}
algorithm: {name: localized-mbsgd, step: 2, rounds: [5, 3], lam: 0.1}
"""
CONF = Path(__file__).parents[2] / "conf"


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(BASE)
    return path


def refusal(load, *arguments):
    with pytest.raises(InputError) as caught:
        load(*arguments)
    assert caught.value.__suppress_context__ or caught.value.__cause__ is None
    return str(caught.value)


WRONG = {
    # override: what the sentence must say beside the file's name
    "privacy.epsilom=2": ["privacy.epsilom", "did you mean epsilon?"],
    "privacy.epsilon=0": ["privacy.epsilon = 0", "greater than 0"],
    "privacy.epsilon=-1.5": ["privacy.epsilon = -1.5", "greater than 0"],
    "privacy.epsilon=two": ["privacy.epsilon = 'two'", "number"],
    "privacy.epsilon=.inf": ["privacy.epsilon = inf", "finite"],
    "privacy.epsilon=.nan": ["privacy.epsilon = nan"],
    "privacy.epsilon=true": ["privacy.epsilon = True", "number"],
    "privacy.epsilon=null": ["privacy.epsilon is missing", "positive number"],
    "privacy.epsilon=[1]": ["privacy.epsilon = [1]", "number"],
    "privacy.delta=0": ["privacy.delta = 0", "between 0 and 1"],
    "privacy.delta=1": ["privacy.delta = 1", "between 0 and 1"],
    "privacy.delta=.nan": ["privacy.delta"],
    "privacy.delta=1/n": ["privacy.delta = '1/n'"],
    "privacy.trust=none": ["privacy.epsilon", "privacy.trust = none", "no noise"],
    "privacy.trust=server": ["privacy.trust = 'server'", "'inter-silo' or 'none'"],
    "privacy.calibration=rdp": ["privacy.calibration = 'rdp'", "'exact' or 'paper'"],
    "privacy.cap={epsilon: 3}": ["privacy.cap needs privacy.ledger = sqlite"],
    "privacy.cap={epsilon: 0}": ["privacy.cap.epsilon = 0", "greater than 0"],
    "privacy.cap={epsilon: 3, rule: pld}": ["privacy.cap.rule = 'pld'", "'gdp', 'rdp' or 'basic'"],
    "privacy.ledger=disk": ["privacy.ledger = 'disk'", "'memory' or 'sqlite'"],
    "algorithm.name=mbsdg": ["algorithm.name = 'mbsdg'", *(f"'{name}'" for name in ALGORITHMS)],
    "algorithm.stepp=1": ["algorithm.stepp", "did you mean step?"],
    "algorithm.step=0": ["algorithm.step = 0", "greater than 0"],
    "algorithm.step=fast": ["algorithm.step = 'fast'", "number"],
    "algorithm.rounds=0": ["algorithm.rounds = 0", "greater than or equal to 1"],
    "algorithm.rounds=2.5": ["algorithm.rounds = 2.5", "integer"],
    "algorithm.rounds=[4, 0]": ["algorithm.rounds", "greater than or equal to 1"],
    "algorithm.average=mean": ["algorithm.average = 'mean'", "'uniform' or 'last'"],
    "seed=-1": ["seed = -1", "greater than or equal to 0"],
    "sede=1": ["sede", "did you mean seed?"],
    "name=a/b": ["name = 'a/b'"],
    "data.source=digit": [
        "data.source = 'digit'", "'digits'", "'mnist'", "'synthetic'", "'synthetic-alpha-beta'", "'files'",
    ],
    "data.source=mnist": ["data.folder is missing"],
    "data={source: mnist, folder: a, flavour: letters}": ["data.flavour = 'letters'", "'mnist'", "'emnist-digits'"],
    "data={source: mnist, folder: a, per_digit: 0}": ["data.per_digit = 0", "greater than or equal to 1"],
    "data={source: mnist, folder: a, flavor: mnist}": ["data.flavor", "did you mean flavour?"],
    "data.pca={dimensions: 3}": ["data.pca.dimensions", "did you mean dimension?"],
    "data.pca.dimension=0": ["data.pca.dimension = 0", "greater than or equal to 1"],
    "data.pca.constants=local": ["data.pca.constants = 'local'", "'public', 'simulation' or 'released'"],
    "data.pca.constants=released": ["data.pca.epsilon is missing", "released constants"],
    "data.pca={constants: released, epsilon: 0}": ["data.pca.epsilon = 0", "greater than 0"],
    "data.pca={constants: released, epsilon: 1, bound: 0}": ["data.pca.bound = 0", "greater than 0"],
    "data.pca={constants: released, epsilon: 1, fraction: 0.2}": ["data.pca.fraction", "constants = released"],
    "data.pca.epsilon=1": ["data.pca.epsilon", "no meaning with constants = public"],
    "data.pca={constants: simulation, bound: 2}": ["data.pca.bound", "no meaning with constants = simulation"],
    "data.pca={constants: simulation, fraction: 0.2}": ["data.pca.fraction", "no meaning with constants = simulation"],
    "data.pca.fraction=1": ["data.pca.fraction = 1", "less than 1"],
    "algorithm={name: localized-mbsgd, schedule: theory, lam: 1, batch: 5}": [
        "algorithm.schedule = theory", "leave out lam, batch",
    ],
    "algorithm={name: localized-accelerated, schedule: theory, rounds_scale: 2}": ["leave out rounds_scale"],
    "algorithm={name: localized-subgradient, schedule: manual, lam: 1}": ["manual needs numbers for rounds"],
    "algorithm={name: localized-mbsgd, schedule: paper}": ["algorithm.schedule = 'paper'", "'theory' or 'manual'"],
    "data.labels=digits": ["data.labels = 'digits'", "'odd-even' or 'digit'"],
    "data.labels=digit": ["'logistic' is not one of several classes", "has 10", "softmax", "data.labels = odd-even"],
    "data={source: synthetic, classes: 3}": ["'logistic'", "has 3", "model.loss.name = softmax", "two data.classes"],
    "data={source: synthetic, classes: 1}": ["data.classes = 1", "greater than or equal to 2"],
    "data.split=iid": ["data.split = 'iid'", "'odd-even' or 'similarity'"],
    "data.split=similarity": ["data.split = similarity needs data.labels = digit", "model.loss.name = softmax"],
    "data={split: similarity, labels: digit}": ["'logistic'", "has 10: choose model.loss.name = softmax"],
    "data.similarity={gamma: 0.5}": ["data.similarity has no meaning with split = odd-even"],
    "data={split: similarity, labels: digit, similarity: {gamma: 1.1}}": [
        "data.similarity.gamma = 1.1", "less than or equal to 1",
    ],
    "data={split: similarity, labels: digit, similarity: {records: 0}}": ["data.similarity.records = 0"],
    "data={split: similarity, labels: digit, similarity: {gama: 1}}": ["data.similarity.gama", "did you mean gamma?"],
    "data={split: similarity, labels: digit, similarity: {rest: all}}": [
        "data.similarity.rest = 'all'", "'one-class' or 'sorted-blocks'",
    ],
    "data={source: mnist, folder: a, flavour: emnist-balanced}": [
        "data.flavour = emnist-balanced has 47 classes", "data.split = similarity",
    ],
    "data={source: mnist, folder: a, flavour: emnist-balanced, labels: digit}": ["data.flavour = emnist-balanced"],
    "data={source: synthetic-alpha-beta, alpha: -1}": ["data.alpha = -1", "greater than or equal to 0"],
    "data={source: synthetic-alpha-beta, flip: 1.5}": ["data.flip = 1.5", "less than or equal to 1"],
    "data={source: synthetic-alpha-beta, standardise: local}": ["data.standardise = 'local'", "'row-minmax'"],
    "data={source: synthetic-alpha-beta, sigma: 1}": ["data.sigma", "known keys: alpha, beta"],
    "data.source=synthetic-alpha-beta": ["'logistic'", "has 10", "model.loss.name = softmax", "two data.classes"],
    "model.normalise=rows": ["model.normalise = 'rows'", "'record' or 'features'"],
    "model={bias: false, normalise: features}": ["model.normalise = features", "no meaning with model.bias = false"],
    "data.test_fraction=1": ["data.test_fraction = 1", "less than 1"],
    "model.loss.name=hinges": ["model.loss.name = 'hinges'", *(f"'{name}'" for name in LOSSES)],
    "model.loss={name: softmax, classes: 3}": ["model.loss.classes"],
    "model.loss.name=squared": ["loss 'squared'", "set model.clip"],
    "model.loss.name=hinge": ["algorithm.name = 'localized-mbsgd'", "'hinge' has kinks", *SUBGRADIENT],
    "model.smoothing={name: moreau}": ["model.smoothing must be null", "'logistic' is smooth"],
    "model={loss: {name: softmax}, smoothing: {name: moreau}}": ["model.smoothing must be null", "'softmax' is smooth"],
    "model.smoothing={beta: 2}": ["model.smoothing.name is missing"],
    "model.smoothing.name=nesterov": ["model.smoothing.name = 'nesterov'", "'moreau'", "'convolution'"],
    "model.smoothing={name: moreau, radius: 2}": ["model.smoothing.radius", "beta"],
    "model.smoothing={name: moreau, beta: 0}": ["model.smoothing.beta = 0", "greater than 0"],
    "model.hidden=0": ["model.hidden = 0", "greater than or equal to 1"],
    "model.hidden=8": ["model.hidden = 8 needs model.loss.name = softmax", "'logistic'"],
    "model={loss: {name: softmax}, hidden: 8}": ["model.hidden = 8", "set model.clip to a positive number"],
    "model.clip=0": ["model.clip = 0", "greater than 0"],
    "model.diameter=-1": ["model.diameter = -1", "greater than 0"],
    "model.ridge=-0.1": ["model.ridge = -0.1", "greater than or equal to 0"],
    "model.ridge=.inf": ["model.ridge = inf", "finite"],
    "model.feature_bound=.inf": ["model.feature_bound = inf", "finite"],
    "participation.silos_per_round=0": ["participation.silos_per_round = 0", "greater than or equal to 1"],
    "cluster.backend=ray": ["cluster.backend = 'ray'", "'dask' or 'in-process'"],
    "privacy=1": ["privacy = 1"],
    "algorithm=null": ["algorithm"],
}


@pytest.mark.parametrize("override", WRONG)
def test_a_wrong_value_is_told_in_one_sentence_with_file_and_key(file, override):
    sentence = refusal(load_experiment, file, [override])
    assert sentence.count("\n") == 0, sentence
    for part in (str(file), *WRONG[override]):
        assert part in sentence
    for inner in ("pydantic", "Traceback", "validation error", "ConfigDict", ".float", "constrained"):
        assert inner not in sentence


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_no_method_takes_an_infinite_number(file, name):
    """Every float of every registered method: infinity would run and end in a model that is not a number."""
    numbers = [f.name for f in dataclasses.fields(ALGORITHMS[name]) if "float" in str(f.type)]
    accepted = []
    for key in numbers:
        for value in (".inf", "-.inf", ".nan"):
            try:
                load_experiment(file, [f"algorithm.name={name}", f"algorithm.{key}={value}"])
                accepted.append(f"{key}={value}")
            except InputError as error:
                assert f"algorithm.{key}" in str(error)
    assert accepted == []


def test_several_faults_are_all_told(file):
    lines = refusal(load_experiment, file, ["seed=-1", "privacy.epsilon=0", "model.bais=true"]).splitlines()
    assert len(lines) == 3 and all(line.startswith(f"{file}: ") for line in lines)
    assert {line.split()[1] for line in lines} == {"seed", "privacy.epsilon", "model.bais"}


NETWORK = ["model.loss.name=softmax", "model.clip=1", "model.hidden=8"]


@pytest.mark.parametrize(
    "algorithm, parts",
    [
        ("{name: localized-accelerated}", ["'localized-accelerated'", "use mbsgd, one-pass-mbsgd, localized-mbsgd,"]),
        ("{name: localized-accelerated, rounds: 5, lam: 0.1}", ["neither convex nor smooth"]),
        ("{name: localized-subgradient, rounds: 5, lam: 0.1}", ["'localized-subgradient'"]),
        ("{name: mb-subgradient}", ["'mb-subgradient' takes its steps from such constants"]),
        ("{name: localized-mbsgd, rounds: 5}", ["give algorithm.rounds and algorithm.lam numbers"]),
        ("{name: localized-mbsgd, lam: 0.1}", ["give algorithm.rounds and algorithm.lam numbers"]),
        ("{name: localized-mbsgd, schedule: theory}", ["give algorithm.rounds and algorithm.lam numbers"]),
        ("{name: localized-mbsgd, rounds: 5, lam: 0.1, batch: theory}", ["algorithm.batch = theory"]),
        ("{name: mbsgd, batch: theory}", ["algorithm.batch = theory has no theorem", "a number, or null"]),
    ],
)
def test_a_network_is_refused_to_methods_that_need_its_constants(file, algorithm, parts):
    sentence = refusal(load_experiment, file, [*NETWORK, f"algorithm={algorithm}"])
    for part in ("model.hidden = 8", *parts):
        assert part in sentence
    assert "kinks" not in sentence and sentence.count("\n") == 0


@pytest.mark.parametrize(
    "algorithm",
    [
        "{name: mbsgd}", "{name: mbsgd, batch: 5}", "{name: one-pass-mbsgd}",
        "{name: localized-mbsgd, rounds: 5, lam: 0.1}", "{name: scaffold}", "{name: fedprox}",
    ],
)
def test_methods_whose_steps_are_given_take_a_network(file, algorithm):
    config = load_experiment(file, [*NETWORK, f"algorithm={algorithm}"])
    model = config.model
    assert (model.hidden, model.gradient_bound, model.convex, model.smooth) == (8, 1, False, False)
    assert ExperimentConfig.model_validate_json(config.model_dump_json()) == config


@pytest.mark.parametrize(
    "text, parts",
    [
        ("- 1\n- 2", ["mapping"]),
        ("a: [1,\nb: 2", ["line 2", "not valid YAML"]),
        ("", ["privacy is missing"]),
        ("privacy: {epsilon: 1}", ["algorithm is missing"]),
        ("privacy: {epsilon: 1}\nalgorithm: {step: 1}", ["algorithm.name is missing"]),
        ("algorithm: {name: mbsgd}\nprivacy: {trust: inter-silo}", ["privacy.epsilon is missing"]),
    ],
)
def test_a_wrong_file_is_told(tmp_path, text, parts):
    path = tmp_path / "wrong.yaml"
    path.write_text(text)
    sentence = refusal(load_experiment, path)
    assert all(part in sentence for part in (str(path), *parts))


def test_a_file_that_is_not_there_or_no_text(tmp_path):
    assert "does not exist" in refusal(load_experiment, tmp_path / "none.yaml")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    assert "cannot be read" in refusal(load_experiment, tmp_path / "binary.yaml")
    assert "cannot be read" in refusal(load_experiment, tmp_path)


@pytest.mark.parametrize("override", ["privacy.epsilon", "=2", "privacy.epsilon=[1"])
def test_what_is_no_override_is_told(file, override):
    assert repr(override) in refusal(load_experiment, file, [override])


def test_overrides(file):
    config = load_experiment(file, ["privacy.epsilon=2.5", "algorithm.step=0.25", "model.bias=false", "seed=3"])
    assert (config.privacy.epsilon, config.algorithm.step, config.seed) == (2.5, 0.25, 3)
    assert config.model.bias is False
    assert (config.algorithm.name, config.algorithm.rounds, config.algorithm.lam) == ("localized-mbsgd", (5, 3), 0.1)
    assert load_experiment(file, ["seed=1", "seed=2"]).seed == 2
    assert "cannot be set" in refusal(load_experiment, file, ["privacy.epsilon.x=1"])


def test_another_name_drops_the_old_keys_and_the_same_name_keeps_them(file):
    other = load_experiment(file, ["algorithm.name=mbsgd", "algorithm.step=3"]).algorithm
    assert other == ALGORITHMS["mbsgd"](step=3)
    same = load_experiment(file, ["algorithm.name=localized-mbsgd"]).algorithm
    assert same.lam == 0.1
    config = load_experiment(file, ["model.loss.name=huber", "model.loss.width=2", "data.source=synthetic"])
    assert (config.model.loss.width, config.model.gradient_bound) == (2, 2)
    assert config.data.silos == 25
    hinge = ["algorithm.name=mbsgd", "model.loss.name=hinge"]
    moreau = "model.smoothing={name: moreau, beta: 2}"
    config = load_experiment(file, [*hinge, moreau, "model.smoothing.name=convolution"])
    assert (config.model.smoothing.radius, config.model.gradient_bound) == (None, 1)
    config = load_experiment(file, ["algorithm.name=mb-subgradient", "model.loss={name: quantile, tau: 0.9}"])
    assert config.model.gradient_bound == 0.9


def test_defaults_and_json_round_trip(file):
    config = load_experiment(file)
    assert (config.privacy.trust, config.privacy.delta, config.privacy.calibration) == ("inter-silo", "1/n^2", "exact")
    texts = ["model.loss.name=squared", "model.clip=0.5", "data.source=synthetic", "data.silos=3", "privacy.delta=1e-6"]
    for overrides in ([], texts, ["privacy.trust=none", "privacy.epsilon=null"]):
        config = load_experiment(file, overrides)
        again = ExperimentConfig.model_validate_json(config.model_dump_json())
        assert again == config and run_id(again) == run_id(config)
        assert ExperimentConfig.model_validate(config.model_dump()) == config


@pytest.mark.parametrize("path", sorted(CONF.glob("experiment/*.yaml")), ids=lambda path: path.name)
def test_experiments_of_conf_can_be_loaded(path):
    assert run_id(load_experiment(path)).startswith(load_experiment(path).name)


@pytest.mark.parametrize("path", sorted(CONF.glob("sweep/*.yaml")), ids=lambda path: path.name)
def test_sweeps_of_conf_can_be_loaded(path):
    cells = load_sweep(path).cells()
    assert len({run_id(cell) for cell in cells}) == len(cells) > 1


# Sweeps

SWEEP = """
name: swept
base: mine.yaml
grid: {privacy.epsilon: [1, 2], seed: [0, 1, 2]}
variants:
  - set: {algorithm.step: 1}
  - set: {algorithm: {name: mbsgd, rounds: 7}}
  - set: {algorithm: {name: mbsgd, rounds: 7}, privacy: {trust: none, epsilon: null}}
    grid: {seed: [4, 5]}
"""


@pytest.fixture
def sweep(file):
    path = file.parent / "sweep.yaml"
    path.write_text(SWEEP)
    return path


def test_cells_are_variants_times_grid_in_order(sweep):
    cells = load_sweep(sweep).cells(str(sweep))
    seen = [(c.algorithm.name, c.privacy.epsilon, c.seed) for c in cells]
    grid = [(epsilon, seed) for epsilon in (1, 2) for seed in (0, 1, 2)]
    wanted = [("localized-mbsgd", *point) for point in grid] + [("mbsgd", *point) for point in grid]
    assert seen == [*wanted, ("mbsgd", None, 4), ("mbsgd", None, 5)]
    assert all(c.name == "swept" for c in cells)
    assert (cells[0].algorithm.step, cells[0].algorithm.rounds, cells[0].algorithm.lam) == (1, (5, 3), 0.1)
    assert cells[6].algorithm == ALGORITHMS["mbsgd"](rounds=7)
    assert cells[-1].privacy.trust == "none"
    assert len({run_id(c) for c in cells}) == 14


def test_equal_cells_are_one(sweep):
    sweep.write_text("name: s\nbase: mine.yaml\ngrid: {seed: [1, 1]}\nvariants: [{}, {}]")
    assert [c.seed for c in load_sweep(sweep).cells()] == [1]


def test_overrides_of_a_sweep_reach_every_cell(sweep):
    cells = load_sweep(sweep, ["model.diameter=3", "name=renamed"]).cells()
    assert len(cells) == 14
    assert {(c.model.diameter, c.name) for c in cells} == {(3, "renamed")}


def test_overrides_reach_sections_that_variants_and_grids_replace(file):
    path = file.parent / "sections.yaml"
    path.write_text("""
name: swept
base: mine.yaml
variants:
  - set: {algorithm: {name: mbsgd, rounds: 7}}
    grid: {data: [{source: synthetic, silos: 4}, {source: synthetic, silos: 5}]}
  - set: {algorithm.name: one-pass-mbsgd, data.source: synthetic, privacy: {trust: none, epsilon: null}}
    grid: {seed: [0, 1]}
""")
    cells = load_sweep(path, ["algorithm.step=9", "data.test_records=77", "privacy.delta=1e-4"]).cells()
    assert [c.algorithm.step for c in cells] == [9] * 4
    assert [(c.data.silos, c.data.test_records) for c in cells[:2]] == [(4, 77), (5, 77)]
    assert [c.data.test_records for c in cells[2:]] == [77, 77]
    assert [c.privacy.delta for c in cells] == [1e-4] * 4
    # null: that variant goes without it
    assert [c.privacy.epsilon for c in load_sweep(path, ["privacy.epsilon=3"]).cells()] == [3, 3, None, None]
    shared = path.read_text().replace("grid: {data", "grid: &shared {data")
    path.write_text(shared + "  - {set: {seed: 5}, grid: *shared}\n")
    assert [getattr(c.data, "test_records", 0) for c in load_sweep(path, ["data.test_records=77"]).cells()] == [77] * 6
    for override, told in {
        "algorithm.rounds=3": "algorithm.rounds = 7 is set by the sweep itself",
        "algorithm.name=scaffold": "algorithm.name = 'mbsgd' is set by the sweep itself",
        "data.silos=3": "data.silos = 4 is set by the sweep itself",
        "seed=3": "seed is in the sweep's grid; override it there: grid.seed=[...]",
    }.items():
        assert told in refusal(load_sweep, path, [override])


@pytest.mark.parametrize(
    "old, new, parts",
    [
        ("seed: [0, 1, 2]", "sede: [0]", ["variant 1", "sede", "did you mean seed?"]),
        ("[1, 2]", "[1, -2]", ["variant 1 (privacy.epsilon=-2, seed=0)", "privacy.epsilon = -2", "greater than 0"]),
        ("[1, 2]", "1", ["grid.privacy.epsilon", "list"]),
        ("grid: {privacy", "gird: {privacy", ["gird", "did you mean grid?"]),
        ("name: swept", "nam: swept", ["nam", "did you mean name?"]),
        ("name: mbsgd, rounds: 7}}", "name: mbsgd, lam: 7}}", ["variant 2", "algorithm.lam", "known key"]),
        ("base: mine.yaml", "base: 3", ["base must be"]),
    ],
)
def test_a_wrong_sweep_is_told(sweep, old, new, parts):
    assert old in SWEEP
    sweep.write_text(SWEEP.replace(old, new, 1))
    sentence = refusal(lambda: load_sweep(sweep).cells(str(sweep)))
    assert all(part in sentence for part in (str(sweep), *parts)), sentence


def test_a_base_that_is_not_there_is_told(sweep):
    sweep.write_text("name: s\nbase: none.yaml")
    assert "none.yaml does not exist" in refusal(load_sweep, sweep)


# Identity


def leaves(values, path=()):
    for key, value in values.items():
        if isinstance(value, dict):
            yield from leaves(value, (*path, key))
        else:
            yield ".".join((*path, key))


RESULT = {
    "name=other", "seed=1", "repetition=1", "data.test_fraction=0.3", "data.source=synthetic",
    "data.pca={}", "data.pca.dimension=20", "data.pca.constants=simulation", "data.pca.fraction=0.2",
    "model.loss.name=huber", "model.bias=false", "model.feature_bound=2", "model.clip=0.5", "model.diameter=5",
    "model.ridge=0.01", "model.normalise=features",
    "privacy.epsilon=2", "privacy.delta=1e-6", "privacy.calibration=paper", "privacy.ledger=sqlite",
    "algorithm.name=mbsgd", "algorithm.step=1", "algorithm.rounds=4", "algorithm.lam=null", "algorithm.exponent=2",
    "algorithm.max_phases=2", "algorithm.average=last", "algorithm.schedule=manual", "algorithm.batch=5",
    "participation.silos_per_round=3",
}  # fmt: skip
EXECUTION = {
    "cluster.backend=in-process", "cluster.workers=7", "cluster.address=tcp://a:1", "cluster.deadline=5",
    "orchestration.tasks=phase", "orchestration.checkpoint=behind", "tracking.mlflow=false",
    "tracking.evaluate_every=9", "tracking.evaluate_from=0.5", "tracking.simulation_metrics=false",
}  # fmt: skip


def test_every_key_that_makes_the_result_makes_the_identity(file):
    base = load_experiment(file)
    ids = {override: run_id(load_experiment(file, [override])) for override in RESULT}
    guarded = ["privacy.ledger=sqlite", "privacy.noise=guarded"]
    ids["privacy.noise=guarded"] = run_id(load_experiment(file, guarded))
    ids["privacy.trust=none"] = run_id(load_experiment(file, ["privacy.trust=none", "privacy.epsilon=null"]))
    given = ["algorithm.name=mbsgd", "privacy.epsilon=null", "privacy.noise_multiplier=3"]
    ids["privacy.noise_multiplier=3"] = run_id(load_experiment(file, given))
    released = ["", ", epsilon: 2", ", bound: 3"]
    for more in released:
        pca = f"data.pca={{constants: released, epsilon: 1{more}}}".replace("epsilon: 1, epsilon", "epsilon")
        ids[f"data.pca.{more[2:].partition(':')[0] or 'constants'}={more}"] = run_id(load_experiment(file, [pca]))
    kinds = ["{name: moreau}", "{name: moreau, beta: 2}", "{name: convolution}", "{name: convolution, radius: 1}"]
    kinds.append("{name: convolution, estimate: sampled}")
    for smoothing in ("null", *kinds):
        kinked = ["algorithm.name=mb-subgradient", "model.loss.name=hinge", f"model.smoothing={smoothing}"]
        ids[f"model.smoothing={smoothing}"] = run_id(load_experiment(file, kinked))
    softmax = "model.loss.name=softmax"
    ids[softmax] = run_id(load_experiment(file, [softmax]))
    network = [softmax, "model.clip=1", "algorithm.lam=0.1"]
    for hidden in ("null", "8", "9"):
        ids[f"model.hidden={hidden}"] = run_id(load_experiment(file, [*network, f"model.hidden={hidden}"]))
    assert '"hidden"' not in canonical(load_experiment(file, [*network, "model.hidden=null"]))
    ids["data.labels=digit"] = run_id(load_experiment(file, [softmax, "data.labels=digit"]))
    alike = [softmax, "data.labels=digit", "data.split=similarity"]
    ids["data.split=similarity"] = run_id(load_experiment(file, alike))
    for key, value in {"silos": "7", "records": "40", "gamma": "0", "rest": "sorted-blocks"}.items():
        ids[f"data.similarity.{key}="] = run_id(load_experiment(file, [*alike, f"data.similarity.{key}={value}"]))
    assert len({run_id(base), *ids.values()}) == len(ids) + 1
    for same in ("null", "{}", "{silos: 20, gamma: 0.1}"):
        assert run_id(load_experiment(file, [*alike, f"data.similarity={same}"])) == ids["data.split=similarity"]
    # Keys that came later leave older runs their ids where they say what was meant before.
    assert run_id(load_experiment(file, ["algorithm.batch=null"])) == run_id(base)
    values = json.loads(canonical(base))
    assert set(values["data"]) == {"source", "test_fraction", "pca"} and "normalise" not in values["model"]
    pca = ["data.pca={dimension: 20, constants: simulation}"]
    assert '"pca": {"constants": "simulation", "dimension": 20' in canonical(load_experiment(file, pca))
    assert '"bound"' not in canonical(load_experiment(file, pca))
    exact = [*kinked[:2], "model.smoothing={name: convolution, estimate: exact}"]
    assert run_id(load_experiment(file, exact)) == ids["model.smoothing={name: convolution}"]
    unused = [run_id(load_experiment(file, [override])) for override in EXECUTION]
    assert set(unused) == {run_id(base)}
    durable = "privacy.ledger=sqlite"
    capped = load_experiment(file, [durable, "privacy.cap={epsilon: 3, rule: basic}"])
    assert run_id(capped) == run_id(load_experiment(file, [durable]))
    # No key is forgotten here: whoever adds one decides to which side it belongs.
    covered = {override.partition("=")[0] for override in (*RESULT, *EXECUTION, *ids, "privacy.cap=")}
    sections = {f"data.pca.{key}" for key in PcaConfig.model_fields}
    sections |= {f"data.similarity.{key}" for key in SimilarityConfig.model_fields}
    assert covered | {"data.similarity"} == set(leaves(base.model_dump(mode="json"))) | sections


@pytest.mark.parametrize(
    "overrides, parts",
    [
        (["privacy.noise_multiplier=3", "algorithm.name=mbsgd"], ["both given: mbsgd needs one of them"]),
        (
            ["privacy.noise_multiplier=3", "privacy.epsilon=null", "algorithm.name=localized-accelerated"],
            ["localized-accelerated takes numbers of its schedule from privacy.epsilon", "scaffold, fedavg"],
        ),
        (
            ["privacy.noise_multiplier=3", "privacy.epsilon=null", "algorithm={name: mbsgd, batch: theory}"],
            ["not with batch = theory"],
        ),
        (["privacy.noise_multiplier=3", "privacy.epsilon=null", "privacy.trust=none"], ["no meaning with"]),
        (["privacy.noise_multiplier=0", "privacy.epsilon=null", "algorithm.name=mbsgd"], ["privacy.noise_multiplier"]),
    ],
)
def test_noise_that_is_given_goes_with_methods_whose_steps_are_given(file, overrides, parts):
    sentence = refusal(load_experiment, file, overrides)
    for part in parts:
        assert part in sentence


def test_every_key_of_a_folder_of_images_makes_the_identity(file):
    start = ["data.source=mnist", "data.folder=a"]
    changes = {
        "folder": "b", "flavour": "emnist-mnist", "per_digit": "9", "test_fraction": "0.3", "pca": "{dimension: 3}",
        "labels": "digit",
    }  # fmt: skip
    start.append("model.loss.name=softmax")
    alike = [*start, "data.labels=digit", "data.split=similarity"]
    ids = {run_id(load_experiment(file, [*start, f"data.{key}={value}"])) for key, value in changes.items()}
    ids |= {run_id(load_experiment(file, more)) for more in (alike, [*alike, "data.flavour=emnist-balanced"])}
    assert len(ids | {run_id(load_experiment(file, start))}) == len(changes) + 3
    assert changes.keys() | {"source", "split", "similarity"} == MnistData.model_fields.keys()


def test_every_key_of_alpha_beta_data_makes_the_identity(file):
    start = ["data.source=synthetic-alpha-beta", "model.loss.name=softmax"]
    changes = {
        "silos": 3, "records": 60, "test_fraction": 0.3, "features": 7, "classes": 4, "alpha": 1, "beta": 1, "flip": 0,
        "standardise": "global",
    }  # fmt: skip
    ids = {run_id(load_experiment(file, [*start, f"data.{key}={value}"])) for key, value in changes.items()}
    assert len(ids | {run_id(load_experiment(file, start))}) == len(changes) + 1
    assert changes.keys() | {"source"} == AlphaBetaData.model_fields.keys()


def test_constants_from_records_are_refused_by_guarded_silos(file):
    guarded = ["privacy.ledger=sqlite", "privacy.noise=guarded"]
    sentence = refusal(load_experiment, file, [*guarded, "data.pca.constants=simulation"])
    assert "data.pca.constants = simulation" in sentence and "choose public or released" in sentence
    for kind in ("global", "row-minmax"):
        made = ["model.loss.name=softmax", "data.source=synthetic-alpha-beta", f"data.standardise={kind}"]
        sentence = refusal(load_experiment, file, [*guarded, *made])
        assert f"data.standardise = {kind} shows what privacy.noise = guarded protects: choose none" in sentence
        assert load_experiment(file, made).unprotected_constants == f"data.standardise = {kind}"
    assert load_experiment(file, [*guarded, *made[:2]]).unprotected_constants is None
    assert not load_experiment(file, [*guarded, "data.pca.constants=public"]).unprotected_constants
    assert load_experiment(file, ["data.pca.constants=simulation"]).unprotected_constants


def test_canonical_form_is_sorted_json_without_execution(file):
    values = json.loads(canonical(load_experiment(file)))
    assert list(values) == sorted(values)
    assert not {"cluster", "orchestration", "tracking"} & values.keys()
    name, _, digest = run_id(load_experiment(file, ["name=my-run"])).rpartition("-")
    assert name == "my-run" and len(digest) == 12 and int(digest, 16) >= 0


def test_order_of_keys_and_written_defaults_do_not_matter(file):
    wanted = run_id(load_experiment(file))
    algorithm = "{lam: 0.1, rounds: [5, 3], step: 2.0, name: localized-mbsgd}"
    file.write_text(f"seed: 0\nalgorithm: {algorithm}\nprivacy: {{epsilon: 1.0}}")
    assert run_id(load_experiment(file)) == wanted


def test_code_version_is_that_of_the_files():
    version, _, digest = code_version().partition("+")
    assert version and len(digest) == 12 and code_version() == code_version()


def test_the_order_of_overrides_drops_none(file):
    one = ["algorithm.name=mbsgd", "algorithm.step=3"]
    other = ["model.loss.width=2", "model.loss.name=huber", "model.clip=1"]
    expected = load_experiment(file, [*one, *sorted(other)])
    assert (expected.algorithm.step, expected.model.loss.width) == (3, 2)
    assert load_experiment(file, [*one[::-1], *other]) == expected
    assert load_experiment(file, ["algorithm.step=3", "algorithm={name: mbsgd}", *other]) == expected
