"""Bugs of charges: calibration of noise, reservation by a plan, a ledger's record, refunds at closing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fedcore.accounting.loss_distributions.loss_curves import poisson
from tests.audit.bug import Bug, Change, bug, edit, new_at
from tests.audit.foreign.later_places import SILO

MEMORY = "fedcore.ledger.memory:MemoryLedger."
EVENT = "fedcore.silo.round_view:RoundView.event"
SPENT = "worst_mu_squared(self.ledger.events(run))"


def curves(scheme: str, changed: Callable[[Any], Any]) -> tuple[Change, ...]:
    """The curve of this sampling scheme changed, wherever the table of curves is looked at."""
    modules = ("loss_distributions.loss_curves", "composition")
    return tuple(
        new_at(f"fedcore.accounting.{module}:SAMPLED", lambda right: right | {scheme: changed(right[scheme])})
        for module in modules
    )


def of_twice(curve: Any) -> Any:
    """The curve of twice the noise."""
    return lambda rate, multiplier: curve(rate, 2 * multiplier)


BUGS: tuple[Bug, ...] = (
    bug(
        "a record that is added, not replaced",
        "sensitivity: a replaced record moves a mean by twice the clip, and is charged for once",
        "softmax",
        edit("fedcore.accounting.events:mean_sensitivity", ("plain = 2.0 * clip", "plain = clip")),
    ),
    bug(
        "fixed samples by half of the sensitivity",
        "accounting: a curve of samples of fixed size takes the sensitivity of a record that joins",
        "guarded local steps",
        *curves("without-replacement", of_twice),
    ),
    bug(
        "fixed samples as coins",
        "accounting: samples of fixed size are charged by the curve of coins, which is for records that join or leave",
        "local steps",
        *curves("without-replacement", lambda right: poisson),
    ),
    bug(
        "each kind of answer once",
        "accounting: sampled answers are composed by their events, not by the answers that an event counts",
        "local steps",
        edit("fedcore.accounting.composition:participation_of", ("+= event.count", "+= 1")),
    ),
    bug(
        "answers that add like deviations",
        "accounting: R answers are charged as the root of R",
        "restarts",
        edit(
            "fedcore.accounting.events:GaussianRelease.gdp_mu_squared",
            ("self.count * (self.sensitivity", "math.sqrt(self.count) * (self.sensitivity"),
        ),
    ),
    bug(
        "differences without their restarts",
        "accounting: rounds of another kind in a phase are not in its charge",
        "differences",
        edit(
            "fedcore.planning.phase:Phase.charged",
            (
                "for kind in self.kinds for event in kind.charged(silo)",
                "for kind in self.kinds[:1] for event in kind.charged(silo)",
            ),
        ),
    ),
    bug(
        "the dearest phase for all",
        "accounting: phases are taken for disjoint, and a warm start about the same records is not charged",
        "control variates",
        edit(
            "fedcore.silo.approval:charge_of",
            (
                "plan.charge(silo)",
                "max([Charge.of(phase.charged(silo), plan.problem.budget.delta(plan.problem.sizes[silo]))"
                " for phase in plan.phases], key=lambda charge: charge.mu_squared)",
            ),
        ),
    ),
    bug(
        "a message for its answers",
        "ledger: a round of several answers is kept as one, and closing gives the rest back",
        "local steps",
        edit(EVENT, ("return self._shard.event", "return replace(self._shard.event, count=1)")),
    ),
    bug(
        "equal events composed once",
        "ledger: at its end a run is charged for each event once, however many releases had it",
        "full batches",
        edit(SILO + "close_run", (SPENT, "worst_mu_squared(set(self.ledger.events(run)))")),
    ),
    bug(
        "the mean over positions",
        "ledger: at its end a run is charged what its records spent on average, not the worst of them",
        "shards",
        edit(
            SILO + "close_run",
            (SPENT, "sum(e.gdp_mu_squared * (e.stop - e.start) for e in self.ledger.events(run)) / self.n"),
        ),
    ),
    bug(
        "closed and yet open",
        "ledger: a run that has ended is charged what it spent, and goes on answering",
        "softmax",
        edit(MEMORY + "close_run", ("self._closed.add(run)\n", "\n")),
    ),
    bug(
        "forgotten with its rows",
        "ledger: a run that is approved again has forgotten what it answered, and answers anew at the same addresses",
        "network",
        edit(MEMORY + "forget_run", ("if run in self._closed and run in self._runs:", "if run in self._runs:")),
    ),
    bug(
        "rows in the order of rounds",
        "ledger: an address that came after a later one is not found, and is answered a second time",
        "guarded",
        edit(
            "fedcore.ledger.rows:Rows.put_at",
            ("if address < self._last(count):\n        self._sorted = False\n", "\n"),
        ),
    ),
    bug(
        "the newest receipt of a phase",
        "ledger: a run that goes on has one row for each phase, and what else was released is not charged",
        "drawn points",
        edit(
            MEMORY + "restore",
            (
                "for receipt, event in receipts:",
                "for receipt, event in {each[0].phase: each for each in receipts}.values():",
            ),
        ),
    ),
    bug(
        "the same plan is free",
        "ledger: a second run of the same plan, whose noise is new, is not charged",
        "moments",
        edit(
            MEMORY + "open_run",
            (
                "if run not in self._runs:",
                "if run not in self._runs and all(known[0] != plan for known in self._runs.values()):",
            ),
        ),
        edit(
            MEMORY + "close_run",
            (
                "if run in self._runs and run not in self._closed:",
                "if run in self._charges and run not in self._closed:",
            ),
        ),
    ),
    bug(
        "a run that takes another plan",
        "ledger: a run may be approved again with a plan of less noise, and keeps the charge of the first",
        "guarded",
        edit(
            MEMORY + "open_run",
            (
                "known = self._runs.setdefault(run, (plan, key, Rows(spill=True)))",
                "known = self._runs[run] = (plan, *self._runs.get(run, (plan, key, Rows(spill=True)))[1:])",
            ),
        ),
    ),
    bug(
        "a round more than planned",
        "approval: one more round is answered than was charged",
        "guarded moments",
        edit("fedcore.planning.plan:Plan.has", ("self.phases[phase - 1].rounds", "self.phases[phase - 1].rounds + 1")),
    ),
    bug(
        "another question at the same address",
        "ledger: an address is answered again for another model, and charged once",
        "differences of softmax",
        edit(SILO + "answer", ("if row is not None:", "if row is not None and row.query_digest == digest:")),
        edit(
            MEMORY + "commit",
            ("if old is not None and (", "if old is not None and old.query_digest == row.query_digest and ("),
        ),
    ),
    bug(
        "fresh noise for a repeated question",
        "ledger: bytes are not kept, so each repetition has new noise and their mean has hardly any",
        "evaluations",
        edit(
            "fedcore.mechanisms.gaussian:KeyedGaussian.draw",
            ("self._philox.words(total.size)", "__import__('numpy').random.Philox().random_raw(total.size)"),
        ),
        edit(MEMORY + "_with_bytes", ("return row._replace(payload=self._newest[1].payload)", "return row")),
        edit(MEMORY + "commit", (" or old.payload_digest != row.payload_digest", "")),
    ),
    bug(
        "closed runs left out",
        "ledger: runs that have ended are no more in the sum that a cap is held against",
        "network of numbers",
        edit(
            MEMORY + "charges",
            (
                "return dict(self._charges)",
                "return {run: charge for run, charge in self._charges.items() if run not in self._closed}",
            ),
        ),
    ),
)
