"""The register: one file of this machine's operator that says which silos there are, where their ledgers are, and what
each account has been charged over all versions of a silo's data.

It lies in one folder that no home and no config moves (`fedcore.home.register_folder`), with its key and its anchor
(`fedcore.ledger.anchor`): one file for all silos, so that none of them can be taken out of it. Entries are lines of
JSON, each with an HMAC over the one before; a process reads what others wrote, appends, waits for the disk, and moves
the anchor, all under a lock that it has for that long only. A line that a kill or a full disk cut off is not there:
what it would have allowed had not been done.

A register that was restored to an earlier moment is behind what the anchors of its ledgers prove, and is refused. All
of it restored together with all ledgers and anchors is not told from that moment: only its head, written down elsewhere
(`budget show`), tells that (`budget verify --head`).
"""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import random
import stat
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedcore.arrays import digest
from fedcore.errors import SiloError
from fedcore.home import register_folder
from fedcore.ledger.anchor import GENESIS, Anchor, Mark, Totals
from fedcore.ledger.file_lock import try_lock
from fedcore.ledger.operator.accounts import Accounts, RegisterEntry
from fedcore.ledger.state import Link

PATIENCE = 30.0
"""Seconds to wait for others, which have the register for as long as they append to it."""
MOST_BYTES = 2**30
HEAD_DIGITS = 32


class Draft(NamedTuple):
    """An entry to come."""

    kind: str
    silo: str
    version: str
    body: dict[str, Any]


class Register:
    """The register in `folder`, which need not be there yet (`known` False).

    `silo`: in whose name errors are raised. Raises SiloError if it is damaged or behind its anchor.
    """

    accounts: Accounts
    _at: Link
    _offset: int
    _inode: int
    _key: bytes

    def __init__(self, folder: Path, silo: str) -> None:
        self.folder, self.silo = folder, silo
        self.path, self._anchor_path = folder / "register", folder / "register.anchor"
        self._clear()
        if self.known:
            self.refresh()

    @classmethod
    def current(cls, silo: str) -> Register:
        """That of this process's operator."""
        return cls(register_folder(), silo)

    @property
    def known(self) -> bool:
        """Whether there is one. Any of its files is enough: one that has lost the others is damaged, not new.

        But for an anchor whose key was not in place yet when a process died: nothing was registered with it.
        """
        if any(os.path.lexists(name) for name in (self.path, self._anchor_path.with_suffix(".key"))):
            return True
        begun = os.path.lexists(self._anchor_path.with_suffix(".key.new"))
        return os.path.lexists(self._anchor_path) and not begun

    @property
    def key(self) -> bytes:
        """What digests of records and of ledgers' keys are keyed by."""
        return hmac.digest(self._key, b"digests", "sha256")

    @property
    def head(self) -> str:
        """A short authenticated digest of all that it says, to be written down elsewhere: number and 32 digits."""
        return head_text(self._at)

    def heads(self) -> Iterator[str]:
        """The head after each entry, in order: one that was written down must be among them."""
        found: list[str] = []
        begin = Link(0, GENESIS)
        self._locked(lambda file: found.extend(head_text(link) for _, link, _ in self._lines(file, 0, begin)))
        yield from found

    def refresh(self) -> None:
        """Reads what others have appended."""
        self._locked(self._read)

    def make(self) -> None:
        """Makes an empty one, with a key of its own, unless there is one."""
        if self.known and self._anchor_path.with_suffix(".key").exists():
            return
        made = False
        with contextlib.suppress(OSError):
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._check_folder()
            made = Anchor(self._anchor_path).make()
        if not made:
            raise self._damaged(f"its folder {self.folder} cannot be used, or has lost the key")
        self.refresh()

    def append(self, drafts: Sequence[Draft], unless: Callable[[Accounts], str | None] = lambda _: None) -> None:
        """Appends entries and waits for the disk: when this returns, they count.

        `unless`: looked at under the lock, after what others wrote was read; a sentence refuses. Raises SiloError if
        that is so, or the register cannot be written: then nothing that depends on it may be done.
        """

        def write(file: int) -> None:
            self._read(file)
            refused = unless(self.accounts)
            if refused is not None:
                raise SiloError(self.silo, "register", refused)
            at, data, entries = self._at, b"", []
            for draft in drafts:
                body = json.dumps(draft.body, sort_keys=True)
                entry = RegisterEntry(at.sequence + 1, draft.kind, draft.silo, draft.version, body)
                at = Link(entry.sequence, _mac(entry, self._key, at.mac))
                data += json.dumps([*entry, at.mac.hex()]).encode() + b"\n"
                entries.append(entry)
            try:
                for entry in entries:
                    self.accounts.take(entry)  # before it is written: what is there has to be taken
            except Exception:
                self._clear()
                raise
            os.ftruncate(file, self._offset)  # what a kill cut off
            if os.pwrite(file, data, self._offset) != len(data):
                raise OSError("only a part was written")
            os.fsync(file)
            self._offset += len(data)
            self._at = at
            anchor = Anchor(self._anchor_path)
            anchor.write(Mark(at.sequence, at.mac, Totals(0.0, 0.0, 0.0), 0, GENESIS))
            anchor.close()

        if not drafts:
            return
        self._locked(write)

    def _clear(self) -> None:
        self.accounts = Accounts()
        self._at, self._offset, self._inode, self._key = Link(0, GENESIS), 0, -1, b""

    def _read(self, file: int) -> None:
        """Takes what is there after what was read before. Raises SiloError if it is not its continuation."""
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1 or found.st_size > MOST_BYTES:
            raise self._damaged("it is no file of its own")
        if self._inode not in (-1, found.st_ino) or found.st_size < self._offset:
            raise self._damaged("another file was put in its place")
        self._inode = found.st_ino
        anchor = Anchor(self._anchor_path)
        if anchor.key is None or self._key not in (b"", anchor.key):
            raise self._damaged("its key is gone, or another one")
        self._key, mark = anchor.key, anchor.mark
        if mark is None:
            raise self._damaged("its anchor is gone or damaged")
        seen = mark.sequence <= self._at.sequence
        for entry, link, end in self._lines(file, self._offset, self._at):
            try:
                self.accounts.take(entry)
            except Exception:
                raise self._damaged(f"entry {entry.sequence} is none that this version writes") from None
            self._at, self._offset = link, end
            if link.sequence == mark.sequence:
                seen = link.mac == mark.head
        if not seen:
            raise self._damaged(f"it is behind its anchor, which saw entry {mark.sequence}: an old copy, or cut off")

    def _lines(self, file: int, offset: int, at: Link) -> Iterator[tuple[RegisterEntry, Link, int]]:
        """Verified entries from a place on, each with its link and where it ends."""
        size = os.fstat(file).st_size
        data = b""
        while len(data) < size - offset:
            part = os.pread(file, size - offset - len(data), offset + len(data))
            if not part:
                break
            data += part
        end = offset
        for line in data.split(b"\n")[:-1]:
            entry, mac = None, b""
            with contextlib.suppress(Exception):
                *fields, digits = json.loads(line)
                entry, mac = RegisterEntry(*fields), bytes.fromhex(digits)
            number = at.sequence + 1
            if entry is None or entry.sequence != number or not _sound(entry, self._key, at.mac, mac):
                raise self._damaged(f"entry {number} was changed, or is not where it was written")
            at, end = Link(number, mac), end + len(line) + 1
            yield entry, at, end

    def _locked(self, act: Callable[[int], None]) -> None:
        """`act` on the open file, alone. Raises SiloError if it cannot be opened, locked, read or written."""
        lock = file = -1
        until = time.monotonic() + PATIENCE
        fault: SiloError | None = None
        try:
            self._check_folder()
            lock = os.open(self.folder / "register.lock", os.O_RDONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600)
            while not try_lock(lock):
                if time.monotonic() > until:
                    raise SiloError(self.silo, "register", f"the register {self.path} is held by another process")
                time.sleep(random.uniform(0.001, 0.01))
            file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
            act(file)
        except OSError:
            fault = SiloError(self.silo, "register", f"the register {self.path} could not be read or written")
        finally:
            for each in (file, lock):
                if each >= 0:
                    os.close(each)
        if fault is not None:
            # What was written is not known: all of it is read and verified anew before the next use.
            self._clear()
            raise fault

    def _check_folder(self) -> None:
        found = os.stat(self.folder)
        if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o022:
            raise self._damaged(f"its folder {self.folder} is not its operator's alone to write; `chmod 700` it")

    def _damaged(self, fault: str) -> SiloError:
        said = f"the register {self.path} is damaged: {fault}; nothing is answered until its operator restored it"
        return SiloError(self.silo, "register-damaged", said)


def head_text(link: Link) -> str:
    return f"{link.sequence}-{link.mac.hex()[:HEAD_DIGITS]}"


def _mac(entry: RegisterEntry, key: bytes, before: bytes) -> bytes:
    texts = (entry.kind.encode(), entry.silo.encode(), entry.version.encode(), entry.body.encode())
    return hmac.digest(key, digest(b"register", before, struct.pack("<Q", entry.sequence), *texts), "sha256")


def _sound(entry: RegisterEntry, key: bytes, before: bytes, mac: bytes) -> bool:
    try:
        return hmac.compare_digest(_mac(entry, key, before), mac)
    except Exception:
        return False  # a damaged field has another type
