"""Holders of sites in a worker's process, and the closing of their sites. Holders are plain objects: no Dask here."""

from __future__ import annotations

import dataclasses
import gc
import os
import sys

import pytest

from fedcore.errors import InputError, SiloError
from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.experiment import Experiment
from fedcore.home import LedgerFolders
from fedcore.ledger.sqlite import SqliteLedger
from fedcore.messages import Releases
from fedcore.silo.opening import SiteSpec
from tasks.workers.holder import Holder


@pytest.fixture
def made(tmp_path) -> Experiment:
    config = ExperimentConfig.model_validate(
        {
            "data": {"source": "synthetic", "silos": 2, "records": 30, "features": 3, "test_records": 5},
            "privacy": {"epsilon": 3, "ledger": "sqlite"},
            "algorithm": {"name": "mbsgd", "rounds": 4},
        }
    )
    return Experiment.prepare(config, tmp_path / "silos")


@pytest.fixture
def spec(made, tmp_path) -> SiteSpec:
    names = [silo.name for silo in made.plan.problem.silos]
    return made.site_spec(names, LedgerFolders.below(tmp_path), tmp_path / "log")


def reopen(spec: SiteSpec) -> None:
    """Raises SiloError if another process or holder has a ledger of the site open."""
    for source in spec.sources:
        SqliteLedger(source.name, *spec.ledgers.of(source.version, source.name)).close()


def answer(holder: Holder, made: Experiment) -> list[tuple[str, bytes]]:
    query = made.context.query(made.config.algorithm.init(made.start()))
    releases = Releases.from_bytes(holder.answer(query.to_bytes()), made.plan.problem.objective.dim)
    return [(release.silo, release.payload.tobytes()) for release in releases]


def test_a_second_holder_of_a_driver_goes_on_with_the_site_and_only_it_can_close_it(made, spec, impatient):
    first = Holder(spec.to_bytes(), "driver")
    first.approve(made.agreement.to_bytes())
    given = answer(first, made)
    second = Holder(spec.to_bytes(), "driver")
    first.close()  # comes late: a call that was on its way when the connection broke
    second.approve(made.agreement.to_bytes())
    assert answer(second, made) == given
    assert [account.computed for account in second.accounts(made.run)] == [1, 1]
    with pytest.raises(SiloError, match="is held by"):
        reopen(spec)
    second.close()
    reopen(spec)
    third = Holder(spec.to_bytes(), "driver")
    third.approve(made.agreement.to_bytes())
    assert answer(third, made) == given
    assert [account.computed for account in third.accounts(made.run)] == [0, 0]
    third.close()


def test_drivers_share_nothing(made, spec):
    in_memory = dataclasses.replace(spec, ledger="memory").to_bytes()
    mine, other = Holder(in_memory, "driver"), Holder(in_memory, "other driver")
    for holder in (mine, other):
        holder.approve(made.agreement.to_bytes())
    answer(mine, made)
    other.close()
    assert [account.releases for account in mine.accounts(made.run)] == [1, 1]
    mine.close()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="open files are counted in /proc")
def test_a_holder_that_is_dropped_leaves_no_lock_and_no_open_file(made, spec):
    """Dask drops the actors of a killed driver without a call of `close`."""
    Holder(spec.to_bytes(), "warm").close()
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    holder = Holder(spec.to_bytes(), "driver")
    holder.approve(made.agreement.to_bytes())
    answer(holder, made)
    assert len(os.listdir("/proc/self/fd")) > before + 4  # per silo a ledger and an anchor at least, and the log
    del holder
    gc.collect()
    reopen(spec)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_site_that_cannot_be_opened_leaves_no_ledger_locked(made, spec):
    gone = dataclasses.replace(spec.sources[1], path=spec.sources[1].path + ".gone")
    with pytest.raises(SiloError) as caught:
        Holder(dataclasses.replace(spec, sources=(spec.sources[0], gone)).to_bytes(), "driver")
    assert caught.value.silo == gone.name
    reopen(spec)  # while the error, and with it all that it passed through, is still there
    holder = Holder(spec.to_bytes(), "driver")
    holder.approve(made.agreement.to_bytes())
    holder.close()


def test_a_spec_is_its_declared_fields_and_nothing_else(spec, tmp_path):
    """Bytes of another form, such as pickles of objects with their own state, open no site."""
    data = spec.to_bytes()
    assert SiteSpec.from_bytes(data) == spec
    name, version = spec.sources[0].name, spec.sources[0].version
    wrong = [
        spec,
        bytearray(data),
        b"",
        b"{}",
        data[:-1],
        data + b" ",
        data.replace(b'"seed":0', b'"seed":0,"more":1'),
        data.replace(b'"guarded":false', b'"guarded":0'),
        data.replace(f'"{name}"'.encode(), b'"../silo"'),
        data.replace(f'"{version}"'.encode(), b'".."'),
        SiteSpec((), *dataclasses.astuple(spec)[1:3], spec.ledgers).to_bytes(),
        *(
            data.replace(f'"{each}"'.encode(), f'"{other}"'.encode())
            for each in (name, version)
            for other in ("", ".", "a/b", "a\\\\b", "/tmp", "a\\u0000", "a\\u0000b", "line\\nbreak", "a" * 201)
        ),
        dataclasses.replace(spec, ledgers=spec.ledgers._replace(anchors=tmp_path / "an\0chor")).to_bytes(),
        dataclasses.replace(spec, log=tmp_path / "lo\0g").to_bytes(),
    ]
    for each in wrong:
        with pytest.raises(InputError):
            Holder(each, "driver")
