"""Schedules: made, listed, paused and removed through the API of Prefect's server, which says when they are due.

What one of ours does is recorded at home (`flows.schedules.orders`). One that was made on Prefect's page does what its
deployment does, with other values of its free fields.
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
"""Deployments that schedules may be of, each named as its flow."""

_UNITS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400, "w": 604800}
PATIENCE = 30.0
"""Seconds for another schedule that is being made."""
_SHORTEST = 10
"""Seconds: more often than that the deployments do not look for work."""
_LONGEST = 3660 * 86400
"""Seconds, ten years: dates end with the year 9999."""


@dataclass(frozen=True)
class When:
    """When a schedule fires: a cron line in a time zone, or an interval from now on."""

    cron: str | None = None
    interval: timedelta | None = None
    timezone: str = "UTC"

    @classmethod
    def of(cls, cron: str | None, every: str | None, timezone: str) -> When:
        """From what a person writes, as `0 3 * * *` or `6h`. Raises InputError."""
        if (cron is None) == (every is None):
            raise InputError('say when: either --cron, for instance "0 3 * * *", or --every, for instance 6h')
        if cron is not None and len(cron.split()) != 5 and not cron.startswith("@"):
            raise InputError(f"--cron {cron[:60]!r} is none: give five fields as 0 3 * * * (a sixth would be seconds)")
        if not timezone:
            raise InputError("--timezone is empty: give a name as Europe/Berlin, or leave it out")
        when = cls(cron, None if every is None else _interval(every), timezone)
        when.dates(1)
        return when

    @property
    def words(self) -> str:
        return f"every {self.interval}" if self.interval is not None else f"{self.cron} ({self.timezone})"

    def as_json(self) -> dict[str, Any]:
        """As Prefect's API takes it."""
        if self.interval is not None:
            return {"interval": self.interval.total_seconds(), "timezone": self.timezone}
        return {"cron": self.cron, "timezone": self.timezone}

    def dates(self, count: int, after: datetime | None = None) -> list[datetime]:
        """The next firings. Raises InputError for a cron line or a time zone that is none, or never comes."""
        from prefect.server.schemas.schedules import CronSchedule, IntervalSchedule
        from pydantic import ValidationError

        kind = CronSchedule if self.interval is None else IntervalSchedule
        try:
            schedule = kind.model_validate(self.as_json())
        except ValidationError as error:
            key = "cron" if "cron" in str(error.errors()[0]["loc"]) else "timezone"
            value = self.cron if key == "cron" else self.timezone
            hint = "five fields as 0 3 * * *" if key == "cron" else "a name as Europe/Berlin"
            raise InputError(f"--{key} {value!r} is none: give {hint}") from None
        try:
            return list(asyncio.run(schedule.get_dates(count, after or datetime.now(UTC))))
        except ValueError:  # croniter's, which looks fifty years ahead
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
    """One schedule. `name`: its slug; of one that was made elsewhere without, the beginning of its id."""

    name: str
    kind: str
    of: str
    """Name of the config."""
    when: When | None
    """None: a rule that only Prefect's page can show."""
    active: bool
    repeats: bool
    """Whether each firing is a new repetition."""
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
        order = Order.kept(Home.current(), "schedule", each.id)
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
    """The schedule of this name, or of an id that begins with it. Raises InputError, also where several have it."""
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
    """Makes a schedule, active from now on. Raises InputError if there is one of this name, BusyError if another one is
    being made for too long."""
    from prefect.client.schemas.actions import DeploymentScheduleCreate

    made = DeploymentScheduleCreate.model_validate(
        {"schedule": when.as_json(), "active": True, "parameters": dict(parameters), "slug": name}
    )
    with _adding(Home.current()):
        if any(each.name == name for each in schedules(client)):
            raise InputError(f"there is a schedule {name!r} already: `fedcore schedule remove {name}`, or give --name")
        (created,) = client.create_deployment_schedules(deployment(client, kind).id, [made])
        Order(kind, parameters, free_fields(kind)).keep(Home.current(), "schedule", created.id)


@contextmanager
def _adding(home: Home) -> Iterator[None]:
    """One at a time: the server knows no names over two deployments."""
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
    """Pauses a schedule, or lets it fire again; what waits of a paused one is withdrawn."""
    # Prefect 3.8 empties the parameters if they are not sent along.
    given = dict(schedule.parameters)
    client.update_deployment_schedule(schedule.deployment, schedule.id, active=active, parameters=given)


def remove(client: SyncPrefectClient, schedule: Schedule) -> None:
    """Deletes a schedule with what waits of it. Runs that it started stay."""
    client.delete_deployment_schedule(schedule.deployment, schedule.id)
    forget(Home.current(), "schedule", schedule.id)
