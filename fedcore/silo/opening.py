"""The spec of a site (files, ledgers, settings of its silos), and the opening of the site from it."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import TypeAdapter
from threadpoolctl import threadpool_limits

from fedcore.data.persons import MOST_PLACES
from fedcore.data.silo_file import SiloSource, open_records
from fedcore.errors import InputError, SiloError
from fedcore.home import LedgerFolders
from fedcore.ledger.ledger import Ledger
from fedcore.ledger.memory import MemoryLedger
from fedcore.ledger.sqlite import SqliteLedger
from fedcore.limits import LARGEST_SPEC
from fedcore.noise_cache import NoiseFolder
from fedcore.planning.plan_config import CapConfig
from fedcore.planning.problem import LONGEST_NAME
from fedcore.process.open_files import make_room
from fedcore.shuffling.forms import Carrier
from fedcore.silo.durable_ledger import OPEN_FILES, durable_ledger
from fedcore.silo.keys import Keys, SecretKeys, SeededKeys
from fedcore.silo.policies.decisions import Decisions
from fedcore.silo.policies.policy_file import policy_of
from fedcore.silo.policies.policy_in_force import Clock, utc_now
from fedcore.silo.private_silo import PrivateSilo
from fedcore.silo.site import Site


@dataclass(frozen=True)
class SiteSpec:
    """Plain data from which a worker opens its site; no record. Paths are at the worker.

    The spec holds no permission of the silos' operator. The worker's own environment locates the policies, and the
    register of accounts by which `ledgers` is checked.
    """

    sources: tuple[SiloSource, ...]
    seed: int
    ledger: Literal["memory", "sqlite"]
    ledgers: LedgerFolders
    log: Path | None = None
    cap: CapConfig | None = None
    guarded: bool = False
    repetition: int = 0

    def to_bytes(self) -> bytes:
        """The form on the wire: JSON of the declared fields."""
        return bytes(_SPEC.dump_json(self))

    @classmethod
    def from_bytes(cls, data: bytes) -> SiteSpec:
        """The spec that `to_bytes` wrote. Raises InputError for other bytes, and for names that lead elsewhere."""
        if type(data) is bytes and len(data) > LARGEST_SPEC:
            raise InputError(f"a site's spec is at most {LARGEST_SPEC} bytes, and this has {len(data)}")
        try:
            spec = _SPEC.validate_json(data) if type(data) is bytes else None
        except ValueError:
            spec = None
        if spec is None or spec.to_bytes() != data or not spec.sources:
            raise InputError("this is no site's spec: it has other fields, or another form")
        for name in (name for source in spec.sources for name in (source.name, source.version)):
            of_a_file = name not in (".", "..") and not set("/\\") & set(name) and name.isprintable()
            if not of_a_file or not 0 < len(name) <= LONGEST_NAME:
                raise InputError(f"{name!r} names a silo or a data set version, and is no name of a file")
        for source in spec.sources:
            named = source.person is None or (0 < len(source.person) <= LONGEST_NAME and source.person.isprintable())
            if not named or not 0 < source.person_rows <= MOST_PLACES:
                raise InputError(f"a silo's persons have a column's name and 1 to {MOST_PLACES} rows each that count")
            names = [column.name for column in source.schema or ()]
            if len(set(names)) != len(names):
                raise InputError("a silo's schema has a column twice")
            if source.whitening is not None and not source.whitening.fits(source.schema or ()):
                raise InputError("a silo's records are whitened by columns that its schema has as numbers, all of them")
        if any("\0" in str(path) for path in (*spec.ledgers, spec.log)):
            raise InputError("this is no site's spec: a folder's name holds a null character")
        return spec


_SPEC = TypeAdapter(SiteSpec)


def open_site(spec: SiteSpec, clock: Clock = utc_now, carrier: Carrier | None = None, keys: Keys | None = None) -> Site:
    """Opens the silos of `spec` in this process, where their files and policies are. Raises SiloError.

    `clock`: by which policies expire. `carrier`: takes envelopes to shufflers; without it the site refuses shuffled
    runs. `keys`: of silos that are not guarded, in place of seeded ones.

    Limits this process to one BLAS thread: the number of threads changes the last bits of a sum, which key the noise.
    """
    threadpool_limits(limits=1, user_api="blas")
    _make_room(spec)
    silos = []
    with ExitStack() as opened:  # if one silo cannot be opened, the locks of those before it are released
        for source in spec.sources:
            policy = policy_of(source.name, spec.guarded)
            if spec.guarded and spec.ledger != "sqlite":
                sentence = "it is guarded and needs privacy.ledger = sqlite: one in memory forgets what was spent"
                raise SiloError(source.name, "ledger", sentence)
            origin = "public" if source.constants is None else source.constants.origin
            if spec.guarded and (source.unprotected or origin not in ("public", "released")):
                sentence = "it prepares its records with public or released constants only"
                raise SiloError(source.name, "constants", sentence)
            ledger: Ledger
            own_clock = clock
            if spec.ledger == "sqlite":
                ledger, own_clock = durable_ledger(source, spec.ledgers, spec.guarded, policy, clock)
            else:
                ledger = MemoryLedger(source.name)
            opened.callback(ledger.close)
            records = open_records(source)
            own = (
                SecretKeys(_secret(source.name, ledger))
                if spec.guarded
                else keys or SeededKeys(spec.seed, spec.repetition)
            )
            cap = None if spec.cap is None else spec.cap.of(records.n)
            decisions = None if policy is None else Decisions.of(source.name)
            silos.append(
                PrivateSilo(source.name, records, own, ledger, cap, spec.guarded, policy, own_clock, decisions)
            )
        site = Site(silos, spec.log, NoiseFolder.current(), carrier)
        opened.pop_all()
    return site


def _secret(silo: str, ledger: Ledger) -> bytes:
    if isinstance(ledger, SqliteLedger):
        return ledger.secret
    raise SiloError(silo, "ledger", "it is guarded, and its ledger has no secret")


def _make_room(spec: SiteSpec) -> None:
    """Raises this process's limit of open files to hold all ledgers. Raises SiloError if the hard limit is lower."""
    if spec.ledger != "sqlite" or (short := make_room(len(spec.sources) * OPEN_FILES)) is None:
        return
    first, (needed, limit) = spec.sources[0].name, short
    raise SiloError(
        first,
        "ledger",
        f"it and {len(spec.sources) - 1} other silos with durable ledgers take {needed:,} open files in one process, "
        f"whose limit is {limit:,}; nothing was opened. Raise the limit (`ulimit -Hn`, LimitNOFILE of a service), or "
        "spread the silos over more workers (cluster.workers)",
    )
