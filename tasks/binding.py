"""Binding of a run's checkpoint to the inputs that decide its bits, and the check when the run is resumed."""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from collections.abc import Mapping, Sequence

from fedcore.data.fingerprint import file_digest
from fedcore.data.silo_file import SiloSource
from fedcore.data.tabular import FilesData
from fedcore.errors import InputError
from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.experiment import Experiment
from fedcore.experiment.identity import canonical, code_version, run_id
from fedcore.experiment.stored.binding import changed, environment, versions, ways_on
from tasks.run_store import RunStore

KEY, FILES = "files_key", "files"
"""Meta keys of a checkpoint: a random HMAC key, and the digest of each silo's file under that key."""
_NAMED = 5  # most silos that a message names


def bind(store: RunStore, experiment: Experiment) -> None:
    """Binds a new checkpoint to config, plan, constants, records and versions; checks an older one against them.

    Raises InputError that names the change and the remedies; SiloError for a silo's file that is gone.
    """
    config, known = experiment.config, store.meta()
    now = {
        "config": hashlib.sha256(canonical(config).encode()).hexdigest(),
        "plan": experiment.plan.digest,
        **versions(),
    }
    if experiment.run != run_id(config):
        del now["config"]  # the run ended under a former id, computed from other paths
    if (digest := experiment.dataset.constants) is not None:
        now["constants"] = digest
    if not isinstance(config.data, FilesData):
        now["silos"] = experiment.dataset.name
    found = changed(known, now)
    why = None if found is None else found[1]
    if why is None and _looks_at_files(config):
        if others := other_files(known, experiment.dataset.sources):
            why = f"cannot go on: the file of {named(others)} does not hold the bytes that it held when it was begun"
        elif KEY not in known:
            key = secrets.token_bytes(16)
            digests = {source.name: _keyed(key, source) for source in experiment.dataset.sources}
            now |= {KEY: key.hex(), FILES: json.dumps(digests)}
    if why is not None:
        ways = ways_on(experiment.run, config.repetition, config.privacy.ledger == "sqlite")
        raise InputError(f"run {experiment.run} {why}; {ways}")
    store.set_meta(**now, code=code_version(), environment=known.get("environment") or json.dumps(environment()))


def other_files(meta: Mapping[str, str], sources: Sequence[SiloSource]) -> list[str]:
    """Silos whose files differ from the digests in this checkpoint; a silo without a digest is not compared.

    Raises SiloError for a file that cannot be read.
    """
    key, recorded = bytes.fromhex(meta.get(KEY, "")), json.loads(meta.get(FILES, "{}"))
    return [
        source.name for source in sources if source.name in recorded and _keyed(key, source) != recorded[source.name]
    ]


def named(silos: Sequence[str]) -> str:
    """The silos' names for a message, at most five."""
    more = f" and {len(silos) - _NAMED} more" if len(silos) > _NAMED else ""
    return f"silo{'s' * (len(silos) > 1)} {', '.join(silos[:_NAMED])}{more}"


def other_environment(meta: Mapping[str, str]) -> str | None:
    """Differences between the environment where the run was begun and this one, as text; None if there is none."""
    begun, here = json.loads(meta.get("environment", "{}")), environment()
    differ = [f"{key} {begun[key]}, here {here[key]}" for key in here if begun.get(key, here[key]) != here[key]]
    return "; ".join(differ) or None


def _looks_at_files(config: ExperimentConfig) -> bool:
    """True if the driver compares silos' files; guarded silos' own registers do it, and no driver reads those."""
    return isinstance(config.data, FilesData) and config.privacy.noise != "guarded"


def _keyed(key: bytes, source: SiloSource) -> str:
    return hmac.digest(key, file_digest(source).encode(), "sha256").hex()
