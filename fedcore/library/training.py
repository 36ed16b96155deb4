"""Training and planning from Python: a config from arguments, and its rounds in this process.

Ledgers are in memory, so charges are lost when the process ends. Noise of arrays and files is secret unless a seed is
given. Two calls with one seed share all noise, and the difference of their models could reveal a record. The command
line stores and resumes runs; it also has shufflers, guarded silos and held-out records, which are refused here.
"""

from __future__ import annotations

import contextlib
import secrets
import tempfile
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedcore.accounting.tiny_silos import warning
from fedcore.arrays import Vector
from fedcore.directed_rounding import in_full, shown_up
from fedcore.errors import InputError, ModelWarning
from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.evaluation import measures
from fedcore.experiment.experiment import Experiment, make_plan
from fedcore.experiment.identity import run_id
from fedcore.experiment.result import stamp
from fedcore.experiment.served.phase_model import phase_model
from fedcore.experiment.spending import is_shown, spent_so_far
from fedcore.experiment.statistics import composed_epsilon, largest_composed, statistics_id
from fedcore.experiment.statistics_run import StatisticsRun
from fedcore.federation.comparison import compare
from fedcore.federation.rounds import RunContext, rounds
from fedcore.home import Home, LedgerFolders
from fedcore.library.arguments import Arguments, placed
from fedcore.library.scales import warn_of_sizes
from fedcore.library.silos import Records, Silos
from fedcore.library.trained import Trained
from fedcore.messages import Query
from fedcore.paths import Anchor
from fedcore.planning.plan import Plan
from fedcore.planning.size import Size
from fedcore.silo.account import SiloAccount
from fedcore.silo.keys import Keys, SecretKeys


def train(
    silos: Silos | str | Path,
    *overrides: str,
    test: Records | str | Path | None = None,
    epsilon: float | None = None,
    algorithm: str | Mapping[str, Any] = "mbsgd",
    label: str | None = None,
    features: Any = None,
    classes: Sequence[str | int] | None = (0, 1),
    scale: Any = None,
    seed: int | None = None,
    yes: bool = False,
    **sections: Any,
) -> Trained:
    """Trains one model on all silos; returns it with its rounds and its privacy cost.

    Parameters
    ----------
    silos : mapping, or a config file
        By name, features (n, k) and labels (n,): arrays, DataFrames or Arrow tables. Columns with names are matched by
        name. Or files by name (CSV, Parquet), for which `label` and `features` name the columns. Or a config file, with
        `overrides` alone, as on the command line.
    test : pair or file, optional
        Public records that no silo holds. Without them the model's error is unknown.
    epsilon : float
        Guarantee for each record of each silo, for the whole training. None only with privacy={"trust": "none"}.
    algorithm : str or mapping
        A method's name, or its section. Example: {"name": "mbsgd", "rounds": 20}.
    classes : sequence, or None
        The label's values, which are public; of two the second is +1. None for a real-valued label.
    scale : "test", ranges, "released", or a section of `data.scaling`
        Source of the columns' common scale. "test": means and deviations of the test records. Ranges: public ones,
        {"age": (20, 90), ..} or a pair for each column. "released": moments that silos release with a fifth of
        `epsilon`, within the ranges of the test records. None: no scaling. A warning names test columns that differ
        in size.
    seed : int, optional
        Makes a repeatable simulation: all noise follows from this public seed. Calls that differ in data or a setting
        share their noise. None: secret noise, new at each call; a config file has its own seed.
    yes : bool
        Starts more than a million rounds, as `--yes` on the command line.
    **sections
        Other keys and sections of a config, as mappings: model={"diameter": 10}, privacy={"delta": 1e-6}.

    Raises InputError for a mistake, SiloError if a silo refuses. Warns with ModelWarning if delta is large, or if the
    model is no better on the test records than a constant answer.

    Examples
    --------
    >>> import fedcore, numpy as np
    >>> X = np.random.default_rng(0).standard_normal((600, 2))
    >>> y = X[:, 0] > X[:, 1]

    >>> silos = {"north": (X[:200], y[:200]), "south": (X[200:400], y[200:400])}
    >>> model = fedcore.train(silos, test=(X[400:], y[400:]), epsilon=2)
    >>> model.predict([[1.0, -1.0], [-1.0, 1.0]])
    array([1, 0])
    """
    if not isinstance(yes, bool):
        raise InputError("yes= is True or False")
    if seed is not None:
        sections["seed"] = seed
    if (home := Home.current().root).exists() and not home.is_dir():
        raise InputError(f"FEDCORE_HOME = {home} is no folder; name one, or leave the variable out")
    with tempfile.TemporaryDirectory(prefix="fedcore-") as folder:
        arguments = Arguments(
            silos, overrides, Path(folder), test, epsilon, algorithm, label, features, classes, scale, sections
        )
        with arguments.without_paths():
            config = arguments.config(check_values=True)
            made = make_plan(config)
            size = Size.of(made, durable=False)
            if size.large and not yes:
                raise InputError(f"this would take {size.words}; give yes=True to begin it all the same")
            warn_of_sizes(config.data, stacklevel=2)
            budget = made.problem.budget
            if budget.private and (large := warning(made.problem.sizes, budget.fixed_delta, made.problem.unit)):
                warnings.warn(large, ModelWarning, stacklevel=2)
            trained = _trained(config, arguments)
    if (short := trained.shortfall) is not None:
        warnings.warn(f"the model is {short}", ModelWarning, stacklevel=2)
    return trained


def plan(
    silos: Silos | str | Path,
    *overrides: str,
    epsilon: float | None = None,
    algorithm: str | Mapping[str, Any] = "mbsgd",
    label: str | None = None,
    features: Any = None,
    classes: Sequence[str | int] | None = (0, 1),
    scale: Any = None,
    test: Records | str | Path | None = None,
    **sections: Any,
) -> Plan:
    """Plans such a training from numbers of records alone: every phase, noise and epsilon.

    Arguments and errors are those of `train`; `Plan.as_json()` returns the plan as plain values. With released scales
    it covers the training after their release.

    Examples
    --------
    >>> import fedcore, numpy as np
    >>> X, y = np.zeros((200, 2)), np.zeros(200)
    >>> fedcore.plan({"north": (X, y)}, epsilon=2, algorithm={"name": "mbsgd", "rounds": 10}).rounds
    10
    """
    with tempfile.TemporaryDirectory(prefix="fedcore-") as folder:
        arguments = Arguments(
            silos, overrides, Path(folder), test, epsilon, algorithm, label, features, classes, scale, sections
        )
        with arguments.without_paths():
            return make_plan(arguments.config(check_values=False))


def _trained(config: ExperimentConfig, arguments: Arguments) -> Trained:
    import pandas as pd

    shown = placed(config) if arguments.has_arrays(config) else config
    keys = SecretKeys(secrets.token_bytes(32)) if arguments.secret else None
    experiment, before = _prepared(config, arguments, keys)
    made, test, context = experiment.plan, experiment.dataset.test, _context(experiment, keys)
    _check_total(arguments, experiment)
    answered = Counter[str]()
    rows: list[dict[str, Any]] = []
    up = down = 0
    with contextlib.closing(experiment.in_process(LedgerFolders.below(arguments.folder), keys=keys)) as backend:
        backend.open()
        w = experiment.start()
        for query, releases, state in rounds(context, context.method.init(w), backend.ask):
            answered.update(releases.silos)
            up += releases.payloads.size
            down += sum(array.size for name in query.participants for array in query.arrays_for(name).values())
            w = context.method.output(state)
            rows.append(_row(experiment, query, w) | {"floats_up": up, "floats_down": down})
        accounts = tuple(backend.accounts(experiment.run))
        compare(made, answered, accounts)
        backend.close_run(experiment.run)
    ends = experiment.dataset.sources[0].label_range
    found = {} if test is None else measures(experiment.model, w, test, config.data.label_values, ends)
    return Trained(
        config=shown,
        plan=made,
        model=phase_model(experiment, w),
        rounds=pd.DataFrame(rows).set_index("round"),
        measures=found,
        accounts=_both(accounts, before, made, experiment.statistics),
        noise=stamp(config, arguments.secret),
        statistics=experiment.statistics,
    )


def _prepared(
    config: ExperimentConfig, arguments: Arguments, keys: Keys | None
) -> tuple[Experiment, Sequence[SiloAccount]]:
    """The experiment after a release of its statistics, and the accounts of that release."""
    root = arguments.folder / "silos"
    # The folder of arrays changes with each call; paths relative to it make equal calls one run.
    anchor = Anchor.of(arguments.folder / "home") if isinstance(arguments.silos, Mapping) else None
    name = run_id(config, anchor)
    if config.released is None:
        return replace(Experiment.prepare(config, root), run=name), ()
    run = replace(StatisticsRun.prepare(config, root), run=statistics_id(config, anchor))
    context, answered = _context(run, keys), Counter[str]()
    with contextlib.closing(run.in_process(LedgerFolders.below(arguments.folder), keys=keys)) as backend:
        backend.open()
        state = context.method.init(run.start())
        for _, releases, after in rounds(context, state, backend.ask):
            state = after
            answered.update(releases.silos)
        accounts = tuple(backend.accounts(run.run))
        compare(run.plan, answered, accounts)
        backend.close_run(run.run)
    released = run.constants(root, context.method.output(state))
    return replace(Experiment.prepare(config, root, released), run=name), accounts


def _context(experiment: Experiment, keys: Keys | None) -> RunContext:
    """The driver's side of a run; secret keys make its own draws secret too."""
    return experiment.context if keys is None else replace(experiment.context, key=secrets.token_bytes(32))


def _check_total(arguments: Arguments, experiment: Experiment) -> None:
    """Raises InputError if released scales and training together spend more than `epsilon`."""
    named = isinstance(arguments.scale, str) and arguments.scale == "released"
    if not named or experiment.statistics is None or not experiment.plan.problem.budget.private:
        return
    total = largest_composed(experiment.plan, experiment.statistics)
    if not total <= arguments.total:
        raise InputError(
            f"scale='released': release and training together spend epsilon {shown_up(total)}, more than "
            f"{in_full(arguments.total)}; give the release one of its own, as scale={{'constants': 'released', "
            "'epsilon': ..}"
        )


def _both(
    accounts: Sequence[SiloAccount], before: Sequence[SiloAccount], made: Plan, statistics: Plan | None
) -> tuple[SiloAccount, ...]:
    """Silos' accounts of training and of the release before it, together."""
    earlier = {account.silo: account for account in before}
    return tuple(
        account
        if account.silo not in earlier
        else account._replace(
            releases=account.releases + earlier[account.silo].releases,
            computed=account.computed + earlier[account.silo].computed,
            epsilon=composed_epsilon(made, statistics, account.silo),
        )
        for account in accounts
    )


def _row(experiment: Experiment, query: Query, w: Vector) -> dict[str, Any]:
    """Public row of a round: number, phase, epsilon until then, measures on test records."""
    made, test, every = experiment.plan, experiment.dataset.test, experiment.config.tracking.evaluate_every
    row: dict[str, Any] = {"round": made.position(query.phase, query.round), "phase": query.phase}
    if made.problem.budget.private and is_shown(made, query.phase, query.round):
        row["epsilon"] = spent_so_far(made, experiment.statistics, query.phase, query.round).get("epsilon_accounted")
    last = query.round == made.phases[query.phase - 1].rounds
    if test is not None and (last or query.round % every == 0):
        losses, wrong = experiment.model.evaluate(w, test.X, test.y)
        row["test_loss"] = float(np.mean(losses))
        if wrong is not None:
            row["test_error"] = float(np.mean(wrong))
    return row
