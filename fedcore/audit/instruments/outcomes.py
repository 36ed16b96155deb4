"""Test that only noised numbers depend on records: equal questions, keys and addresses, other records.

A silo that fails, refuses, warns or changes its answer's shape because of a record reveals it without any noise.
"""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from fedcore.audit.audit_session import AuditSession
from fedcore.audit.audited_silo import AuditedSilo
from fedcore.audit.finding import Finding
from fedcore.audit.probes import refusal_of_losses
from fedcore.audit.scenes import mixed_records
from fedcore.data.records import Records
from fedcore.errors import SiloError

ASKED = 2
"""Number of addresses of each data set, the first and the last among them."""
VALUES = (
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.5,
    1e-3,
    5e-324,
    1e-310,
    -1e-200,
    1e-160,
    1e3,
    1e6,
    -1e9,
    1e13,
    1e17,
    1e30,
    1e75,
    1e100,
    1e154,
    -1e155,
    1e200,
    1e300,
    1.7976931348623157e308,
    -1.7976931348623157e308,
    np.nan,
    np.inf,
    -np.inf,
)
"""Features of unusual records."""
NO_CLASS = (0.5, np.nan, np.inf, -np.inf)
"""Labels of unusual records, outside of every model's classes."""
LABELS = (0.0, 1.0, -1.0, 5e-324, 1e6, -1e9, 1e154, -1e200, 1.7976931348623157e308)
"""Further labels of unusual records, where labels are real numbers."""


class _LogLines(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.NOTSET)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(f"{record.name} {record.levelno} {record.getMessage()}")


def outcomes(audited: AuditedSilo, rng: np.random.Generator) -> Finding:
    """Compares all outcomes between data sets except the numbers of answers.

    Compared are failures, refusals and their sentences, forms and sizes of answers, rows, counts, warnings, log lines
    and output. Data sets differ in one record, at the first or the last place of the file, or in all of them; the
    silo's split is the same. statistic: data sets that differ from the first; threshold: 0; no chance.
    """
    usual = mixed_records(audited, rng)
    expected = _outcome(audited, usual)
    odd, many = [], 0
    if any(kind != "answer" for kind, *_ in expected[0]) or any(kind == "error" for kind, *_ in expected[1]):
        odd.append(f"usual records: {expected[:2]}")
    for name, records in neighbours(audited, usual, rng):
        many += 1
        found = _outcome(audited, records)
        if found != expected:
            which = next((pair for pair in zip(found, expected, strict=True) if pair[0] != pair[1]), ())
            odd.append(f"{name}: {str(which[:1])[:160]}")
    detail = f"of {many} other data sets {len(odd)} have another outcome than the first"
    if odd:
        detail += f"; {odd[0]}"
    return Finding("outcomes", not odd, float(len(odd)), 0.0, 0.0, detail)


def _outcome(audited: AuditedSilo, records: Records) -> tuple[Any, ...]:
    """All outcomes of a run except the numbers of answers: asked, asked again, accounted for and closed."""
    chosen, run = audited.spread(ASKED), "audit-outcomes"
    logged, out, happened = _LogLines(), io.StringIO(), []
    root, level = logging.getLogger(), logging.getLogger().level
    with contextlib.ExitStack() as watched:
        caught = watched.enter_context(warnings.catch_warnings(record=True))
        warnings.simplefilter("always")
        watched.enter_context(contextlib.redirect_stdout(out))
        watched.enter_context(contextlib.redirect_stderr(out))
        root.addHandler(logged)
        watched.callback(root.removeHandler, logged)
        root.setLevel(logging.DEBUG)
        watched.callback(root.setLevel, level)
        computed, rows = -1, []
        account: tuple[Any, ...] = ()
        try:
            session = AuditSession(audited, records)
            for at, address in enumerate([*chosen, chosen[0]]):
                happened.append(_answer(session, run, address, far=0 < at < len(chosen)))
            happened.append(_answer(session, run, (len(audited.plan.phases) + 1, 1)))
            happened.append(refusal_of_losses(session, run) if session.silo.guarded else ("simulated",))
            computed = session.silo.computed
            rows = [(row.phase, row.round, row.event, len(row.query_digest)) for row in session.written(run)]
            account = tuple(session.account(run))
            session.close(run)
        except Exception as error:
            happened.append(("error", type(error).__name__, str(error)))
    answers = tuple(one for one in happened[: len(chosen) + 1])
    beyond = tuple(happened[len(chosen) + 1 :])
    messages = [f"{one.category.__name__} {one.message}" for one in caught]
    return answers, beyond, computed, rows, account, messages, logged.lines, out.getvalue()


def _answer(session: AuditSession, run: str, address: tuple[int, int], far: bool = False) -> tuple[Any, ...]:
    """The answer's form, or the refusal or error.

    `far`: about a model at the domain's edge, the same for all data sets.
    """
    try:
        sent = session.queries.first(address) if address[0] <= len(session.audited.plan.phases) else {}
        if far:
            sent = session.queries.far(address, np.random.default_rng(0))
        release = session.ask(run, address, sent)
    except SiloError as error:
        return "refusal", error.code, error.sentence
    except Exception as error:
        return "error", type(error).__name__, str(error)
    payload = release.payload
    return "answer", payload.shape, payload.dtype.str, payload.nbytes, bool(np.isfinite(payload).all())


def neighbours(audited: AuditedSilo, usual: Records, rng: np.random.Generator) -> Iterator[tuple[str, Records]]:
    """Yields data sets of the same size, each with a description of what is unusual."""
    places = {"first": 0, "last": audited.n - 1}
    for turn, value in enumerate(VALUES):
        (whole, first), (part, second) = list(places.items())[:: -1 if turn % 2 else 1]
        yield f"the {whole} record is all {value}", _with(usual, first, value)
        yield f"the {part} record has {value} on an axis", _with(usual, second, value, axis=-(turn // 2 % 2))
        yield f"all records are all {value}", _with(usual, slice(None), value)
    labels = LABELS if audited.answer.classes is None else tuple(map(float, range(audited.answer.classes)))[:16]
    for label in (*labels, *NO_CLASS):
        yield f"all records have the label {label}", _with(usual, slice(None), label=label)
        yield f"the last record has the label {label}", _with(usual, audited.n - 1, label=label)
        yield f"a record of the label {label} is empty", _with(usual, audited.n - 1, 0.0, label=label)
    yield "all records are zero, with the first label", _with(usual, slice(None), 0.0, label=labels[0])
    yield "all records are the first one", _rows(usual, np.zeros(audited.n, dtype=np.intp))
    yield "the last record is the first one", _rows(usual, np.r_[np.arange(audited.n - 1), 0])
    yield "records in another order", _rows(usual, rng.permutation(audited.n))
    for size in (1e-12, 1e-3, 1e3, 1e12):
        yield f"all records times {size}", replace(usual, X=usual.X * size)
    yield "all features are negative", replace(usual, X=-np.abs(usual.X))
    yield "features are whole numbers", replace(usual, X=np.rint(usual.X))
    yield "one record is the other's opposite", replace(usual, X=np.vstack([usual.X[:-1], -usual.X[:1]]))


def _with(
    usual: Records, at: int | slice, value: float | None = None, axis: int | None = None, label: float | None = None
) -> Records:
    X, y = usual.X.copy(), usual.y.copy()
    if value is not None:
        X[at, slice(None) if axis is None else axis] = value
    if label is not None:
        y[at] = label
    return replace(usual, X=X, y=y)


def _rows(usual: Records, order: np.ndarray) -> Records:
    return replace(usual, X=usual.X[order], y=usual.y[order])
