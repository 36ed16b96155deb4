"""Bugs of an account over all runs: caps, anchors, reconciliations, older ledgers, versions."""

from __future__ import annotations

from tests.audit.bug import Bug, bug, edit

_FILTERS = "fedcore.accounting.filters:Cap"

BUGS: tuple[Bug, ...] = (
    bug(
        "closed runs are off the cap",
        "a cap counts runs that are open, so what was spent before is free to be spent again",
        "guarded",
        edit(
            "fedcore.ledger.sqlite:SqliteLedger.open_run",
            ("self._state.charges.values()", "[self._state.charges[each] for each in self._state.open_runs]"),
        ),
    ),
    bug(
        "a cap is asked before the run",
        "a run is admitted if there is anything left, so the last one goes beyond the cap by all of itself",
        "guarded differences",
        edit(
            "fedcore.ledger.refusals:admit",
            (
                "not cap.admits([*charges, charge], order)",
                "not (cap.admits(charges, order) and cap.left(charges, order) > 0)",
            ),
        ),
    ),
    bug(
        "a cap's mu without its square",
        "mu is taken for mu^2 where it is below one, so a small cap admits more than it says",
        "guarded",
        edit(f"{_FILTERS}._largest_mu_squared", ('"discrete-gaussian")) ** 2', '"discrete-gaussian"))')),
    ),
    bug(
        "deltas do not add up",
        "a cap by basic composition adds epsilons only, and the sum of deltas goes beyond its own",
        "full batches",
        edit(
            f"{_FILTERS}.admits",
            (" and delta <= self.delta * SLACK", " and max(c.delta for c in charges) <= self.delta"),
        ),
    ),
    bug(
        "the anchor's first sum",
        "the anchor keeps the sum of charges that it knew first, so a lost ledger is reconciled at less",
        "guarded moments",
        edit(
            "fedcore.ledger.chained_file:ChainedFile._write_anchor",
            (
                "alike = known is not None and (known.trail, known.order) == (state.trail, order)",
                "alike = known is not None and bool(state.entries[1:]) and known.totals.mu_squared > 0.0",
            ),
        ),
    ),
    bug(
        "an anchor of what is not a release",
        "releases do not move the anchor, so a copy from before them is taken, and their rounds asked again",
        "guarded",
        edit(
            "fedcore.ledger.chained_file:ChainedFile._write_anchor",
            (
                "if self._closed:",
                "if not durable and self._anchor.mark is not None:\n        return\n    if self._closed:",
            ),
        ),
    ),
    bug(
        "the last reconciliation counts",
        "what a reconciliation added takes the place of what earlier ones did, which was spent as well",
        "guarded moments",
        edit(
            "fedcore.ledger.state:LedgerState.take",
            ("self._lost.append(charge_of(body))", "self._lost = [charge_of(body)]"),
        ),
    ),
    bug(
        "reconciled at what is there",
        "open runs are closed at the releases that a damaged ledger still has, and those that it lost are free",
        "guarded differences",
        edit(
            "fedcore.ledger.sqlite:SqliteLedger.reconcile",
            ("state, mark =", "from fedcore.accounting.composition import worst_mu_squared\n    state, mark ="),
            (
                "self._closing(run, charges[run], len(entries))",
                "self._closing(run, settled(charges[run], worst_mu_squared(events := self.events(run)), "
                "events, order), "
                "len(entries))",
            ),
        ),
    ),
    bug(
        "migrated charges without their square",
        "an older ledger's mu^2 is carried over as mu, which is less for every run that cost much",
        "guarded",
        edit(
            "fedcore.ledger.migration:_run",
            ("Charge(spent,", "Charge(math.sqrt(spent),"),
            ("if not spent <=", "if not math.sqrt(spent) <="),
        ),
    ),
    bug(
        "a run's name in every version",
        "runs of the same name on two versions of the data are one charge, the later one's",
        "guarded",
        edit("fedcore.ledger.operator.registered:RegisteredLedger.charges", ("{prefix + run: each", "{run: each")),
    ),
    bug(
        "versions are of other persons",
        "only the version itself counts once any is declared to be of others, also for those that share",
        "guarded",
        edit(
            "fedcore.ledger.operator.accounts:Account.sharing",
            (
                "not self.versions[order[max(place, at)]].disjoint",
                "not any(v.disjoint for v in self.versions.values())",
            ),
        ),
    ),
    bug(
        "runs do not add up in a statement",
        "a statement takes runs for parallel, as if each were about other records, and says the largest alone",
        "guarded differences",
        edit("fedcore.ledger.account:account", ("charged = math.fsum(", "charged = max(")),
    ),
)
