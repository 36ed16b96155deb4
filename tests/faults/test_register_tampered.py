"""Random tampering with register, ledger, anchors and manifests, in turns with runs and repairs: 100 cases.

The adversary has neither key, and may restore any file to an earlier version. The oracle counts answers independently:
one at each address. The charges of answered runs never add up to more than the cap.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from fedcore.accounting.events import GaussianRelease
from fedcore.accounting.filters import Cap, Charge
from fedcore.data.silo_file import SiloSource
from fedcore.errors import SiloError
from fedcore.home import LedgerFolders
from fedcore.ledger import file_lock
from fedcore.ledger.ledger import Row, payload_digest
from fedcore.ledger.operator.register import Register
from fedcore.ledger.operator.register_check import faults
from fedcore.ledger.operator.registered import RegisteredLedger
from fedcore.ledger.operator.repair import reconcile
from fedcore.silo.registration import register_silos
from tests.faults.test_register_kills import now

CHARGE, CAP = Charge(0.25, 1.0, 1e-6), Cap(3.0, 1e-5, "basic")
VERSIONS = ("v" * 32, "w" * 32)
EVENT = GaussianRelease(0, 4, 0.2, 1.0)


class Tampering(RuleBasedStateMachine):
    """One silo with two versions that share an account of three runs."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(file_lock, "PATIENCE", 0.05)
        self.folder = Path(mkdtemp(prefix="fedcore-register-"))
        self.patch.setenv("FEDCORE_REGISTER", str(self.folder / "register"))
        self.folders = LedgerFolders.below(self.folder)
        for number, version in enumerate(VERSIONS):
            file = self.folder / f"{version[0]}.csv"
            pa.csv.write_csv(pa.table({"x": [1.0, 2.0, 3.0, 4.0 + number], "y": [0, 1, 0, 1]}), file)
            source = SiloSource("ash", str(file), "csv", ("x",), "y", (0, 1), False, 1.0, 1.0, version)
            register_silos([source], self.folders, number == 0, lambda *_: False, now)
        self.answers: dict[tuple[str, str, int], set[bytes]] = {}
        self.path: bool | None = None
        self.kept: list[dict[Path, bytes]] = [self.files()]

    def files(self) -> dict[Path, bytes]:
        return {
            path: path.read_bytes()
            for path in sorted(self.folder.rglob("*"))
            if path.is_file() and path.suffix not in (".lock", ".csv")
        }

    @rule(version=st.sampled_from(VERSIONS), run=st.integers(0, 4), rounds=st.integers(1, 2), value=st.floats(0, 1))
    def answer(self, version: str, run: int, rounds: int, value: float) -> None:
        """A run under a new key each time, as a guarded silo's is: a second answer has other bytes."""
        name = f"run {run}"
        with suppress(SiloError):
            ledger = RegisteredLedger(Register.current("ash"), "ash", version, now)
            try:
                ledger.open_run(name, "plan", bytes([len(self.answers)]) * 32, CHARGE, CAP)
                for round in range(1, rounds + 1):
                    row = ledger.find(name, 1, round)
                    if row is None:
                        payload, digested = payload_digest(np.array([value, float(len(self.kept))]))
                        ledger.commit(name, Row(1, round, b"q" * 32, EVENT, digested, payload))
                    else:
                        payload = row.payload
                    self.answers.setdefault((version, name, round), set()).add(payload)
            finally:
                ledger.close()
        self.kept.append(self.files())

    @rule(which=st.integers(0, 10**6), moment=st.integers(0, 10**6), both=st.booleans())
    def put_back(self, which: int, moment: int, both: bool) -> None:
        """One file, or one path (all ledgers with their anchors, or the register), to an earlier moment."""
        earlier = self.kept[moment % len(self.kept)]
        paths = sorted(earlier)
        chosen = paths[which % len(paths)]
        of_register = chosen.parent.name == "register"
        # The adversary changes one of the two paths only: changes of both are found only by a head written elsewhere.
        self.path = of_register if self.path is None else self.path
        if of_register != self.path:
            return
        for path in paths:
            if path == chosen or (both and (path.parent.name == "register") == of_register):
                path.write_bytes(earlier[path])

    @rule(which=st.integers(0, 10**6), at=st.integers(0, 10**6), bit=st.integers(0, 7), cut=st.booleans())
    def damage(self, which: int, at: int, bit: int, cut: bool) -> None:
        paths = [path for path in sorted(self.files()) if path.stat().st_size]
        if not paths:
            return
        path = paths[which % len(paths)]
        data = bytearray(path.read_bytes())
        if cut:
            data = data[: at % len(data)]
        else:
            data[at % len(data)] ^= 1 << bit
        path.write_bytes(data)

    @rule(which=st.integers(0, 10**6))
    def remove(self, which: int) -> None:
        if paths := sorted(self.files()):
            paths[which % len(paths)].unlink()

    @rule()
    def undo(self) -> None:
        """Restores all files from the time of the last answer, as an operator does who has noticed the attack."""
        for path, data in self.kept[-1].items():
            path.write_bytes(data)

    @rule()
    def repair(self) -> None:
        with suppress(SiloError):
            reconcile(Register.current("ash"), "ash", now)

    @rule(version=st.sampled_from(VERSIONS))
    def verified(self, version: str) -> None:
        """`budget verify` names every ledger that refuses to be opened."""
        try:
            RegisteredLedger(Register.current("ash"), "ash", version, now).close()
        except SiloError:
            try:
                messages = [each for *_, found in faults(Register.current("ash"), None, None) for each in found]
                given_up = any(
                    each.given_up for each in Register.current("ash").accounts.by_name["ash"].versions.values()
                )
                assert messages or given_up
            except SiloError:
                pass  # the register itself is named

    @invariant()
    def no_second_account_and_no_second_release(self) -> None:
        assert all(len(found) == 1 for found in self.answers.values()), self.answers
        runs = {(version, run) for version, run, _ in self.answers}
        assert len(runs) <= 3, runs

    def teardown(self) -> None:
        self.patch.undo()
        import shutil

        shutil.rmtree(self.folder, ignore_errors=True)


TestTampering = Tampering.TestCase
TestTampering.settings = settings(max_examples=100, stateful_step_count=14, deadline=None)
TestTampering.pytestmark = [pytest.mark.minutes, pytest.mark.faults]
