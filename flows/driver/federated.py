"""Backend of a run over a federation: the relay, the silos' keys, and the report of silos that are away."""

from __future__ import annotations

import time
from collections.abc import Callable

from fedcore.data.federations.federation_data import FederationData
from fedcore.errors import InputError, RelayError
from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.experiment import Experiment
from fedcore.home import Home
from fedcore.identity.inbox import Inbox
from fedcore.relay.members import COORDINATOR
from tasks.relay.client import RelayClient
from tasks.relay.federation import Federation
from tasks.relay.sites import RemoteSites

SAID = 20.0
"""Seconds after which a silo that is waited for is named."""


def relay_of(federation: Federation) -> RelayClient:
    """The coordinator's client of the relay, which has the newest list of members. Raises InputError."""
    invitation = federation.invitation
    client = RelayClient(invitation.relay, invitation.federation, COORDINATOR, federation.identity)
    try:
        client.renew(federation.members.text(federation.identity).encode())
    except RelayError as error:
        raise InputError(f"federation {invitation.name}: its relay does not serve: {error}") from None
    return client


def check_federation(config: ExperimentConfig, home: Home) -> None:
    """Raises InputError unless the config's federation is here and its relay serves."""
    if isinstance(config.data, FederationData):
        relay_of(Federation.of(home, config.data.federation))


def federated(experiment: Experiment, home: Home, lease: int, say: Callable[[str], None]) -> RemoteSites:
    """Backend of the run. `say`: takes a line for a person. Raises InputError."""
    data = experiment.config.data
    if not isinstance(data, FederationData):
        raise InputError(f"data.source = {data.source} has no federation")
    federation = Federation.of(home, data.federation)
    invitation, known = federation.invitation, {card.name: card.keys for card in federation.cards}
    names = [silo.name for silo in experiment.plan.problem.silos]
    if missing := [name for name in names if name not in known]:
        raise InputError(f"silo {missing[0]} is no more in federation {invitation.name}")
    return RemoteSites(
        relay_of(federation),
        Inbox(COORDINATOR, invitation.federation, federation.identity),
        federation.identity,
        invitation.federation,
        {name: known[name] for name in names},
        experiment.agreement,
        experiment.plan,
        lease,
        waits=Waited(say).names,
    )


class Waited:
    """Reports the silos that a run has waited for a while, and that it goes on."""

    def __init__(self, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._say, self._clock = say, clock
        self._since: float | None = None
        self._said: tuple[str, ...] = ()

    def names(self, names: tuple[str, ...]) -> None:
        """Takes the names that are waited for now; none: the call is answered."""
        now = self._clock()
        if not names:
            if self._said:
                self._say("all silos have answered: the run goes on")
            self._since, self._said = None, ()
        elif self._since is None:
            self._since = now
        elif now - self._since >= SAID and names != self._said:
            self._say(
                f"waiting for {', '.join(names)}; the run goes on when they answer, and can be stopped and resumed"
            )
            self._said = names
