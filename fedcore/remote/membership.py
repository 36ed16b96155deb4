"""A silo's membership of a federation, as its own machine holds it: keys, invitation, schema, and the way to its data.

The ledger, its anchor and the policy are where every guarded silo of this home has them.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from pydantic import ConfigDict, TypeAdapter

from fedcore import __version__
from fedcore.bounded_file import read_within
from fedcore.configfile.reading import read_yaml, validated
from fedcore.data.federations.card import Card, read_card
from fedcore.data.federations.preparation import Preparation
from fedcore.data.federations.rotation import rotation_text
from fedcore.data.layout import register_file
from fedcore.data.silo_file import SiloSource, count_records
from fedcore.errors import InputError, SiloError
from fedcore.home import Home
from fedcore.identity.envelope import LONGEST_PARTY, PARTY
from fedcore.identity.inbox import Inbox, Questions
from fedcore.identity.invitation import Invitation
from fedcore.identity.keys import Identity
from fedcore.identity.sequences import Sequences
from fedcore.ledger.anchor import write_new, write_whole
from fedcore.ledger.operator.register import Register
from fedcore.process.private_files import make_private
from fedcore.relay.members import COORDINATOR
from fedcore.remote.roster import FOLDER, Roster
from fedcore.remote.service import SiloService
from fedcore.silo.agreement import FORM
from fedcore.silo.opening import SiteSpec, open_site
from fedcore.silo.policies.policy_in_force import Clock, utc_now

KEYS, INVITATION, SCHEMA, DATA, NUMBERS = "silo.keys", "invitation.json", "schema.yaml", "data.json", "numbers.sqlite"
NEXT = "next.keys"
"""Keys of a rotation that the coordinator may not have taken yet."""
CARD = "card.json"
"""The newest card that the silo has made, by which the others know how it prepares its records."""
_DATA = TypeAdapter(tuple[str], config=ConfigDict(strict=True))
LARGEST_DATA = 2**13


@dataclass(frozen=True)
class Membership:
    """The membership in `folder` of the silo `name`. Methods raise InputError for files that cannot be used."""

    folder: Path
    name: str
    identity: Identity
    invitation: Invitation
    data: str

    @classmethod
    def new(cls, home: Home, name: str, invitation: Path, data: Path, schema: str) -> Membership:
        """Makes keys for a new membership. `data`: the silo's table; `schema`: YAML of its `Preparation`.

        Its caller has had the coordinator's fingerprint confirmed. Raises InputError.
        """
        joined, path = Invitation.read(invitation), os.path.abspath(data)
        if re.match(PARTY, name) is None or name == COORDINATOR:
            raise InputError(
                f"{name!r} is no name of a silo: take 1 to {LONGEST_PARTY} letters, digits and ._-, the first one a "
                f"letter or digit, and another word than {COORDINATOR}"
            )
        folder = home.memberships / name
        if (folder / KEYS).exists():
            raise InputError(f"{folder}: silo {name} has joined a federation already; its keys stay as they are")
        identity = Identity.new()
        try:
            make_private(folder)
            for file, text in (
                (INVITATION, invitation.read_bytes()),
                (SCHEMA, schema.encode()),
                (DATA, json.dumps([path]).encode()),
            ):
                write_new(folder / file, text)
        except OSError as error:
            raise InputError(f"{folder}: it cannot be written ({error.strerror})") from None
        found = cls(folder, name, identity, joined, path)
        try:
            count_records(found.source(home))
        except SiloError as error:
            raise InputError(str(error)) from None
        identity.store(folder / KEYS)  # last: without keys there is no membership
        return found

    @classmethod
    def of(cls, home: Home, name: str | None) -> Membership:
        """The membership of this silo; None: of the only one here. Raises InputError if there is none."""
        names = sorted(path.parent.name for path in home.memberships.glob(f"*/{KEYS}"))
        if name is None and len(names) != 1:
            listed = f"name one of {', '.join(names)}" if names else "`fedcore silo init` makes one"
            raise InputError(f"{len(names)} silos of {home.memberships} have joined a federation: {listed}")
        name = names[0] if name is None else name
        if name not in names:
            raise InputError(
                f"no silo {name} in {home.memberships} has joined a federation; `fedcore silo init` makes one"
            )
        folder = home.memberships / name
        try:
            (data,) = _DATA.validate_json(read_within(folder / DATA, LARGEST_DATA))
        except OSError as error:
            raise InputError(f"{folder / DATA}: it cannot be read ({error.strerror})") from None
        except ValueError:
            raise InputError(f"{folder / DATA}: it is a list with one path, the silo's table") from None
        return cls(folder, name, Identity.stored(folder / KEYS), Invitation.read(folder / INVITATION), data)

    @property
    def roster(self) -> Roster:
        """The keys of the federation's other silos that this silo's operator has confirmed."""
        return Roster(self.folder / FOLDER, self.name, self.invitation.federation)

    @property
    def preparation(self) -> Preparation:
        """The silo's columns, from its schema file."""
        path = self.folder / SCHEMA
        return validated(Preparation, read_yaml(path, ()), str(path))

    def source(self, home: Home) -> SiloSource:
        """The source of the silo's records, with the version of its data."""
        version = register_file(home.silos.absolute(), self.name, self.data)
        return self.preparation.source(self.name, self.data, version, str(self.folder / DATA))

    def card(self, home: Home) -> Card:
        """The silo's public facts. Raises SiloError for a table that does not fit the schema."""
        source = self.source(home)
        return Card(
            self.invitation.federation,
            self.name,
            count_records(source),
            source.version,
            self.preparation,
            __version__,
            FORM,
            self.identity.public,
        )

    def rotation(self, home: Home) -> tuple[Identity, str]:
        """New keys, stored beside the old ones until `next`, and the text of the rotation to them.

        Raises SiloError for a table that does not fit the schema, and InputError for keys that cannot be stored.
        """
        path = self.folder / NEXT
        if not path.exists():
            Identity.new().store(path)
        fresh = Identity.stored(path)
        card = replace(self.card(home), keys=fresh.public)
        return fresh, rotation_text(card.text(fresh), self.identity)

    def next(self) -> Membership | None:
        """The membership with the keys of its rotation, which replace the old ones; None without a rotation."""
        path = self.folder / NEXT
        if not path.exists():
            return None
        fresh = Identity.stored(path)
        try:
            os.replace(path, self.folder / KEYS)
        except OSError as error:
            raise InputError(f"{self.folder / KEYS}: it cannot be written ({error.strerror})") from None
        return replace(self, identity=fresh)

    def keep_card(self, text: str) -> None:
        """Stores the text of a card that the silo gives away. Raises InputError."""
        try:
            write_whole(self.folder / CARD, text.encode())
        except OSError as error:
            raise InputError(f"{self.folder / CARD}: it cannot be written ({error.strerror})") from None

    def check_card(self) -> None:
        """Raises InputError unless the schema is that of the card: else answers would be about other columns."""
        again = f"`fedcore silo card {self.name}`"
        if not (self.folder / CARD).exists():
            raise InputError(f"silo {self.name} has no card yet: {again} makes it")
        card = read_card(self.folder / CARD)
        if (fault := self.preparation.difference(card.preparation)) is not None:
            raise InputError(
                f"{self.folder / SCHEMA}: it was edited after the silo's card was made: {fault}; undo the edit, or "
                f"make another card by {again}, for the coordinator to add"
            )

    @contextmanager
    def service(self, home: Home, clock: Clock = utc_now) -> Iterator[SiloService]:
        """The silo's service, with its records open. Raises SiloError, as `open_site` does.

        Raises InputError for a silo without an account.
        """
        if Register.current(self.name).accounts.find(self.name) is None:
            raise InputError(f"silo {self.name} has no account yet: `fedcore silo card {self.name}` makes it one")
        spec = SiteSpec((self.source(home),), 0, "sqlite", home.ledger_folders, guarded=True)
        self.check_card()
        sequences = Sequences(self.folder / NUMBERS)
        try:
            site = open_site(spec, clock)
            try:
                inbox = Inbox(self.name, self.invitation.federation, self.identity)
                questions = Questions(inbox, sequences, lambda: datetime.now(UTC))
                yield SiloService(site, self.name, questions, self.identity, self.invitation.coordinator)
            finally:
                site.close()
        finally:
            sequences.close()
