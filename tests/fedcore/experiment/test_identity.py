"""The identity of a run depends on every key that decides its result, and on no other."""

import json

from fedcore.data.constants.pca import PcaConfig
from fedcore.data.constants.scaling import PublicScaling, ReleasedScaling
from fedcore.data.sources.alpha_beta import AlphaBetaData
from fedcore.data.sources.hospitals import HospitalsData
from fedcore.data.sources.images import MnistData
from fedcore.data.sources.libsvm import LibsvmData
from fedcore.data.sources.regression import RegressionData
from fedcore.data.sources.similarity import SimilarityConfig
from fedcore.data.sources.tables.split import TablesData
from fedcore.data.sources.teacher import TeacherData
from fedcore.data.tabular import FilesData
from fedcore.experiment.identity import SCHEMA, canonical, code_version, run_id
from fedcore.experiment.loading import load_experiment
from fedcore.planning.plan_config import EvaluationConfig, ShufflerConfig


def leaves(values, path=()):
    for key, value in values.items():
        if isinstance(value, dict):
            yield from leaves(value, (*path, key))
        else:
            yield ".".join((*path, key))


RESULT = {
    "name=other",
    "seed=1",
    "repetition=1",
    "data.test_fraction=0.3",
    "data.homogeneity=0.5",
    "data.source=synthetic",
    "data.pca={}",
    "data.pca.dimension=20",
    "data.pca.constants=simulation",
    "data.pca.fraction=0.2",
    "model.loss.name=huber",
    "model.bias=false",
    "model.feature_bound=2",
    "model.clip=0.5",
    "model.diameter=5",
    "model.ridge=0.01",
    "model.normalise=features",
    "privacy.epsilon=2",
    "privacy.delta=1e-6",
    "privacy.calibration=paper",
    "privacy.ledger=sqlite",
    "algorithm.name=mbsgd",
    "algorithm.step=1",
    "algorithm.rounds=4",
    "algorithm.lam=null",
    "algorithm.exponent=2",
    "algorithm.max_phases=2",
    "algorithm.average=last",
    "algorithm.schedule=manual",
    "algorithm.batch=5",
    "participation.silos_per_round=3",
    "participation.silos_per_round=[3]",
    "participation.silos_per_round=[3, 3, 1]",
    "participation.silos_per_round={binomial: 0.5}",
    "participation.weights=records",
}
EXECUTION = {
    "cluster.backend=in-process",
    "cluster.workers=7",
    "cluster.address=tcp://a:1",
    "cluster.deadline=5",
    "cluster.insecure=true",
    "orchestration.tasks=phase",
    "orchestration.checkpoint=behind",
    "orchestration.scheduled=repetition",
    "tracking.mlflow=false",
    "tracking.evaluate_every=9",
    "tracking.evaluate_from=0.5",
    "tracking.simulation_metrics=false",
    "tracking.register_models=none",
    "participation.deadline=9",
    "participation.minimum=1",
}


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
        nonsmooth = ["algorithm.name=mb-subgradient", "model.loss.name=hinge", f"model.smoothing={smoothing}"]
        ids[f"model.smoothing={smoothing}"] = run_id(load_experiment(file, nonsmooth))
    softmax = "model.loss.name=softmax"
    ids[softmax] = run_id(load_experiment(file, [softmax]))
    network = [softmax, "model.clip=1", "algorithm.lam=0.1"]
    for hidden in ("null", "8", "9"):
        ids[f"model.hidden={hidden}"] = run_id(load_experiment(file, [*network, f"model.hidden={hidden}"]))
    for more in ("activation=softplus", "start=literal"):
        ids[f"model.{more}"] = run_id(load_experiment(file, [*network, "model.hidden=8", f"model.{more}"]))
    ids["data.labels=digit"] = run_id(load_experiment(file, [softmax, "data.labels=digit"]))
    alike = [softmax, "data.labels=digit", "data.split=similarity"]
    ids["data.split=similarity"] = run_id(load_experiment(file, alike))
    for key, value in {"silos": "7", "records": "40", "gamma": "0", "rest": "sorted-blocks"}.items():
        ids[f"data.similarity.{key}="] = run_id(load_experiment(file, [*alike, f"data.similarity.{key}={value}"]))
    for more in ("epsilon: 8, delta: 1e-3", "epsilon: 9, delta: 1e-3", "epsilon: 8, delta: 1e-4"):
        ids[f"privacy.whole_silo={more}"] = run_id(load_experiment(file, [f"privacy.whole_silo={{{more}}}"]))
    for more in ("every=end", "epsilon=0.3", "every=phase", "fraction=0.3", "bins=2"):
        ids[f"evaluation.{more}"] = run_id(load_experiment(file, [f"evaluation.{more}"]))
    for smoothness in ("0.1", "0.2", "{constants: released, epsilon: 1}", "{constants: released, epsilon: 2}"):
        known = ["algorithm.name=localized-accelerated", "algorithm.rounds=3", f"algorithm.smoothness={smoothness}"]
        ids[f"algorithm.smoothness={smoothness}"] = run_id(load_experiment(file, known))
    assert run_id(load_experiment(file, [*known[:2], "algorithm.smoothness=worst-case"])) == run_id(
        load_experiment(file, known[:2])
    )
    shuffled = ["privacy.trust=shuffler", "privacy.ledger=sqlite", "algorithm.name=mbsgd"]
    ids["shuffler.minimum"] = run_id(load_experiment(file, [*shuffled, "shuffler.minimum=9"]))
    ids["shuffler"] = run_id(load_experiment(file, shuffled))
    for same in (
        "shuffler={}",
        "shuffler.deadline=9",
        "shuffler.address=host:7",
        "shuffler.minimum=null",
        "shuffler={address: 'host:7', secret: a}",
        "shuffler={address: 'host:7', secret: b}",
    ):
        assert run_id(load_experiment(file, [*shuffled, same])) == ids["shuffler"]
    assert len({run_id(base), *ids.values()}) == len(ids) + 1
    for same in ("null", "{}", "{silos: 20, gamma: 0.1}"):
        assert run_id(load_experiment(file, [*alike, f"data.similarity={same}"])) == ids["data.split=similarity"]
    # A value that is written out though it is the default's is the same parameter.
    assert run_id(load_experiment(file, ["algorithm.batch=null"])) == run_id(base)
    exact = [*nonsmooth[:2], "model.smoothing={name: convolution, estimate: exact}"]
    assert run_id(load_experiment(file, exact)) == ids["model.smoothing={name: convolution}"]
    unused = [run_id(load_experiment(file, [override])) for override in EXECUTION]
    assert set(unused) == {run_id(base)}
    keys = "cluster={address: 'tls://a:1', tls: {ca: a, certificate: b, key: c}}"
    assert run_id(load_experiment(file, [keys])) == run_id(base)
    durable = "privacy.ledger=sqlite"
    capped = load_experiment(file, [durable, "privacy.cap={epsilon: 3, rule: basic}"])
    assert run_id(capped) == run_id(load_experiment(file, [durable]))
    # No key is forgotten here: whoever adds one decides to which side it belongs.
    covered = {override.partition("=")[0] for override in (*RESULT, *EXECUTION, *ids, "privacy.cap=")}
    sections = {f"data.pca.{key}" for key in PcaConfig.model_fields} | {"algorithm.smoothness"}
    sections |= {f"evaluation.{key}" for key in EvaluationConfig.model_fields}
    sections |= {f"shuffler.{key}" for key in ShufflerConfig.model_fields}
    covered |= {"shuffler.deadline", "shuffler.address", "shuffler.secret", "cluster.tls"}
    covered |= {"participation.absent"}  # of a federation alone: tests/fedcore/data/federations
    sections |= {f"data.similarity.{key}" for key in SimilarityConfig.model_fields}
    assert covered | {"data.similarity", "evaluation"} == set(leaves(base.model_dump(mode="json"))) | sections


def test_every_key_of_a_folder_of_images_makes_the_identity(file):
    start = ["data.source=mnist", "data.folder=a"]
    changes = {
        "folder": "b",
        "flavour": "emnist-mnist",
        "per_digit": "9",
        "test_fraction": "0.3",
        "pca": "{dimension: 3}",
        "labels": "digit",
        "homogeneity": "1",
    }
    start.append("model.loss.name=softmax")
    alike = [*start, "data.labels=digit", "data.split=similarity"]
    ids = {run_id(load_experiment(file, [*start, f"data.{key}={value}"])) for key, value in changes.items()}
    ids |= {run_id(load_experiment(file, more)) for more in (alike, [*alike, "data.flavour=emnist-balanced"])}
    assert len(ids | {run_id(load_experiment(file, start))}) == len(changes) + 3
    assert changes.keys() | {"source", "split", "similarity"} == MnistData.model_fields.keys()


def test_every_key_of_alpha_beta_data_makes_the_identity(file):
    start = ["data.source=synthetic-alpha-beta", "model.loss.name=softmax"]
    changes = {
        "silos": 3,
        "records": 60,
        "test_fraction": 0.3,
        "features": 7,
        "classes": 4,
        "alpha": 1,
        "beta": 1,
        "flip": 0,
        "standardise": "global",
    }
    ids = {run_id(load_experiment(file, [*start, f"data.{key}={value}"])) for key, value in changes.items()}
    assert len(ids | {run_id(load_experiment(file, start))}) == len(changes) + 1
    assert changes.keys() | {"source"} == AlphaBetaData.model_fields.keys()


def test_every_key_of_hospitals_makes_the_identity(file):
    start = "data={source: hospitals, features: {age: {range: [20, 80]}%s}%s}"
    texts = ["", ""], [", sex: {range: [0, 1]}", ""], ["", ", split: flamby"]
    ids = {run_id(load_experiment(file, [start % tuple(text)])) for text in texts}
    ids.add(run_id(load_experiment(file, [start.replace("80", "81") % ("", "")])))
    assert len(ids) == 4 and HospitalsData.model_fields.keys() == {"source", "features", "split"}


def test_every_key_of_a_regression_makes_the_identity(file):
    start = ["data.source=regression", "model.loss.name=squared", "model.clip=1"]
    changes = {
        "table": ["data.table=insurance", "data.folder=a"],
        "folder": ["data.table=insurance", "data.folder=b"],
        "silos": ["data.silos=3"],
        "test_fraction": ["data.test_fraction=0.3"],
    }
    ids = {run_id(load_experiment(file, [*start, *more])) for more in changes.values()}
    assert len(ids | {run_id(load_experiment(file, start))}) == len(changes) + 1
    assert changes.keys() | {"source"} == RegressionData.model_fields.keys()


def test_every_key_of_tables_makes_the_identity(file):
    start = ["data.source=tables", "model.loss.name=squared", "model.clip=1"]
    changes = {
        "table": ["data.table=california", "data.folder=a"],
        "folder": ["data.table=california", "data.folder=b"],
        "silos": ["data.silos=3"],
        "test_fraction": ["data.test_fraction=0.3"],
    }
    ids = {run_id(load_experiment(file, [*start, *more])) for more in changes.values()}
    assert len(ids | {run_id(load_experiment(file, start))}) == len(changes) + 1
    assert changes.keys() | {"source"} == TablesData.model_fields.keys()


def test_every_key_of_a_libsvm_file_makes_the_identity(file):
    start = ["data.source=libsvm", "data.path=a", "data.features=9"]
    changes = {"path": "b", "features": 8, "classes": [0, 1], "records": 90, "silos": 3, "test_fraction": 0.3}
    ids = {run_id(load_experiment(file, [*start, f"data.{key}={value}"])) for key, value in changes.items()}
    assert len(ids | {run_id(load_experiment(file, start))}) == len(changes) + 1
    assert changes.keys() | {"source"} == LibsvmData.model_fields.keys()


def test_every_key_of_a_teacher_makes_the_identity(file):
    start = ["data.source=teacher", "model.loss.name=squared", "model.clip=1"]
    changes = {
        "silos": 3,
        "records": 50,
        "features": 4,
        "hidden": 5,
        "noise": 0.2,
        "heterogeneity": 1,
        "test_records": 100,
    }
    ids = {run_id(load_experiment(file, [*start, f"data.{key}={value}"])) for key, value in changes.items()}
    assert len(ids | {run_id(load_experiment(file, start))}) == len(changes) + 1
    assert changes.keys() | {"source"} == TeacherData.model_fields.keys()


def test_every_key_of_files_makes_the_identity(file):
    start = ["data.source=files", "data.silos=[{name: n, path: n.csv}]", "data.features=[a]", "data.label=y"]
    real = ["data.classes=null", "model.loss.name=huber"]
    changes = {
        "silos": ["data.silos=[{name: n, path: m.csv}]"],
        "features": ["data.features=[b]"],
        "label": ["data.label=z"],
        "classes": ["data.classes=[1, 2]"],
        "test": ["data.test=t.csv"],
        "divide_by": ["data.divide_by=2"],
        "label_range": [*real, "data.label_range=[0, 9]"],
        "scaling": ["data.features={a: {range: [0, 9]}}", "data.scaling={path: p.csv}"],
        "person": ["data.person=p"],
        "person_rows": ["data.person=p", "data.person_rows=3"],
    }
    scaled = {
        "path": "{path: q.csv}",
        "limit": "{path: p.csv, limit: 2}",
        "constants": "{constants: released, epsilon: 1}",
        "epsilon": "{constants: released, epsilon: 2}",
        "limit of released": "{constants: released, epsilon: 1, limit: 2}",
        "whiten": "{path: p.csv, whiten: true}",
        "whiten of released": "{constants: released, epsilon: 1, whiten: true}",
    }
    more = {"limit of released", "whiten of released"}
    assert {*PublicScaling.model_fields, *ReleasedScaling.model_fields} == scaled.keys() - more
    two = "data.features={a: {range: [0, 9]}, b: {range: [0, 9]}}"
    changes_of_scaling = [[two, f"data.scaling={text}"] for text in scaled.values()]
    ids = {key: run_id(load_experiment(file, [*start, *more])) for key, more in changes.items()}
    ids |= {str(more): run_id(load_experiment(file, [*start, *more])) for more in changes_of_scaling}
    ids["real"] = run_id(load_experiment(file, [*start, *real]))
    ids["schema"] = run_id(load_experiment(file, [*start, "data.features={a: {range: [0, 9]}}"]))
    assert len({run_id(load_experiment(file, start)), *ids.values()}) == len(ids) + 1
    assert changes.keys() | {"source"} == FilesData.model_fields.keys()


def test_canonical_form_is_sorted_json_without_execution(file):
    values = json.loads(canonical(load_experiment(file)))
    assert list(values) == sorted(values)
    assert not {"cluster", "orchestration", "tracking"} & values.keys() and values["schema"] == SCHEMA
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
