"""Training and planning from Python: a config made of arguments, and its rounds in this process.

Silos are simulated, with ledgers in memory: nothing is kept on disk, and what was spent is forgotten with the process.
The command line keeps runs, resumes them, and has what is refused here: shufflers, guarded silos, released statistics.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedcore.arrays import Vector
from fedcore.configfile import validated
from fedcore.errors import InputError
from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.evaluation import measures
from fedcore.experiment.experiment import Experiment, make_plan
from fedcore.experiment.identity import run_id
from fedcore.experiment.loading import load_experiment
from fedcore.experiment.result import stamp
from fedcore.experiment.spending import is_shown, spent_so_far
from fedcore.federation.comparison import compare
from fedcore.federation.rounds import rounds
from fedcore.home import LedgerFolders
from fedcore.library.silos import Records, Silos, data_section
from fedcore.library.trained import Trained
from fedcore.messages import Query
from fedcore.paths import Anchor
from fedcore.planning.plan import Plan
from fedcore.planning.size import Size


def train(
    silos: Silos | str | Path, *overrides: str, test: Records | str | Path | None = None, epsilon: float | None = None,
    algorithm: str | Mapping[str, Any] = "mbsgd", label: str | None = None, features: Any = None,
    classes: Sequence[str | int] | None = (0, 1), yes: bool = False, **sections: Any,
) -> Trained:  # fmt: skip
    """Trains one model on all silos; returns it with its rounds and what it cost.

    `silos`: by name features (n, k) and labels (n,), or files (CSV, Parquet), for which `label` and `features` name the
    columns; or a config file, with `overrides` as on the command line and nothing else. `test`: public records that no
    silo holds. `epsilon`: for each record of each silo, for the whole training; null only with privacy={"trust":
    "none"}. `algorithm`: a method's name, or the section of it. `classes`: the label's values, which are public; null
    for a real-valued label. `sections`: other keys and sections of a config (seed, model, privacy, ..), as mappings.
    `yes`: to more than a million rounds, as `--yes` on the command line.
    Raises InputError for a mistake, SiloError where a silo refuses.
    """
    with tempfile.TemporaryDirectory(prefix="fedcore-") as folder:
        config = _config(silos, overrides, Path(folder), test, epsilon, algorithm, label, features, classes, sections)
        size = Size.of(make_plan(config), durable=False)
        if size.large and not yes:
            raise InputError(f"this would take {size.words}; give yes=True to begin it all the same")
        experiment = Experiment.prepare(config, Path(folder) / "silos")
        if isinstance(silos, Mapping):  # of arrays, places are seen from their folder, which is another at each call
            experiment = replace(experiment, run=run_id(config, Anchor.of(Path(folder) / "home")))
        return _trained(experiment, Path(folder))


def plan(
    silos: Silos | str | Path, *overrides: str, epsilon: float | None = None,
    algorithm: str | Mapping[str, Any] = "mbsgd", label: str | None = None, features: Any = None,
    classes: Sequence[str | int] | None = (0, 1), **sections: Any,
) -> Plan:  # fmt: skip
    """The plan of such a training, from the numbers of records alone: every phase with its noise and its epsilon.

    Arguments and errors are those of `train`; `Plan.as_json()` has all of it as plain values.
    """
    with tempfile.TemporaryDirectory(prefix="fedcore-") as folder:
        return make_plan(
            _config(silos, overrides, Path(folder), None, epsilon, algorithm, label, features, classes, sections)
        )


def _config(
    silos: Silos | str | Path, overrides: Sequence[str], folder: Path, test: Records | str | Path | None,
    epsilon: float | None, algorithm: str | Mapping[str, Any], label: str | None, features: Any,
    classes: Sequence[str | int] | None, sections: Mapping[str, Any],
) -> ExperimentConfig:  # fmt: skip
    if isinstance(silos, str | Path):
        others = {"test": test, "epsilon": epsilon, "label": label, "features": features, **sections}
        said = [name for name, value in others.items() if value is not None]
        if said or algorithm != "mbsgd":
            raise InputError(
                f"{silos}: a config file says everything itself; change it by overrides, as 'privacy.epsilon=1', and "
                f"leave out {', '.join(said or ['algorithm'])}"
            )
        config = load_experiment(silos, overrides)
    else:
        if overrides:
            raise InputError(f"{overrides[0]!r}: overrides are for a config file; give sections as arguments")
        values = {key: dict(value) if isinstance(value, Mapping) else value for key, value in sections.items()}
        if "data" in values:
            raise InputError("data= follows from silos; a config file can have other sources")
        values["data"] = data_section(silos, test, folder, label, features, classes)
        values["algorithm"] = {"name": algorithm} if isinstance(algorithm, str) else dict(algorithm)
        values["privacy"] = {**values.get("privacy", {}), **({} if epsilon is None else {"epsilon": epsilon})}
        config = validated(ExperimentConfig, values, "fedcore")
    wanted = {
        "privacy.noise = guarded": config.privacy.noise == "guarded",
        "privacy.ledger = sqlite": config.privacy.ledger != "memory",
        "privacy.trust = shuffler": config.shuffler is not None or config.privacy.trust == "shuffler",
        "a release of statistics": config.released is not None,
        "evaluation": config.evaluation is not None,
    }
    refused = [name for name, is_asked in wanted.items() if is_asked]
    if refused:
        raise InputError(f"{refused[0]} needs the command line: `fedcore run` keeps what it takes")
    return config


def _trained(experiment: Experiment, folder: Path) -> Trained:
    import pandas as pd

    plan, test, config = experiment.plan, experiment.dataset.test, experiment.config
    backend, context = experiment.in_process(LedgerFolders.below(folder)), experiment.context
    answered = Counter[str]()
    rows: list[dict[str, Any]] = []
    up = down = 0
    with contextlib.closing(backend):
        backend.open()
        w = experiment.start()
        for query, releases, state in rounds(context, context.method.init(w), backend.ask):
            answered.update(release.silo for release in releases)
            up += sum(release.payload.size for release in releases)
            down += sum(array.size for name in query.participants for array in query.asked(name).values())
            w = context.method.output(state)
            rows.append(_row(experiment, query, w) | {"floats_up": up, "floats_down": down})
        accounts = tuple(backend.accounts(experiment.run))
        compare(plan, answered.elements(), accounts)
        backend.close_run(experiment.run)
    ends = experiment.dataset.sources[0].label_range
    found = {} if test is None else measures(experiment.model, w, test, config.data.label_values, ends)
    table = pd.DataFrame(rows).set_index("round")
    return Trained(config, plan, w, table, found, accounts, stamp(config))


def _row(experiment: Experiment, query: Query, w: Vector) -> dict[str, Any]:
    """What is public of a round: where it is, what has been spent, how the model does on public records."""
    plan, test, every = experiment.plan, experiment.dataset.test, experiment.config.tracking.evaluate_every
    row: dict[str, Any] = {"round": plan.position(query.phase, query.round), "phase": query.phase}
    if plan.problem.budget.private and is_shown(plan, query.phase, query.round):
        row["epsilon"] = spent_so_far(plan, None, query.phase, query.round).get("epsilon_accounted")
    last = query.round == plan.phases[query.phase - 1].rounds
    if test is not None and (last or query.round % every == 0):
        losses, wrong = experiment.model.evaluate(w, test.X, test.y)
        row["test_loss"] = float(np.mean(losses))
        if wrong is not None:
            row["test_error"] = float(np.mean(wrong))
    return row
