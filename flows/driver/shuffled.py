"""Backend of a shuffled run: its key, its shuffler, and sites with the route to the shuffler."""

from __future__ import annotations

from collections.abc import Callable

from fedcore.errors import InputError
from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.experiment import Experiment
from fedcore.home import Home
from fedcore.planning.shuffle import Shuffle
from fedcore.shuffling.forms import Route
from flows.carriers.own_shuffler import OwnShuffler
from flows.carriers.shuffler_secret import shuffler_secret
from tasks.shuffling.backend import SendingSites, Shuffled, stored_key
from tasks.shuffling.calls import Mailbox, check_listening


def shuffler_address(config: ExperimentConfig) -> str | None:
    """The URL of the shuffler that a config names; None if it names none."""
    named = None if config.shuffler is None else config.shuffler.address
    return named if named is None or "://" in named else f"http://{named}"


def run_secret(config: ExperimentConfig) -> str:
    """Secret that the run sends to the config's shuffler; empty if the config names no file. Raises InputError."""
    file = None if config.shuffler is None else config.shuffler.secret
    return "" if file is None else shuffler_secret("shuffler.secret", file)


def check_shuffler(config: ExperimentConfig) -> None:
    """Raises InputError unless the config's shuffler answers, or the run can start its own."""
    address = shuffler_address(config)
    if address is not None:
        check_listening(address, run_secret(config))
    elif config.shuffler is not None and config.cluster.backend == "dask" and config.cluster.address is not None:
        raise InputError(
            f"shuffler.address is null, and sites of cluster.address = {config.cluster.address} may be on other "
            "machines, which do not reach a shuffler of the driver's: start one with `fedcore shuffler` and name it"
        )


def shuffled(experiment: Experiment, shuffle: Shuffle, home: Home, sites: Callable[[bytes], SendingSites]) -> Shuffled:
    """Backend of the run; `sites` makes its sites' backend from the route's bytes. Raises InputError, SiloError."""
    config, folder = experiment.config, home.runs / experiment.run
    check_shuffler(config)
    deadline = 60.0 if config.shuffler is None else config.shuffler.deadline
    key, address, own, secret = stored_key(folder / "shuffler.key"), shuffler_address(config), None, run_secret(config)
    if address is None:
        own = OwnShuffler(home, folder / "shuffler", shuffle.minimum)
        own.start()
        address, secret = own.address, own.secret
    try:
        backend = sites(Route(address, key.public.hex(), deadline, secret).to_bytes())
    except BaseException:
        if own is not None:
            own.close()
        raise
    done = None if own is None else own.close
    return Shuffled(backend, Mailbox(address, deadline, secret), key, experiment.plan, experiment.run, deadline, done)
