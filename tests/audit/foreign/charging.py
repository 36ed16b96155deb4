"""Bugs of charges: sensitivities, curves, counts, deltas, composition, refunds and caps."""

from __future__ import annotations

import math
from contextlib import contextmanager
from dataclasses import replace
from unittest.mock import patch

from fedcore.accounting.loss_distributions.loss_curves import SAMPLED
from tests.audit.bug import Bug, as_if

SENSITIVITY = "fedcore.accounting.events:mean_sensitivity"
MU_OF = "fedcore.accounting.gaussian:mu_of"
EPSILON_OF = "fedcore.accounting.gaussian:epsilon_of"
WORST = "fedcore.accounting.composition:worst_mu_squared"
EVENT = "fedcore.planning.phase:Phase.event"
MOST = "fedcore.planning.phase:Phase.most_answers"


def sensitivity(factor):
    """Sensitivities times factor(records)."""

    def moved(right):
        def changed(clip, records, mechanism="gaussian", slack=None):
            return right(clip, records, mechanism, slack) * factor(records)

        return changed

    return as_if((SENSITIVITY, moved))


@contextmanager
def curve(sampling, new):
    """The curve of a sampling scheme is new(right one)."""
    with patch.dict(SAMPLED, {sampling: new(SAMPLED[sampling])}):
        yield


def _deltas(factor):
    return as_if(
        (MU_OF, lambda right: lambda epsilon, delta: right(epsilon, min(factor * delta, 0.9))),
        (EPSILON_OF, lambda right: lambda mu, delta: right(mu, min(factor * delta, 0.9))),
    )


def _half_mu(right):
    return lambda events: right(events) / 4.0


def _once(right):
    return lambda events: right(set(events))


def _most_only(right):
    def worst(events):
        listed = list(events)
        return max((right([event] * listed.count(event)) for event in set(listed)), default=0.0)

    return worst


def _halves(right):
    """Odd rounds are booked for the first half of the records, even ones for the second."""

    def event(self):
        booked = right.fget(self)
        middle = (booked.start + booked.stop) // 2
        return replace(booked, stop=middle) if self._place[2] % 2 else replace(booked, start=middle)

    return property(event)


def _no_evaluations(right):
    def charged(self, silo):
        return [event for phase in self.phases if not phase.evaluates for event in phase.charged(silo)]

    return charged


def _half_noise(right):
    def share(*asked):
        found = right(*asked)
        return replace(found, sigma=found.sigma / 2.0)

    return share


def _open_close(right):
    """The refund is paid, and the run goes on."""

    def close_run(self, run, mu_squared, lease=None):
        if run in self._runs:
            self._charges[run] = replace(self._charges[run], mu_squared=mu_squared)

    return close_run


def _last_run(right):
    return lambda self, charges: right(self, charges[-1:])


def _open_only(right):
    return lambda self: {run: charge for run, charge in right(self).items() if run not in self._closed}


def _lost_rows(right):
    def restore(self, run, receipts):
        return right(self, run, list(receipts)[::2])

    return restore


def _newest_only(right):
    return lambda self, run: right(self, run)[-len(right(self, run)) // 2 :]


def _participation(right):
    """Charges are those of a server that draws the silo in nine rounds of ten."""
    return lambda events: 0.9 * right(events)


def _first_phase(right):
    return lambda self, silo: right(self, silo)[:1]


BUGS = (
    Bug(
        "half a sensitivity",
        "adjacency: a replaced record is charged as one added or removed, half of the change",
        lambda: sensitivity(lambda n: 0.5),
    ),
    Bug(
        "half a sensitivity of samples",
        "adjacency: half of the change by a replaced record, in samples too",
        lambda: sensitivity(lambda n: 0.5),
        "local steps",
    ),
    Bug(
        "sensitivity over one record more",
        "sensitivity: divided by n + 1 where the mean is over n",
        lambda: sensitivity(lambda n: n / (n + 1.0)),
    ),
    Bug(
        "sensitivity of ninety percent",
        "sensitivity: 10 % less than the change",
        lambda: sensitivity(lambda n: 0.9),
        "moments",
    ),
    Bug(
        "half a sensitivity on the grid",
        "adjacency: half of the change, of guarded silos",
        lambda: as_if(
            (
                SENSITIVITY,
                lambda right: lambda clip, n, mechanism="gaussian", slack=None: right(clip, n, mechanism, slack) / 2.0,
            ),
            ("fedcore.mechanisms.grid:grid_sensitivity", lambda right: lambda moved, step, dim: moved),
        ),
        "guarded",
    ),
    Bug(
        "curve of twice the noise",
        "accounting: a Poisson sample's noise is taken relative to half of the change",
        lambda: curve("poisson", lambda right: lambda rate, multiplier: right(rate, 2.0 * multiplier)),
        "coins",
    ),
    Bug(
        "curve of half the rate",
        "accounting: a Poisson sample is charged at half of its rate",
        lambda: curve("poisson", lambda right: lambda rate, multiplier: right(rate / 2.0, multiplier)),
        "coins",
    ),
    Bug(
        "curve of nine tenths of the rate",
        "accounting: a Poisson sample is charged at 0.9 of its rate",
        lambda: curve("poisson", lambda right: lambda rate, multiplier: right(0.9 * rate, multiplier)),
        "coins",
    ),
    Bug(
        "fixed size as coins",
        "accounting: samples of fixed size are charged as Poisson ones, half of the change",
        lambda: curve("without-replacement", lambda right: SAMPLED["poisson"]),
        "local steps",
    ),
    Bug(
        "fixed size at the rate squared",
        "accounting: samples of fixed size are charged at the square of their rate",
        lambda: curve("without-replacement", lambda right: lambda rate, m: right(rate * rate, m)),
        "control variates",
    ),
    Bug("delta ten times", "delta: targets are met at ten times the delta that is agreed", lambda: _deltas(10.0)),
    Bug("delta twice", "delta: targets are met at twice the delta that is agreed", lambda: _deltas(2.0), "shards"),
    Bug(
        "delta of one record in n",
        "delta: 1 / n^1.2 stands for the agreed 1 / n^2",
        lambda: as_if(
            (
                "fedcore.accounting.calibration:Budget.delta",
                lambda right: lambda self, n: self.fixed_delta if self.fixed_delta is not None else n**-1.2,
            )
        ),
    ),
    Bug(
        "a quarter of mu squared",
        "composition: mu^2 of all events together is divided by 4",
        lambda: as_if((WORST, _half_mu)),
    ),
    Bug(
        "equal events once",
        "composition: equal releases count once, so a closed run pays for one round",
        lambda: as_if((WORST, _once)),
    ),
    Bug(
        "kinds in parallel",
        "composition: restarts and differences are charged as if about other records",
        lambda: as_if(
            (WORST, _most_only),
            ("fedcore.planning.phases.difference_phase:_part_of_budget", lambda right: lambda *_: 1.0),
        ),
        "differences",
    ),
    Bug(
        "one round less",
        "charge: of R rounds R - 1 are charged",
        lambda: as_if((MOST, lambda right: property(lambda self: max(1, right.fget(self) - 1)))),
    ),
    Bug(
        "steps of a round once",
        "charge: K local steps of a round are charged as one answer at approval",
        lambda: as_if((MOST, lambda right: property(lambda self: right.fget(self) // self.schedule.answers))),
        "local steps",
    ),
    Bug(
        "steps of a round booked once",
        "charge: the ledger's event of a round has one answer where K were given",
        lambda: as_if((EVENT, lambda right: lambda self, silo, round: replace(right(self, silo, round), count=1))),
        "local steps",
    ),
    Bug(
        "rounds booked by halves",
        "composition: rounds are booked for halves of the records, about all of them",
        lambda: as_if(("fedcore.silo.round_view:RoundView.event", _halves)),
    ),
    Bug(
        "evaluations for nothing",
        "charge: evaluations are left out of a plan's charge, and have half of their noise",
        lambda: as_if(
            ("fedcore.planning.plan:Plan.charged_events", _no_evaluations),
            ("fedcore.planning.invariants:check_plan", lambda right: lambda plan, silos: None),
            ("fedcore.planning.phases.evaluation_phase:_share", _half_noise),
        ),
        "evaluations",
    ),
    Bug(
        "refund of everything",
        "refund: a closed run is charged nothing",
        lambda: as_if(
            (
                "fedcore.ledger.ledger:settled",
                lambda right: lambda charge, mu_squared, *rest: replace(charge, mu_squared=0.0, epsilon=0.0),
            )
        ),
    ),
    Bug(
        "refund of a tenth",
        "refund: a closed run is charged 0.9 of what its releases spent",
        lambda: as_if(
            (
                "fedcore.ledger.ledger:settled",
                lambda right: lambda charge, mu_squared, *rest: right(charge, 0.9 * mu_squared, *rest),
            )
        ),
        "coins",
    ),
    Bug(
        "refund by newest half",
        "refund: a run pays for the newer half of its releases",
        lambda: as_if(("fedcore.ledger.memory:MemoryLedger.events", _newest_only)),
        "softmax",
    ),
    Bug(
        "refund and go on",
        "refund: a closed run is refunded and answers on",
        lambda: as_if(("fedcore.ledger.memory:MemoryLedger.close_run", _open_close)),
    ),
    Bug(
        "cap of the last run",
        "cap: looks at the run that asks and at none before it",
        lambda: as_if(("fedcore.accounting.filters:Cap.admits", _last_run)),
    ),
    Bug(
        "closed runs are free",
        "cap: runs that are closed are not among the charges",
        lambda: as_if(
            ("fedcore.ledger.memory:MemoryLedger.charges", _open_only),
            ("fedcore.accounting.filters:Cap.admits", _last_run),
        ),
    ),
    Bug(
        "cap of a half more",
        "cap: mu^2 of all runs may be 1.5 times what the cap allows",
        lambda: as_if(
            ("fedcore.accounting.filters:Cap._largest_mu_squared", lambda right: lambda self: 1.5 * right(self))
        ),
    ),
    Bug(
        "rows lost on resuming",
        "ledger: a resumed run forgets each second release, and answers it anew as another",
        lambda: as_if(("fedcore.ledger.memory:MemoryLedger.restore", _lost_rows)),
    ),
    Bug(
        "rounds at a share",
        "composition: mu^2 is charged as if one round in ten left the silo out",
        lambda: as_if((WORST, _participation)),
        "shards",
    ),
    Bug(
        "only the first phase charged",
        "charge: phases after the first are charged nothing",
        lambda: as_if(("fedcore.planning.plan:Plan.charged_events", _first_phase)),
        "control variates",
    ),
    Bug(
        "noise of a smaller target",
        "calibration: mu of 1.25 epsilon stands for that of epsilon, and is accounted so",
        lambda: as_if(
            (MU_OF, lambda right: lambda epsilon, delta: right(1.25 * epsilon, delta)),
            (EPSILON_OF, lambda right: lambda mu, delta: right(mu, delta) / 1.25),
        ),
        "column moments",
    ),
    Bug(
        "square root of mu squared",
        "calibration: rounds add as a root, so 120 of them have too little noise",
        lambda: as_if(
            (
                "fedcore.accounting.events:GaussianRelease.gdp_mu_squared",
                lambda right: property(lambda self: right.fget(self) / math.sqrt(self.count)),
            ),
            (
                "fedcore.accounting.calibration:Budget.sigma_for",
                lambda right: lambda self, event, n, formula: right(self, event, n, formula) / event.count**0.25,
            ),
        ),
    ),
)
