"""Schedules: created, listed, paused and removed through the API of Prefect's server.

A schedule's order is recorded at home (`flows.schedules.orders`). A schedule from Prefect's page carries out its
deployment's order, with other values of the free fields.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

from filelock import FileLock, Timeout

from fedcore.errors import BusyError, InputError
from fedcore.home import Home
from fedcore.process.private_files import make_private
from flows.schedules.orders import Kind, Order, forget, free_fields

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.responses import DeploymentResponse

KINDS: tuple[Kind, ...] = ("run", "sweep")
"""Deployments that can have schedules, each named like its flow."""

_UNITS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400, "w": 604800}
PATIENCE = 30.0
"""Seconds to wait while another schedule is being created."""
_SHORTEST = 10
"""Shortest interval in seconds: the deployments look for work no more often."""
_LONGEST = 3660 * 86400
"""Longest interval in seconds, ten years: dates end with the year 9999."""


@dataclass(frozen=True)
class When:
    """Firing times of a schedule: a cron line in a time zone, or an interval from now on."""

    cron: str | None = None
    interval: timedelta | None = None
    timezone: str = "UTC"

    @classmethod
    def of(cls, cron: str | None, every: str | None, timezone: str) -> When:
        """Firing times from a person's text, such as `0 3 * * *` or `6h`. Raises InputError."""
        if (cron is None) == (every is None):
            raise InputError('give a time: either --cron, for instance "0 3 * * *", or --every, for instance 6h')
        if cron is not None and len(cron.split()) != 5 and not cron.startswith("@"):
            raise InputError(
                f"--cron {cron[:60]!r} is not valid: give five fields as 0 3 * * * (a sixth would be seconds)"
            )
        if not timezone:
            raise InputError("--timezone is empty: give a name as Europe/Berlin, or leave it out")
        when = cls(cron, None if every is None else _interval(every), timezone)
        when.dates(1)
        return when

    @property
    def words(self) -> str:
        return f"every {self.interval}" if self.interval is not None else f"{self.cron} ({self.timezone})"

    def as_json(self) -> dict[str, Any]:
        """The schedule in the form of Prefect's API."""
        if self.interval is not None:
            return {"interval": self.interval.total_seconds(), "timezone": self.timezone}
        return {"cron": self.cron, "timezone": self.timezone}

    def dates(self, count: int, after: datetime | None = None) -> list[datetime]:
        """Next `count` firing times. Raises InputError for an invalid cron line or time zone, or if none ever comes."""
        from prefect.server.schemas.schedules import CronSchedule, IntervalSchedule
        from pydantic import ValidationError

        kind = CronSchedule if self.interval is None else IntervalSchedule
        try:
            schedule = kind.model_validate(self.as_json())
        except ValidationError as error:
            key = "cron" if "cron" in str(error.errors()[0]["loc"]) else "timezone"
            value = self.cron if key == "cron" else self.timezone
            hint = "five fields as 0 3 * * *" if key == "cron" else "a name as Europe/Berlin"
            raise InputError(f"--{key} {value!r} is not valid: give {hint}") from None
        try:
            return list(asyncio.run(schedule.get_dates(count, after or datetime.now(UTC))))
        except ValueError:  # from croniter, which searches fifty years
            raise InputError(f"--cron {self.cron!r} never comes: no month of these has such a day") from None


def _interval(text: str) -> timedelta:
    found = re.fullmatch(r"\s*([0-9]{1,9})\s*(s|m|min|h|d|w)\s*", text)
    if found is None:
        raise InputError(f"--every {text!r} is no time: give a number and s, m, h, d or w, for instance 6h")
    seconds = int(found[1]) * _UNITS[found[2]]
    if seconds < _SHORTEST:
        raise InputError(f"--every {text}: at least {_SHORTEST} s, the deployments look for work no more often")
    if seconds > _LONGEST:
        raise InputError(f"--every {text}: at most {_LONGEST // 86400} d")
    return timedelta(seconds=seconds)


@dataclass(frozen=True)
class Schedule:
    """One schedule. `name`: its slug, else the beginning of its id."""

    name: str
    kind: str
    of: str
    """Name of the config."""
    when: When | None
    """Firing times; None for a rule that only Prefect's page can show."""
    active: bool
    repeats: bool
    """True if each firing is a new repetition."""
    parameters: Mapping[str, Any]
    deployment: UUID
    id: UUID

    def next(self) -> datetime | None:
        if not self.active or self.when is None:
            return None
        return self.when.dates(1)[0]


def schedules(client: SyncPrefectClient) -> list[Schedule]:
    """All schedules, those of runs first."""
    return [made for kind in KINDS for made in _of(kind, deployment(client, kind))]


def deployment(client: SyncPrefectClient, kind: str) -> DeploymentResponse:
    """The deployment of a flow. Raises InputError if there is none."""
    from prefect.exceptions import ObjectNotFound

    try:
        return client.read_deployment_by_name(f"{kind}/{kind}")
    except ObjectNotFound:
        raise InputError(f"Prefect has no deployment {kind}/{kind}: `fedcore up` makes it") from None


def _of(kind: str, served: DeploymentResponse) -> list[Schedule]:
    found = []
    for each in served.schedules:
        order = Order.recorded(Home.current(), "schedule", each.id)
        given = {**served.parameters, **each.parameters} if order is None else order.parameters
        rule = each.schedule
        zone = getattr(rule, "timezone", None) or "UTC"
        when = When(getattr(rule, "cron", None), getattr(rule, "interval", None), zone)
        base = given.get("base") or {} if kind == "sweep" else given
        repeats = (base.get("orchestration") or {}).get("scheduled") == "repetition"
        known = when if when.cron or when.interval else None
        name = each.slug or str(each.id)[:8]
        found.append(
            Schedule(
                name,
                kind,
                str(given.get("name", kind)),
                known,
                each.active,
                repeats,
                each.parameters,
                served.id,
                each.id,
            )
        )
    return found


def find(client: SyncPrefectClient, name: str) -> Schedule:
    """The schedule of this name, or of an id that begins with it. Raises InputError for none or several."""
    known = schedules(client)
    found = [each for each in known if each.name == name] or [each for each in known if str(each.id).startswith(name)]
    if len(found) > 1:
        listed = ", ".join(f"{str(each.id)[:8]} ({each.kind} {each.of})" for each in found)
        raise InputError(f"{len(found)} schedules are called {name!r}: name one by its id, {listed}")
    if found:
        return found[0]
    names = ", ".join(each.name for each in known) or "there are none"
    raise InputError(f"there is no schedule {name!r} ({names}); `fedcore schedule list` shows them")


def add(client: SyncPrefectClient, kind: Kind, name: str, when: When, parameters: Mapping[str, Any]) -> None:
    """Creates an active schedule and records its order.

    Raises InputError if the name is taken, BusyError if another process creates a schedule for too long.
    """
    from prefect.client.schemas.actions import DeploymentScheduleCreate

    made = DeploymentScheduleCreate.model_validate(
        {"schedule": when.as_json(), "active": True, "parameters": dict(parameters), "slug": name}
    )
    with _adding(Home.current()):
        if any(each.name == name for each in schedules(client)):
            raise InputError(f"there is a schedule {name!r} already: `fedcore schedule remove {name}`, or give --name")
        (created,) = client.create_deployment_schedules(deployment(client, kind).id, [made])
        Order(kind, parameters, free_fields(kind)).record(Home.current(), "schedule", created.id)


@contextmanager
def _adding(home: Home) -> Iterator[None]:
    """Lets one process at a time create a schedule: names are not unique over two deployments."""
    make_private(home.services)
    lock = FileLock(home.services / "schedules.lock")
    try:
        lock.acquire(timeout=PATIENCE)
    except Timeout:
        raise BusyError(f"{lock.lock_file}: another `fedcore schedule add` is still at work") from None
    try:
        yield
    finally:
        lock.release()


def set_active(client: SyncPrefectClient, schedule: Schedule, active: bool) -> None:
    """Pauses a schedule, which withdraws its waiting firings, or lets it fire again."""
    # Prefect 3.8 empties the parameters if they are not sent along.
    given = dict(schedule.parameters)
    client.update_deployment_schedule(schedule.deployment, schedule.id, active=active, parameters=given)


def remove(client: SyncPrefectClient, schedule: Schedule) -> None:
    """Deletes a schedule, its waiting firings and its order. Runs that it started stay."""
    client.delete_deployment_schedule(schedule.deployment, schedule.id)
    forget(Home.current(), "schedule", schedule.id)
