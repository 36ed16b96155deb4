"""Bugs of costs: events, their composition, a plan's charge, a silo's statement."""

from __future__ import annotations

from tests.audit.bug import Bug, bug, edit

_COMPOSITION = "fedcore.accounting.composition"

BUGS: tuple[Bug, ...] = (
    bug(
        "the last event of a kind",
        "sampled answers of one kind count as the last event of it does, which in a ledger is one round",
        "coins",
        edit(f"{_COMPOSITION}:participation_of", ("] += event.count", "] = event.count")),
    ),
    bug(
        "phases are disjoint",
        "the worst position pays its dearest kind of answer and not all of them, restarts without differences",
        "guarded differences",
        edit(
            f"{_COMPOSITION}:_worst_mu_squared",
            ("math.fsum(here.elements())", "max((mu * times for mu, times in here.items()), default=0.0)"),
        ),
    ),
    bug(
        "answers of this process",
        "a statement counts as many events as the process has computed, so a resumed run's are less",
        "guarded",
        edit(
            "fedcore.silo.account:account",
            ("events = silo.ledger.events(run)", "events = silo.ledger.events(run)[: silo.computed]"),
        ),
    ),
    bug(
        "a round is an answer",
        "a phase's events are as many as its rounds, so local steps cost a plan as if each round had one",
        "guarded local steps",
        edit("fedcore.planning.phase:Phase.events", ("count = self.most_answers if not", "count = self.rounds if not")),
    ),
    bug(
        "a round's event is one answer",
        "what is committed of a round has one answer, whatever the number of its steps, and closes at less",
        "local steps",
        edit(
            "fedcore.silo.round_view:RoundView.event",
            ("return self._shard.event", "return replace(self._shard.event, count=1)"),
        ),
    ),
    bug(
        "decimal logarithms of delta",
        "delta's logarithm is to the base of ten, so noise is found and stated for a much larger delta",
        "guarded moments",
        edit("fedcore.accounting.gaussian:epsilon_of", ("target = math.log(delta)", "target = math.log10(delta)")),
        edit("fedcore.accounting.gaussian:mu_of", ("target = math.log(delta)", "target = math.log10(delta)")),
    ),
    bug(
        "a record comes or goes",
        "sensitivities are those of one record more or less, half of what one that is replaced moves",
        "guarded largest eigenvalue",
        edit(
            "fedcore.accounting.events:GaussianRelease.gdp_mu_squared",
            ("(self.sensitivity / self.sigma)", "(self.sensitivity / 2.0 / self.sigma)"),
        ),
        edit(
            "fedcore.accounting.calibration:Budget.sigma_for",
            (
                "return event.sensitivity * math.sqrt(event.count) / mu_of(self.epsilon, left)",
                "return event.sensitivity / 2.0 * math.sqrt(event.count) / mu_of(self.epsilon, left)",
            ),
        ),
    ),
    bug(
        "kinds of noise to the next quarter",
        "multipliers are rounded up to quarters to have few kinds, so noise is found at the lower end of one",
        "coins",
        edit(
            f"{_COMPOSITION}:settled",
            (
                "return math.ldexp(math.floor(mantissa * 2.0**40), exponent - 40)",
                "return math.ldexp(math.ceil(mantissa * 4.0), exponent - 2)",
            ),
        ),
    ),
)
