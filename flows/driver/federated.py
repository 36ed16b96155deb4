"""Backend of a run over a federation: the relay, the silos' keys, and the report of silos that are away."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from fedcore import __version__
from fedcore.data.federations.card import Card
from fedcore.data.federations.federation_data import FederationData
from fedcore.errors import InputError, RelayError
from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.experiment import Experiment
from fedcore.home import Home
from fedcore.identity.inbox import Inbox
from fedcore.planning.whole_silo import planned
from fedcore.relay.members import COORDINATOR
from fedcore.silo.agreement import FORM
from tasks.relay.client import RelayClient
from tasks.relay.federation import Federation
from tasks.relay.sites import RemoteSites, Skip

SAID = 20.0
"""Seconds after which a silo that is waited for is named."""


_given: dict[str, bytes] = {}
"""Lists of members that this process has given to relays, by address."""


def relay_of(federation: Federation, again: bool = True) -> RelayClient:
    """The coordinator's client of the relay, which has the newest list of members. Raises InputError.

    `again`: gives it the list also if this process has done so; else the list of a run's start is given once.
    """
    invitation = federation.invitation
    client = RelayClient(invitation.relay, invitation.federation, COORDINATOR, federation.identity)
    text = federation.members.text(federation.identity).encode()
    if again or _given.get(invitation.relay) != text:
        try:
            client.renew(text)
        except RelayError as error:
            raise InputError(f"federation {invitation.name}: its relay does not serve: {error}") from None
        _given[invitation.relay] = text
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
    invitation, cards = federation.invitation, federation.cards
    known = {card.name: card.keys for card in cards}
    names = [silo.name for silo in experiment.plan.problem.silos]
    if missing := [name for name in names if name not in known]:
        raise InputError(f"silo {missing[0]} is no more in federation {invitation.name}")
    check_versions(card for card in cards if card.name in names)
    return RemoteSites(
        relay_of(federation, again=False),
        Inbox(COORDINATOR, invitation.federation, federation.identity),
        federation.identity,
        invitation.federation,
        {name: known[name] for name in names},
        experiment.agreement,
        experiment.plan,
        lease,
        waits=Waited(say).names,
        skip=_skip(experiment),
        keys=lambda: {card.name: card.keys for card in federation.cards},
    )


def check_versions(cards: Iterable[Card]) -> None:
    """Raises InputError for a silo that reads agreements of another form than this driver writes."""
    for card in cards:
        if card.agreement != FORM:
            raise InputError(
                f"silo {card.name} has fedcore {card.fedcore}, which reads agreements of form {card.agreement}; this "
                f"driver has {__version__} and writes form {FORM}. Install one version at both; `fedcore silo card` "
                "there then writes a new card for `fedcore federation add`"
            )


def _skip(experiment: Experiment) -> Skip | None:
    """Leave to skip silos that are away; None: they are waited for. Raises InputError.

    A method may skip them if it has a plan for as few silos in a round.
    """
    section, problem = experiment.config.participation, experiment.plan.problem
    if section.absent == "wait":
        return None
    least = problem.participation.least
    minimum = math.ceil(least / 2) if section.minimum is None else section.minimum
    if minimum > least:
        raise InputError(f"participation.minimum = {minimum}, but {least} silos may be asked in a round: say no more")
    try:
        planned(experiment.context.method, replace(problem, participants=minimum))
    except InputError as error:
        raise InputError(f"participation.absent = skip needs a plan for {minimum} silos in a round: {error}") from None
    if any(kind.schedule.in_turn for phase in experiment.plan.phases for kind in phase.kinds):
        raise InputError("participation.absent = skip: the method asks one silo after the other; say wait")
    return Skip(section.deadline, minimum)


class Waited:
    """Reports the silos that a run has waited for a while, and that it goes on."""

    def __init__(self, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._say, self._clock = say, clock
        self._since: float | None = None
        self._said: tuple[str, ...] = ()

    def names(self, waiting: Mapping[str, str]) -> None:
        """Takes the names that are waited for now, each with what it waits for; none: the call is answered."""
        now, names = self._clock(), tuple(f"{name} ({why})" if why else name for name, why in waiting.items())
        if not names:
            if self._said:
                self._say("all silos have answered: the run goes on")
            self._since, self._said = None, ()
        elif self._since is None:
            self._since = now
        elif names != self._said and (now - self._since >= SAID or any(waiting.values())):
            self._say(
                f"waiting for {', '.join(names)}; the run goes on when they answer, and can be stopped and resumed"
            )
            self._said = names
