"""Writing of silos' files: atomic, and once, by the first of several processes."""

import errno
import json
import os
import threading
import uuid

import numpy as np
import pyarrow.parquet
import pytest

from fedcore.data import layout
from fedcore.data.table import Generated, Table
from fedcore.errors import InputError
from tests.patience import SOON

SILOS = ("a", "b")


def made(seed=0):
    rng = np.random.default_rng(seed)

    def table():
        return Table(rng.standard_normal((4, 2)), rng.integers(0, 2, 4))

    return Generated(("u", "v"), "y", {silo: table() for silo in SILOS}, table())


def files_below(root):
    return sorted(str(path.relative_to(root)) for path in root.rglob("*"))


def test_folders_and_manifests(tmp_path):
    content = made()
    manifests = layout.write_generated(tmp_path, "toy-1", {"seed": 0}, SILOS, lambda: content)
    assert files_below(tmp_path) == sorted(
        ["toy-1", "toy-1/recipe.json", "toy-1/public", "toy-1/public/test.parquet"]
        + [f"toy-1/{silo}{rest}" for silo in SILOS for rest in ("", "/manifest.json", "/records.parquet")]
    )
    assert json.loads((tmp_path / "toy-1/a/manifest.json").read_text()) == manifests["a"]
    assert set(manifests["a"]) == {"silo", "version", "records", "columns", "features", "label"}
    assert manifests["a"]["records"] == 4 and manifests["a"]["features"] == ["u", "v"]
    assert manifests["a"]["version"] != manifests["b"]["version"]
    assert uuid.UUID(manifests["a"]["version"]).version == 4
    table = pyarrow.parquet.read_table(tmp_path / "toy-1/b/records.parquet")
    assert [(f.name, str(f.type)) for f in table.schema] == [("u", "double"), ("v", "double"), ("y", "int64")]
    assert np.stack([table["u"], table["v"]], axis=1).tobytes() == content.silos["b"].features.tobytes()
    assert table["y"].to_pylist() == content.silos["b"].labels.tolist()


def test_footers_tell_nothing_but_sizes(tmp_path):
    layout.write_generated(tmp_path, "toy-1", {}, SILOS, made)
    group = pyarrow.parquet.ParquetFile(tmp_path / "toy-1/a/records.parquet").metadata.row_group(0)
    assert not any(group.column(j).is_stats_set for j in range(group.num_columns))


def test_what_is_there_is_used(tmp_path):
    first = layout.write_generated(tmp_path, "toy-1", {}, SILOS, made)

    def never():
        raise AssertionError("made a second time")

    assert layout.write_generated(tmp_path, "toy-1", {}, SILOS, never) == first


def test_of_two_writers_both_use_the_first_one_s(tmp_path):
    meet = threading.Barrier(4)
    found = []

    def write(seed):
        def make():
            meet.wait(SOON)  # all have seen that nothing is there
            return made(seed)

        found.append(layout.write_generated(tmp_path, "toy-1", {}, SILOS, make))

    threads = [threading.Thread(target=write, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4 and all(manifests == found[0] for manifests in found)
    assert os.listdir(tmp_path) == ["toy-1"]
    tables = [pyarrow.parquet.read_table(tmp_path / f"toy-1/{silo}/records.parquet") for silo in SILOS]
    assert [t["u"].to_pylist() for t in tables] in [
        [made(seed).silos[silo].features[:, 0].tolist() for silo in SILOS] for seed in range(4)
    ]  # both silos by the same writer


@pytest.mark.parametrize("fault", [KeyboardInterrupt(), RuntimeError("bug")])
@pytest.mark.parametrize("call", range(1, 7))
def test_an_interrupted_write_leaves_nothing(tmp_path, monkeypatch, fault, call):
    calls = []
    write = layout._write

    def interrupted(path, data):
        calls.append(path)
        if len(calls) == call:
            path.write_bytes(b"half")
            raise fault
        write(path, data)

    monkeypatch.setattr(layout, "_write", interrupted)
    with pytest.raises(type(fault)):
        layout.write_generated(tmp_path, "toy-1", {}, SILOS, made)
    assert os.listdir(tmp_path) == []
    monkeypatch.undo()
    assert layout.write_generated(tmp_path, "toy-1", {}, SILOS, made)["a"]["records"] == 4


def test_a_killed_writer_s_folder_is_never_seen(tmp_path):
    half = tmp_path / ".toy-1-abc.tmp" / "a"
    half.mkdir(parents=True)
    (half / "manifest.json").write_text("{")
    assert layout.write_generated(tmp_path, "toy-1", {}, SILOS, made)["a"]["records"] == 4


def test_a_full_disk_is_named_and_leaves_nothing(tmp_path, monkeypatch):
    def full(handle):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InputError, match=r"toy-1: cannot be written \(No space left on device\); free some"):
        layout.write_generated(tmp_path, "toy-1", {}, SILOS, made)
    assert os.listdir(tmp_path) == []


def test_a_root_that_is_a_file_is_named(tmp_path):
    (tmp_path / "root").write_text("")
    with pytest.raises(InputError, match=r"root/toy-1: cannot be written \("):
        layout.write_generated(tmp_path / "root", "toy-1", {}, SILOS, made)


@pytest.mark.parametrize("content", [None, "", "{", "[]", "{}", '{"version": "x"}', "\udcff"])
def test_a_damaged_manifest_is_named(tmp_path, content):
    layout.write_generated(tmp_path, "toy-1", {}, SILOS, made)
    manifest = tmp_path / "toy-1/b/manifest.json"
    manifest.unlink()
    if content is not None:
        manifest.write_bytes(content.encode(errors="surrogateescape"))
    with pytest.raises(InputError, match=r"toy-1: b/manifest\.json is missing or damaged; move the folder away"):
        layout.write_generated(tmp_path, "toy-1", {}, SILOS, made)


def test_names_tell_recipes_apart():
    a = layout.dataset_name("toy", {"seed": 1, "d": 2})
    assert a == layout.dataset_name("toy", {"d": 2, "seed": 1}) and a.startswith("toy-")
    assert len({a, layout.dataset_name("toy", {"seed": 2, "d": 2}), layout.dataset_name("toy", {"seed": 1})}) == 3


def test_a_file_keeps_its_version(tmp_path):
    path = tmp_path / "north.csv"
    path.write_text("x,y\n")
    first = layout.register_file(tmp_path / "root", "north", str(path))
    link = tmp_path / "link.csv"
    link.symlink_to(path)
    assert layout.register_file(tmp_path / "root", "north", str(path)) == first
    assert layout.register_file(tmp_path / "root", "north", str(link)) == first
    assert layout.register_file(tmp_path / "root", "north", str(tmp_path / "new.csv")) != first
    assert layout.register_file(tmp_path / "root", "south", str(path)) != first
    manifests = list((tmp_path / "root/files/north").glob("*/manifest.json"))
    assert len(manifests) == 2
    assert {"silo": "north", "version": first, "path": str(path)} in [json.loads(m.read_text()) for m in manifests]


def test_registering_at_once_gives_one_version(tmp_path):
    versions = []

    def register():
        meet.wait(SOON)
        versions.append(layout.register_file(tmp_path, "north", "/data/north.csv"))

    meet = threading.Barrier(8)
    threads = [threading.Thread(target=register) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(versions) == 8 and len(set(versions)) == 1
