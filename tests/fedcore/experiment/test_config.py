"""Files of experiments: refusals, their messages, and overrides."""

import dataclasses
import time
from pathlib import Path

import pytest

from fedcore.algorithms import ALGORITHMS, with_trait
from fedcore.errors import InputError
from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.identity import run_id
from fedcore.experiment.loading import load_experiment
from fedcore.losses import LOSSES
from tests.fedcore.refusal import refusal

CONF = Path(__file__).parents[3] / "conf"


WRONG = {
    # override: texts that the message must have beside the file's name
    "privacy.epsilom=2": ["privacy.epsilom", "did you mean epsilon?"],
    "privacy.epsilon=0": ["privacy.epsilon = 0", "greater than 0"],
    "privacy.epsilon=-1.5": ["privacy.epsilon = -1.5", "greater than 0"],
    "privacy.epsilon=two": ["privacy.epsilon = 'two'", "number"],
    "privacy.epsilon=.inf": ["privacy.epsilon = inf", "finite"],
    "privacy.epsilon=.nan": ["privacy.epsilon = nan"],
    "privacy.epsilon=true": ["privacy.epsilon = true", "number"],
    "privacy.epsilon=null": ["privacy.epsilon is missing", "positive number"],
    "privacy.epsilon=[1]": ["privacy.epsilon = [1]", "number"],
    "privacy.delta=0": ["privacy.delta = 0", "between 0 and 1"],
    "privacy.delta=1": ["privacy.delta = 1", "between 0 and 1"],
    "privacy.delta=.nan": ["privacy.delta"],
    "privacy.delta=1/n": ["privacy.delta = '1/n'"],
    "privacy.trust=none": ["privacy.epsilon", "privacy.trust = none", "no noise"],
    "privacy.calibration=rdp": ["privacy.calibration = 'rdp'", "'exact', 'paper' or 'experiments'"],
    "privacy.trust=server": ["privacy.trust = 'server'", "'inter-silo', 'shuffler', 'central' or 'none'"],
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
        "data.source = 'digit'",
        "'digits'",
        "'mnist'",
        "'synthetic'",
        "'synthetic-alpha-beta'",
        "'files'",
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
        "algorithm.schedule = theory",
        "leave out lam, batch",
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
    "data={split: similarity, labels: digit, homogeneity: 0.5}": [
        "data.homogeneity = 0.5 has no meaning with split = similarity",
        "data.similarity.gamma",
    ],
    "data.homogeneity=1.5": ["data.homogeneity = 1.5"],
    "data={split: similarity, labels: digit, similarity: {gamma: 1.1}}": [
        "data.similarity.gamma = 1.1",
        "less than or equal to 1",
    ],
    "data={split: similarity, labels: digit, similarity: {records: 0}}": ["data.similarity.records = 0"],
    "data={split: similarity, labels: digit, similarity: {gama: 1}}": ["data.similarity.gama", "did you mean gamma?"],
    "data={split: similarity, labels: digit, similarity: {rest: all}}": [
        "data.similarity.rest = 'all'",
        "'one-class' or 'sorted-blocks'",
    ],
    "data={source: mnist, folder: a, flavour: emnist-balanced}": [
        "data.flavour = emnist-balanced has 47 classes",
        "data.split = similarity",
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
    "model.loss.name=hinge": [
        "algorithm.name = 'localized-mbsgd'",
        "'hinge' is nonsmooth",
        *with_trait("takes_nonsmooth"),
    ],
    "model.smoothing={name: moreau}": ["model.smoothing must be null", "'logistic' is smooth"],
    "model={loss: {name: softmax}, smoothing: {name: moreau}}": ["model.smoothing must be null", "'softmax' is smooth"],
    "model.smoothing={beta: 2}": ["model.smoothing.name is missing"],
    "model.smoothing.name=nesterov": ["model.smoothing.name = 'nesterov'", "'moreau'", "'convolution'"],
    "model.smoothing={name: moreau, radius: 2}": ["model.smoothing.radius", "beta"],
    "model.smoothing={name: moreau, beta: 0}": ["model.smoothing.beta = 0", "greater than 0"],
    "model.hidden=0": ["model.hidden = 0", "greater than or equal to 1"],
    "model.hidden=8": ["model.hidden = 8 needs model.loss.name = softmax", "'logistic'"],
    "model.activation=softplus": ["model.activation = softplus has no meaning without model.hidden"],
    "model.start=literal": ["model.start = literal has no meaning without model.hidden"],
    "model={loss: {name: hinge}, hidden: 8, clip: 1}": ["softmax for classes, squared or huber", "'hinge'"],
    "model={loss: {name: squared}, hidden: 8}": ["model.hidden = 8", "set model.clip to a positive number"],
    "model={loss: {name: softmax}, hidden: 8}": ["model.hidden = 8", "set model.clip to a positive number"],
    "model.clip=0": ["model.clip = 0", "greater than 0"],
    "model.diameter=-1": ["model.diameter = -1", "greater than 0"],
    "model.ridge=-0.1": ["model.ridge = -0.1", "greater than or equal to 0"],
    "model.ridge=.inf": ["model.ridge = inf", "finite"],
    "model.feature_bound=.inf": ["model.feature_bound = inf", "finite"],
    "participation.silos_per_round=0": ["participation.silos_per_round = 0", "greater than or equal to 1"],
    "cluster.backend=ray": ["cluster.backend = 'ray'", "'dask', 'in-process' or 'federation'"],
    "privacy.trust=shuffler": ["privacy.trust = shuffler needs privacy.ledger = sqlite"],
    "privacy={epsilon: 1, trust: shuffler, ledger: sqlite, calibration: paper}": ["privacy.calibration = paper"],
    "privacy={trust: shuffler, ledger: sqlite}": ["privacy.epsilon is missing"],
    "shuffler={}": ["shuffler has no meaning with privacy.trust = inter-silo"],
    "privacy=1": ["privacy = 1"],
    "algorithm=null": ["algorithm"],
    "algorithm={name: dp-fcrn, kept: 0}": ["algorithm.kept = 0", "greater than 0"],
    "algorithm={name: dp-fcrn, kept: 1.01}": ["algorithm.kept = 1.01", "less than or equal to 1"],
    "algorithm={name: dp-fcrn, local_steps: 1}": ["algorithm.local_steps = 1", "greater than or equal to 2"],
    "algorithm={name: dp-fcrn, cubic: -1}": ["algorithm.cubic = -1", "greater than or equal to 0"],
    "algorithm={name: noised-newton, balance: 0}": ["algorithm.balance = 0", "greater than 0"],
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


def test_of_a_long_list_the_first_faults_and_the_beginning_are_told(file):
    began = time.process_time()
    text = refusal(load_experiment, file, [f"participation.weights={[-1] * 10_000}"])
    assert text.count("\n") < 20 and "participation.weights.0 = -1: it should be" in text
    text = refusal(load_experiment, file, [f"participation.silos_per_round={[3] * 70_000}"])
    assert len(text) < 500 and "3, 3.." in text and "at most 65536 items" in text
    assert time.process_time() - began < 20


def test_several_faults_are_all_told(file):
    lines = refusal(load_experiment, file, ["seed=-1", "privacy.epsilon=0", "model.bais=true"]).splitlines()
    assert len(lines) == 3 and all(line.startswith(f"{file}: ") for line in lines)
    assert {line.split()[1] for line in lines} == {"seed", "privacy.epsilon", "model.bais"}


@pytest.mark.parametrize("name", ["noised-newton", "dp-fcrn"])
@pytest.mark.parametrize(
    "changes, message",
    [
        (["model.loss.name=softmax", "data.labels=digit"], "loss 'softmax' has a predictor for each class"),
        (
            ["model={loss: {name: hinge}, smoothing: {name: convolution, radius: 0.5, estimate: sampled}}"],
            "model.smoothing.estimate = sampled draws its points anew",
        ),
        (
            ["model={loss: {name: softmax}, clip: 1, hidden: 8}", "data.labels=digit"],
            "model.hidden = 8 makes a network",
        ),
    ],
)
def test_models_without_hessians_of_one_predictor_are_refused(file, name, changes, message):
    sentence = refusal(load_experiment, file, [f"algorithm={{name: {name}}}", *changes])
    assert "\n" not in sentence and str(file) in sentence and message in sentence and name in sentence


NETWORK = ["model.loss.name=softmax", "model.clip=1", "model.hidden=8"]


@pytest.mark.parametrize(
    "algorithm, parts",
    [
        (
            "{name: localized-accelerated}",
            ["'localized-accelerated'", "use diff2", *(name for name, m in ALGORITHMS.items() if m.takes_nonconvex)],
        ),
        ("{name: localized-accelerated, rounds: 5, lam: 0.1}", ["neither convex nor smooth"]),
        ("{name: localized-subgradient, rounds: 5, lam: 0.1}", ["'localized-subgradient'"]),
        ("{name: mb-subgradient}", ["'mb-subgradient' takes its steps from such constants"]),
        ("{name: localized-mbsgd, rounds: 5}", [": algorithm.lam = null must be given"]),
        ("{name: localized-mbsgd, lam: 0.1}", [": algorithm.rounds = null must be given"]),
        ("{name: localized-mbsgd, schedule: theory}", ["algorithm.rounds = null and algorithm.lam = null must"]),
        ("{name: localized-mbsgd, rounds: 5, lam: 0.1, batch: theory}", ["algorithm.batch = theory"]),
        ("{name: mbsgd, batch: theory}", ["no theorem is about such models", "algorithm.batch = theory must be given"]),
    ],
)
def test_a_network_is_refused_to_methods_that_need_its_constants(file, algorithm, parts):
    sentence = refusal(load_experiment, file, [*NETWORK, f"algorithm={algorithm}"])
    for part in ("model.hidden = 8", *parts):
        assert part in sentence
    assert "nonsmooth" not in sentence and sentence.count("\n") == 0


@pytest.mark.parametrize(
    "algorithm",
    [
        "{name: mbsgd}",
        "{name: mbsgd, batch: 5}",
        "{name: one-pass-mbsgd}",
        "{name: localized-mbsgd, rounds: 5, lam: 0.1}",
        "{name: scaffold}",
        "{name: fedprox}",
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
        ("# nothing\n", ["the file is empty"]),
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


@pytest.mark.parametrize(
    "overrides, parts",
    [
        (["privacy.noise_multiplier=3", "algorithm.name=mbsgd"], ["both given: mbsgd needs one of them"]),
        (
            ["privacy.noise_multiplier=3", "privacy.epsilon=null", "algorithm.name=localized-accelerated"],
            ["localized-accelerated takes numbers of its schedule from privacy.epsilon", "fedavg, fedprox, fedsgd"],
        ),
        (
            ["privacy.noise_multiplier=3", "privacy.epsilon=null", "algorithm={name: mbsgd, batch: theory}"],
            ["not with numbers that are left to a theorem"],
        ),
        (["privacy.noise_multiplier=3", "privacy.epsilon=null", "privacy.trust=none"], ["no meaning with"]),
        (["privacy.noise_multiplier=0", "privacy.epsilon=null", "algorithm.name=mbsgd"], ["privacy.noise_multiplier"]),
    ],
)
def test_noise_that_is_given_goes_with_methods_whose_steps_are_given(file, overrides, parts):
    sentence = refusal(load_experiment, file, overrides)
    for part in parts:
        assert part in sentence


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


def test_the_order_of_overrides_drops_none(file):
    one = ["algorithm.name=mbsgd", "algorithm.step=3"]
    other = ["model.loss.width=2", "model.loss.name=huber", "model.clip=1"]
    expected = load_experiment(file, [*one, *sorted(other)])
    assert (expected.algorithm.step, expected.model.loss.width) == (3, 2)
    assert load_experiment(file, [*one[::-1], *other]) == expected
    assert load_experiment(file, ["algorithm.step=3", "algorithm={name: mbsgd}", *other]) == expected


SHUFFLED = ["privacy.trust=shuffler", "privacy.ledger=sqlite", "algorithm={name: mbsgd, rounds: 5}"]


@pytest.mark.parametrize(
    "overrides, parts",
    [
        (["algorithm={name: scaffold, rounds: 5}"], ["'scaffold' sends silos arrays of their own", "minibatch SGD"]),
        (["algorithm={name: fedavg, rounds: 5}"], ["'fedavg' asks silos several times in a round"]),
        (["algorithm={name: mbsgd, batch: 3}"], ["full batches only", "algorithm.batch = 3"]),
        (["participation.weights=records"], ["participation.weights = equal"]),
        (["evaluation={}"], ["no evaluation of held-out records"]),
        (["privacy.whole_silo={epsilon: 9, delta: 1e-3}"], ["privacy.whole_silo", "leave one out"]),
        (["data.pca={constants: released, epsilon: 1}"], ["data.pca.constants = released", "public constants"]),
        (["shuffler.minimum=1"], ["shuffler.minimum = 1", "greater than or equal to 2"]),
        (["shuffler.deadline=0"], ["shuffler.deadline = 0", "greater than 0"]),
        (["shuffler.address=host"], ["shuffler.address = 'host'"]),
        (["shuffler.secret=file"], ["shuffler: secret = '", "/file' is for", "address is null"]),
        (["shuffler.port=1"], ["shuffler.port", "minimum"]),
    ],
)
def test_what_a_shuffler_does_not_hide_is_refused(file, overrides, parts):
    sentence = refusal(load_experiment, file, [*SHUFFLED, *overrides])
    assert sentence.count("\n") == 0
    for part in parts:
        assert part in sentence


@pytest.mark.parametrize("name", ["diff2", "diff2-bvr"])
def test_a_shuffler_does_not_go_with_rounds_of_several_kinds(file, name):
    assert "privacy.trust = shuffler" in refusal(load_experiment, file, [*SHUFFLED[:2], f"algorithm.name={name}"])


@pytest.mark.parametrize(
    "name", [name for name, kind in sorted(ALGORITHMS.items()) if not kind.several_answers and len(kind.asks) == 1]
)
def test_a_shuffler_goes_with_methods_of_one_answer_a_round(file, name):
    config = load_experiment(file, [*SHUFFLED[:2], f"algorithm.name={name}", "shuffler.minimum=9"])
    assert config.shuffler is not None and config.shuffler.minimum == 9
    # Without the section there are its defaults, so that ids of the two are one.
    assert load_experiment(file, [*SHUFFLED[:2], f"algorithm.name={name}"]).shuffler.minimum is None
