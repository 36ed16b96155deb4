"""Bugs of a run's ledger: repeated rounds, closings, plans, commits, resumption."""

from __future__ import annotations

from tests.audit.bug import Bug, bug, edit

_SILO = "fedcore.silo.private_silo:PrivateSilo"
_MEMORY = "fedcore.ledger.memory:MemoryLedger"
_SQLITE = "fedcore.ledger.sqlite:SqliteLedger"
_COMMIT = "self.ledger.commit(run, Row(index, round, digest, view.event, digested, payload), approved.lease)"

BUGS: tuple[Bug, ...] = (
    bug(
        "a closed run costs its kinds of answers",
        "equal events count once when a run is closed, so all rounds of a phase cost what one of them does",
        "guarded",
        edit(
            "fedcore.accounting.composition:worst_mu_squared",
            ("Counter(events).items()", "dict.fromkeys(events, 1).items()"),
        ),
    ),
    bug(
        "forgotten runs are closed at nothing",
        "a run whose records the site has let go of is closed as if it had released nothing",
        "guarded differences",
        edit(
            f"{_SILO}.close_run", ("self.ledger.events(run))", "self.ledger.events(run) if run in self._runs else ())")
        ),
    ),
    bug(
        "rounds out of order are not found",
        "a round that was asked before an earlier one is looked for in the wrong place and answered again",
        "full batches",
        edit("fedcore.ledger.rows:Rows.put_at", ("self._sorted = False", "pass")),
    ),
    bug(
        "older rounds may be asked about other models",
        "only the newest release is held against another question, so a round is answered for many models",
        "coins",
        edit(
            f"{_SILO}.answer",
            ("if row.query_digest != digest:", "if row.payload is not None and row.query_digest != digest:"),
        ),
        edit(
            f"{_MEMORY}.commit",
            ("(old.payload is not None or old.payload_digest != row.payload_digest)", "old.payload is not None"),
        ),
    ),
    bug(
        "a closed run goes on when it is approved again",
        "an approval opens a closed run, whose charge has fallen to what it had spent until then",
        "restarts",
        edit(
            f"{_MEMORY}.open_run", ("self.fence(run, lease)", "self._closed.discard(run)\n    self.fence(run, lease)")
        ),
    ),
    bug(
        "charges go with a forgotten run",
        "what a closed run was charged is let go of with its rows, so the silo seems to have spent nothing",
        "shards",
        edit(
            f"{_MEMORY}.forget_run",
            ("self._runs[run] = (*self", "self._charges.pop(run, None)\n        self._runs[run] = (*self"),
        ),
    ),
    bug(
        "rows go with a forgotten run",
        "rows of a run that is still open are let go of, so its rounds are answered again for other models",
        "softmax",
        edit(f"{_MEMORY}.forget_run", ("if run in self._closed and run in self._runs:", "if run in self._runs:")),
    ),
    bug(
        "a run goes on with a newer plan",
        "another plan of the same run takes the place of the first one, at the charge of the first one",
        "full batches",
        edit(
            f"{_MEMORY}.open_run",
            ("same_plan(self._silo, run, known[0], plan)", "self._runs[run] = known = (plan, known[1], known[2])"),
        ),
    ),
    bug(
        "commits in fives",
        "releases are committed five at a time, so what was sent since is in no ledger and no charge",
        "guarded differences",
        edit(
            f"{_SILO}.answer",
            (
                _COMMIT,
                "waiting = self.__dict__.setdefault('waiting', {}).setdefault(run, [])\n"
                "    waiting.append((run, Row(index, round, digest, view.event, digested, payload), approved.lease))\n"
                "    last = index == len(approved.plan.phases) and round == approved.plan.phases[-1].rounds\n"
                "    while len(waiting) >= 5 or (waiting and last):\n"
                "        self.ledger.commit(*waiting.pop(0))",
            ),
        ),
    ),
    bug(
        "a commit that fails is tried once",
        "a ledger that refuses to write an answer is taken for one that has it, and the answer is sent",
        "guarded",
        edit(f"{_SILO}.answer", (_COMMIT, f"try:\n        {_COMMIT}\n    except SiloError:\n        pass")),
    ),
    bug(
        "events of this process",
        "releases of before a restart are not read, so a resumed run is accounted and closed without them",
        "guarded",
        edit(
            "fedcore.ledger.chained_file:ChainedFile._known_rows",
            (
                "run not in self._rows and run in self._state.approvals",
                "run not in self._rows and run in self._state.closings",
            ),
        ),
    ),
    bug(
        "another split after a restart",
        "a run that is resumed gets a new key, so records are in other shards than those they paid for",
        "shards",
        edit(f"{_SQLITE}.open_run", ("return key if stored is None else stored", "return key")),
    ),
    bug(
        "noise anew for a question again",
        "an older answer is made again with other noise and sent, until noise averages out",
        "network",
        edit(
            "fedcore.silo.round_view:RoundView._next_context",
            (
                "self.answered += 1",
                "import os\n    self.answered += 1\n    return self._address + os.urandom(8) + self._query",
            ),
        ),
        edit(f"{_SILO}.answer", (_COMMIT, f"if row is None:\n        {_COMMIT}")),
    ),
    bug(
        "closed pro rata",
        "a closed run's epsilon falls with its part of mu^2, where it falls with the root",
        "guarded",
        edit(
            "fedcore.ledger.ledger:settled",
            (
                "pieces=pieces, divergence=None)",
                "pieces=pieces, divergence=None, epsilon=charge.epsilon * min(1.0, mu_squared / charge.mu_squared))",
            ),
        ),
    ),
)
