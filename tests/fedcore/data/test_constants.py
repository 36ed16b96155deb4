"""Constants of the preparation: the records behind them, their record in files, and refusals by silos."""

import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from fedcore.data.constants.pca import PcaConfig, Projection
from fedcore.data.dataset import facts, prepare, records_of
from fedcore.data.silo_file import CODES, open_records
from fedcore.data.sources.images import DigitsData, MnistData
from fedcore.errors import InputError, SiloError
from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.experiment import Experiment, make_plan
from fedcore.experiment.statistics import make_statistics_plan
from fedcore.experiment.statistics_run import StatisticsRun
from fedcore.federation.rounds import rounds
from fedcore.home import LedgerFolders
from fedcore.models.model_config import ModelConfig
from fedcore.silo.opening import SiteSpec, open_site
from tests.registers import register_all

MODEL = ModelConfig(bias=False, feature_bound=100.0)
PUBLIC = PcaConfig(dimension=5, fraction=0.2)
POOLED = PcaConfig(dimension=5, constants="simulation")


@pytest.fixture
def folder(tmp_path, images):
    return images(tmp_path / "images")


def pixels(path):
    """Raw features (n, pixels) of a Parquet file, without the labels."""
    table = pa.parquet.read_table(path)
    return np.stack([table[name].to_numpy() for name in table.column_names[:-2]], axis=1).astype(float)


def replace_record(path, row):
    """Writes the file again with that row's pixels turned to black."""
    table = pa.parquet.read_table(path)
    for k, name in enumerate(table.column_names[:-2]):
        cells = table[name].to_pylist()
        cells[row] = type(cells[row])(0)
        table = table.set_column(k, name, pa.array(cells, table.schema.field(name).type))
    pa.parquet.write_table(table, path)


def contents(root):
    """Every file that does not hold a random version id."""
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(root.rglob("*"))
        if path.is_file() and path.name != "manifest.json"
    }


def test_silos_test_images_and_images_for_constants_are_disjoint(tmp_path, folder):
    ready = prepare(MnistData(folder=folder, pca=PUBLIC), MODEL, 0, tmp_path / "silos")
    place = tmp_path / "silos" / ready.name
    parts = {source.name: pixels(source.path) for source in ready.sources}
    parts |= {name: pixels(place / "public" / f"{name}.parquet") for name in ("test", "constants")}
    rows = [row.tobytes() for part in parts.values() for row in part]  # the first two pixels number an image
    assert len(set(rows)) == len(rows) == 120
    assert (len(parts["test"]), len(parts["constants"])) == (24, 24)
    number = [int(row[0]) for name, part in parts.items() if name.startswith("o") for row in part]
    digits = {name: {int(row[0]) % 10 for row in part} for name, part in parts.items() if name.startswith("o")}
    assert len(number) == 72 and digits["o3e6"] == {3, 6}
    records = open_records(ready.sources[7])  # labels: odd as +1
    assert [y > 0 for y in records.y] == [row[0] % 2 == 1 for row in parts[ready.sources[7].name]]


@pytest.mark.parametrize("pca", [PUBLIC, POOLED])
def test_prepared_rows_by_an_independent_computation(tmp_path, folder, pca):
    ready = prepare(MnistData(folder=folder, pca=pca), MODEL, 0, tmp_path / "silos")
    raw = {source.name: pixels(source.path) / 255 for source in ready.sources}
    public = tmp_path / "silos" / ready.name / "public"
    fitted = pixels(public / "constants.parquet") / 255 if pca is PUBLIC else np.concatenate(list(raw.values()))
    mean = fitted.mean(axis=0)
    _, values, directions = np.linalg.svd(fitted - mean, full_matrices=False)
    directions = directions[:5] * np.array([[np.sign(row[np.abs(row).argmax()])] for row in directions[:5]])
    scale = np.sqrt((values[:5] ** 2).sum() / len(fitted))
    for source in ready.sources:
        expected = (raw[source.name] - mean) @ directions.T / scale
        np.testing.assert_allclose(open_records(source).X, expected, atol=1e-9)
    np.testing.assert_allclose(
        ready.test.X, (pixels(public / "test.parquet") / 255 - mean) @ directions.T / scale, atol=1e-9
    )
    assert ready.dim == 5 and facts(MnistData(folder=folder, pca=pca), MODEL, 0)[1] == 5


@pytest.mark.parametrize("pca", [None, PUBLIC, POOLED])
def test_same_seed_same_files(tmp_path, folder, images, pca):
    elsewhere = images(tmp_path / "elsewhere", zipped=True)
    found = []
    for root, place, seed in (("a", folder, 1), ("b", elsewhere, 1), ("c", folder, 2)):
        ready = prepare(MnistData(folder=place, pca=pca), MODEL, seed, tmp_path / root)
        found.append((ready, contents(tmp_path / root)))
    (first, files), (again, same), (other, others) = found
    assert files == same and first.name == again.name != other.name
    assert len(files) == 27 + (0 if pca is None else 2 + (pca is PUBLIC))
    shared = set(files.values()) & {digest for name, digest in others.items() if name.endswith(".parquet")}
    assert len(shared) < 5  # silos of two or three images may happen to get the same ones
    assert files[f"{first.name}/public/test.parquet"] != others[f"{other.name}/public/test.parquet"]


def test_other_images_are_another_data_set(tmp_path, folder, images):
    bigger = images(tmp_path / "bigger", per_digit=13)
    names = {prepare(MnistData(folder=place), MODEL, 0, tmp_path / "silos").name for place in (folder, bigger)}
    assert len(names) == 2


def test_with_public_constants_a_record_moves_its_own_row_only(tmp_path, folder):
    """With constants from all silos one record moves prepared records of other silos; so such constants are refused."""
    moved = {}
    for pca in (PUBLIC, POOLED):
        root, data = tmp_path / pca.constants, MnistData(folder=folder, pca=pca)
        prepare(data.model_copy(update={"pca": None if pca is POOLED else pca}), MODEL, 0, root)
        (place,) = root.iterdir()
        for made in place.glob("*/pca-*/*"):
            made.unlink()
        for made in place.glob("*/pca-*"):
            made.rmdir()
        before = {source.name: open_records(source).X for source in prepare(data, MODEL, 0, tmp_path / "kept").sources}
        replace_record(place / "o5e2" / "records.parquet", 1)  # before any constant is computed
        after = {source.name: open_records(source).X for source in prepare(data, MODEL, 0, root).sources}
        differ = {name: (before[name] != after[name]).any(axis=1) for name in before}
        moved[pca.constants] = {(name, int(row)) for name in differ for row in np.flatnonzero(differ[name])}
    assert moved["public"] == {("o5e2", 1)}
    assert len(moved["simulation"]) == 96


def test_constants_are_computed_once(tmp_path, folder, monkeypatch):
    data = MnistData(folder=folder, pca=PUBLIC)
    first = prepare(data, MODEL, 0, tmp_path / "silos")
    monkeypatch.setattr(Projection, "fit", None)
    again = prepare(data, MODEL, 0, tmp_path / "silos")
    assert again.projection.digest == first.projection.digest
    assert again.sources == first.sources


def test_a_silo_s_account_goes_on_when_its_records_are_prepared_in_another_way(tmp_path, folder):
    def versions(pca):
        sources = prepare(MnistData(folder=folder, pca=pca), MODEL, 0, tmp_path / "silos").sources
        return [source.version for source in sources]

    assert versions(POOLED) == versions(None) == versions(POOLED.model_copy(update={"dimension": 3}))
    assert versions(PUBLIC) == versions(PUBLIC.model_copy(update={"dimension": 3})) != versions(None)
    keys = [records_of(DigitsData(pca=pca)) for pca in (None, POOLED, PUBLIC, PcaConfig(dimension=9, fraction=0.2))]
    assert keys[0] == keys[1] != keys[2] == keys[3]


@pytest.mark.parametrize("damage", [lambda path: path.unlink(), lambda path: path.write_bytes(path.read_bytes()[:-8])])
def test_damaged_constants_are_told(tmp_path, folder, damage):
    data = MnistData(folder=folder, pca=PUBLIC)
    ready = prepare(data, MODEL, 0, tmp_path / "silos")
    damage(Path(ready.sources[0].constants.path))
    with pytest.raises(InputError, match=r"public/pca-5: projection\.bin is missing or damaged; move the folder away"):
        prepare(data, MODEL, 0, tmp_path / "silos")
    with pytest.raises(SiloError, match=r"constants of its preparation in .*projection\.bin") as caught:
        open_records(ready.sources[0])
    assert caught.value.code == "constants" and "constants" in CODES


def test_a_silo_takes_no_other_constants_than_those_that_were_agreed(tmp_path, folder):
    ready = prepare(MnistData(folder=folder, pca=PUBLIC), MODEL, 0, tmp_path / "silos")
    other = prepare(MnistData(folder=folder, pca=POOLED), MODEL, 0, tmp_path / "silos")
    constants = replace(ready.sources[0].constants, path=other.sources[0].constants.path)
    with pytest.raises(SiloError, match="missing or damaged"):
        open_records(replace(ready.sources[0], constants=constants))


@pytest.mark.usefixtures("policies")
@pytest.mark.parametrize(("pca", "refused"), [(POOLED, True), (PUBLIC, False)])
def test_a_guarded_site_takes_public_constants_only(tmp_path, folder, pca, refused):
    """The site checks the constants that it receives, whatever the driver's config has."""
    sources = prepare(MnistData(folder=folder, pca=pca), MODEL, 0, tmp_path / "silos").sources
    spec = SiteSpec(sources[:2], 0, "sqlite", LedgerFolders.below(tmp_path), guarded=True)
    if not refused:
        register_all(sources[:2], LedgerFolders.below(tmp_path))
        open_site(spec).close()
        return
    with pytest.raises(SiloError, match="prepares its records with public or released constants only"):
        open_site(spec)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"pca": PcaConfig(dimension=17, fraction=0.3)}, r"data\.pca\.dimension = 17 is more than the 16 pixels"),
        ({"pca": PcaConfig(dimension=12)}, r"data\.pca\.dimension = 12, but data\.pca\.fraction = 0\.1 sets aside 12 "),
        ({"per_digit": 13}, r"data\.per_digit = 13, but there are 12 images of digit 0"),
        ({"test_fraction": 0.5, "pca": PcaConfig(fraction=0.3)}, r"data\.pca\.fraction = 0\.3 and data\.test_fraction"),
        ({"folder": "/nowhere"}, r"data\.folder = /nowhere: mnist needs train-images-idx3-ubyte, "),
    ],
)
def test_planning_refuses_what_running_would(tmp_path, folder, changes, words):
    data = MnistData(**{"folder": folder, **changes})
    for call in (lambda: facts(data, MODEL, 0), lambda: prepare(data, MODEL, 0, tmp_path / "silos")):
        with pytest.raises(InputError, match=words):
            call()
    assert not (tmp_path / "silos").exists()


def test_an_experiment_on_principal_components_of_images(tmp_path, folder):
    config = ExperimentConfig.model_validate(
        {
            "data": {"source": "mnist", "folder": folder, "pca": {"dimension": 5, "fraction": 0.2}},
            "privacy": {"epsilon": 1.0, "delta": 1e-3},
            "algorithm": {"name": "mbsgd", "rounds": 2},
        }
    )
    experiment = Experiment.prepare(config, tmp_path / "silos")
    assert experiment.plan.problem.objective.dim == 6 and len(experiment.plan.problem.silos) == 25


def released(folder, **pca):
    return ExperimentConfig.model_validate(
        {
            "data": {"source": "mnist", "folder": folder, "pca": {"dimension": 5, "constants": "released", **pca}},
            "privacy": {"trust": "none"},
            "algorithm": {"name": "mbsgd", "rounds": 2},
        }
    )


def moments_of(made, root):
    """Released in a plain loop, without any engine."""
    run = StatisticsRun.prepare(made, root)
    backend = run.in_process(LedgerFolders.below(root))
    backend.open()
    ((_, _, state),) = rounds(run.context, run.method.init(run.start()), backend.ask)
    backend.close()
    return run, run.method.output(state)


def test_released_constants_in_a_plain_loop(tmp_path, folder):
    """Grey values are divided by 255 and images cut to half of the root of 16 pixels; trained images are not cut."""
    made, root = released(folder), tmp_path / "silos"
    run, moments = moments_of(made, root)
    raw = np.vstack([pixels(source.path) / 255 for source in run.dataset.sources])
    cut = raw * np.minimum(1, 2 / np.linalg.norm(raw, axis=1))[:, None]
    assert 0 < (cut != raw).any(axis=1).sum() < len(raw)
    values, directions = np.linalg.eigh(np.cov(cut.T, bias=True))
    constants, projection = run.constants(root, moments)
    np.testing.assert_allclose(projection.mean, cut.mean(axis=0), atol=1e-13)
    np.testing.assert_allclose(np.abs(projection.components @ directions[:, ::-1][:, :5]), np.eye(5), atol=1e-6)
    assert projection.divide_by == pytest.approx(np.sqrt(values[::-1][:5].sum()), rel=1e-10)
    assert run.constants(root, moments)[0] == constants
    experiment = Experiment.prepare(made, root, (constants, projection))
    assert experiment.plan.problem.objective.dim == 6 and experiment.statistics.digest == run.plan.digest
    assert experiment.dataset.sources[0].version == run.dataset.sources[0].version  # one account at each silo
    mine = pixels(experiment.dataset.sources[3].path) / 255
    rows = (mine - projection.mean) @ projection.components.T / projection.divide_by
    rows = np.hstack([rows, np.ones((len(mine), 1))])
    rows *= np.minimum(1, 1 / np.linalg.norm(rows, axis=1))[:, None]
    np.testing.assert_allclose(open_records(experiment.dataset.sources[3]).X, rows, atol=1e-12)


def test_a_smaller_bound_cuts_more_and_another_dimension_asks_for_nothing_new(tmp_path, folder):
    run, moments = moments_of(released(folder, bound=0.5), tmp_path / "silos")
    raw = np.vstack([pixels(source.path) / 255 for source in run.dataset.sources])
    cut = raw * np.minimum(1, 0.5 / np.linalg.norm(raw, axis=1))[:, None]
    for dimension in (2, 7):
        other = StatisticsRun.prepare(released(folder, bound=0.5, dimension=dimension), tmp_path / "silos")
        assert other.run == run.run
        constants, projection = other.constants(tmp_path / "silos", moments)
        np.testing.assert_allclose(projection.mean, cut.mean(axis=0), atol=1e-13)
        assert (constants.dim, projection.dim) == (dimension, dimension)


def test_images_of_too_many_pixels_are_refused_before_anything_is_asked(tmp_path, images):
    made = released(images(tmp_path / "large", per_digit=10, side=45))
    for call in (lambda: make_statistics_plan(made), lambda: StatisticsRun.prepare(made, tmp_path / "silos")):
        with pytest.raises(InputError, match="records of 2025 features have moments of 2053350 numbers; at most 2000"):
            call()
    assert make_plan(made) is not None and not (tmp_path / "silos").exists()
    with pytest.raises(InputError, match="there are no statistics to ask for"):
        StatisticsRun.prepare(made.model_copy(update={"data": DigitsData()}), tmp_path / "silos")
