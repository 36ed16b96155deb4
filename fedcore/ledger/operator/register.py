"""The register: this machine's file of all silos, their ledgers, and their accounts over all versions of their data.

It lies in one folder that no home and no config moves (`fedcore.home.register_folder`), with its key and its anchor
(`fedcore.ledger.anchor`). One file holds all silos, so that none can be taken out. Entries are lines of JSON, each with
an HMAC over the one before. A process reads the entries of others, appends, waits for the disk, and moves the anchor.
It holds the lock for that long only. A line that a kill or a full disk cut off does not count: the step that it would
have allowed was not taken.

A register that was restored to an earlier moment is behind the anchors of its ledgers, and is refused. If register,
ledgers and anchors are all restored, only a head that was written down elsewhere (`budget show`) reveals it
(`budget verify --head`).
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
"""Seconds to wait for other processes, each of which holds the register while it appends."""
MOST_BYTES = 2**30
HEAD_DIGITS = 32


class Draft(NamedTuple):
    """An entry to append."""

    kind: str
    silo: str
    version: str
    body: dict[str, Any]


class Register:
    """The register in `folder`, which need not exist yet (`known` False).

    `silo`: named in errors. Raises SiloError if the register is damaged or behind its anchor.
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
        """The register of this process's operator."""
        return cls(register_folder(), silo)

    @property
    def known(self) -> bool:
        """True if there is a register. Any of its files is enough: one that has lost the others is damaged, not new.

        Except an anchor whose key was not in place yet when a process died: nothing was registered with it.
        """
        if any(os.path.lexists(name) for name in (self.path, self._anchor_path.with_suffix(".key"))):
            return True
        begun = os.path.lexists(self._anchor_path.with_suffix(".key.new"))
        return os.path.lexists(self._anchor_path) and not begun

    @property
    def key(self) -> bytes:
        """Key of the digests of records and of ledgers' keys."""
        return hmac.digest(self._key, b"digests", "sha256")

    @property
    def head(self) -> str:
        """A short authenticated digest of the whole register, for a copy elsewhere: number and 32 digits."""
        return head_text(self._at)

    def heads(self) -> Iterator[str]:
        """The head after each entry, in order; a head that was written down must be one of them."""
        found: list[str] = []
        begin = Link(0, GENESIS)
        self._locked(lambda file: found.extend(head_text(link) for _, link, _ in self._lines(file, 0, begin)))
        yield from found

    def refresh(self) -> None:
        """Reads entries that other processes have appended."""
        self._locked(self._read)

    def make(self) -> None:
        """Makes an empty register with a new key, unless there is one."""
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
        """Appends entries and waits for the disk; when it returns, they count.

        `unless`: called under the lock, after the entries of others were read; a sentence that it returns refuses.
        Raises SiloError on a refusal, or if the register cannot be written; the step that depends on it may then not be
        taken.
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
                    self.accounts.take(entry)  # before it is written: every written entry has to be valid
            except Exception:
                self._clear()
                raise
            os.ftruncate(file, self._offset)  # removes a line that a kill cut off
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
        """Takes the entries after those read before. Raises SiloError if they do not continue the chain."""
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
        """Verified entries from `offset` on, each with its link and the offset of its end."""
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
        """Calls `act` on the open file under the lock. Raises SiloError if the file cannot be used or locked."""
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
            # It is not known what was written: all entries are read and verified again before the next use.
            self._clear()
            raise fault

    def _check_folder(self) -> None:
        found = os.stat(self.folder)
        if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o022:
            raise self._damaged(f"its folder {self.folder} is not its operator's alone to write; `chmod 700` it")

    def _damaged(self, fault: str) -> SiloError:
        sentence = f"the register {self.path} is damaged: {fault}; nothing is answered until its operator restored it"
        return SiloError(self.silo, "register-damaged", sentence)


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
