"""The release of statistics before a run, begun or resumed, and the constants computed from it.

The release takes the path of every release: plan, approval, cap, ledger. Its query depends on public numbers alone and
is stored before it is sent; a silo that has answered sends the same bytes again. No run repeats a finished release:
the constants are post-processing.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

from fedcore.arrays import Vector
from fedcore.data.silo_file import Released
from fedcore.errors import InputError
from fedcore.experiment.identity import code_version
from fedcore.experiment.released.kinds import required_statistic
from fedcore.experiment.released.statistic import Eigenvalues
from fedcore.experiment.result import SiloResult, StatisticsResult
from fedcore.experiment.statistics_run import StatisticsRun
from fedcore.experiment.stored.binding import versions
from fedcore.federation.comparison import compare
from fedcore.federation.in_process import Backend
from tasks.run_file import read_meta
from tasks.run_store import RunStore


def is_released(path: Path) -> bool:
    """True if the checkpoint at `path` holds a finished release."""
    return read_meta(path).get("state") == "FINISHED"


def release(run: StatisticsRun, backend: Backend, store: RunStore) -> StatisticsResult:
    """Queries every silo once, compares ledgers with the plan, closes the run there; returns the result.

    Raises SiloError of a silo that refuses, or whose ledger shows more than the plan; InputError for a checkpoint of
    another plan or other silos. Where ledgers are durable, other code may resume: the ledgers hold the sent answers.
    """
    context, method = run.context, run.method
    state: Any
    _bind(run, store)
    loaded = store.load(method.state)
    if loaded is None:
        state = method.init(run.start())
        query = context.query(state)
        store.save(state, query)
    else:
        state, query = loaded
    backend.open()
    receipts = list(store.receipts())
    backend.restore(run.run, receipts)
    if query is not None:
        releases = backend.ask(query)
        state = context.fold(state, query, releases)
        receipts += (new := releases.receipts)
        store.save(state, None, receipts=new)
    accounts = backend.accounts(run.run)
    compare(run.plan, Counter(receipt.silo for receipt in receipts), accounts)
    backend.close_run(run.run)
    result = StatisticsResult(
        run=run.run,
        epsilon_target=run.plan.problem.budget.epsilon,
        epsilon_accounted=_finite(max(account.epsilon for account in accounts)),
        delta=max(account.delta for account in accounts),
        numbers=run.plan.problem.objective.dim,
        moments_sha256=_digest(method.output(state)),
        silos=tuple(
            SiloResult(silo=a.silo, n=a.n, releases=a.releases, epsilon=_finite(a.epsilon), delta=a.delta)
            for a in accounts
        ),
        code=code_version(),
    )
    store.set_meta(result=json.dumps(result.as_json()), state="FINISHED")
    return result


def released_constants(run: StatisticsRun, silo_root: Path, store: RunStore) -> Released | Eigenvalues:
    """The constants of a finished release, `StatisticsRun.constants`, checked against its checkpoint.

    Raises InputError if the moments differ from the released ones, or the constants from those first computed.
    """
    _bind(run, store)
    meta, loaded = store.meta(), store.load(run.method.state)
    moments = None if loaded is None else run.method.output(loaded[0])
    if moments is None or _digest(moments) != StatisticsResult.model_validate_json(meta["result"]).moments_sha256:
        raise InputError(
            f"statistics {run.run}: the moments in {store.path} are not those that the silos released; put the file "
            f"back from a copy. Another seed or {required_statistic(run.config).section.key}.epsilon asks the silos "
            "again, and is charged"
        )
    released = run.constants(silo_root, moments)
    if isinstance(released, Eigenvalues):
        return released
    constants, _ = released
    key = f"constants-{constants.dim}"
    if meta.setdefault(key, constants.digest) != constants.digest:
        raise InputError(
            f"statistics {run.run}: {constants.path} does not hold the constants that were computed from the released "
            "moments; move its folder away and it is made again"
        )
    store.set_meta(**{key: constants.digest})
    return released


def _bind(run: StatisticsRun, store: RunStore) -> None:
    """Binds the checkpoint to the plan and the silos; raises InputError if it is bound to others."""
    meta, mine = store.meta(), {"plan": run.plan.digest, "silos": run.dataset.name}
    if run.config.privacy.ledger == "memory" and meta.get("state") != "FINISHED":
        # A ledger in memory loses an answer that no checkpoint has yet; other arithmetic could give it other bits.
        mine |= versions()
    older = meta.get("state") != "FINISHED" and "code" in meta and "arithmetic" not in meta
    if older and run.config.privacy.ledger == "memory":
        raise InputError(
            f"statistics {run.run}: begun by code {meta['code']}, which bound them to its own source files; this is "
            f"{code_version()}. Go on with the same code, or ask the silos for others: change "
            f"{required_statistic(run.config).charged_again}"
        )
    for key, value in mine.items():
        if meta.get(key, value) != value:
            raise InputError(
                f"statistics {run.run}: asked for with {key} {meta[key][:40]}, this is {value[:40]}; go on with the "
                f"same {key}, or ask the silos for others, which is charged: change "
                f"{required_statistic(run.config).charged_again}"
            )
    store.set_meta(**mine)


def _digest(moments: Vector) -> str:
    return hashlib.sha256(moments.tobytes()).hexdigest()


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
