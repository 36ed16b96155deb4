"""Test that every record is clipped, on neighbours whose gradients differ far beyond the bound.

The releases of the two data sets differ by the clipped canaries plus the known noise of two releases. Each canary moves
them by at most the planned sensitivity along its direction. Averaged over answers the difference is normal with known
variance. That holds for means of local steps too, whatever the steps do: a record adds at most its bound to each of
their sums.
"""

from __future__ import annotations

import math

import numpy as np
from scipy import stats

from fedcore.audit.audit_session import AuditSession, row_order
from fedcore.audit.audited_silo import AuditedSilo
from fedcore.audit.canaries import Pair, clipping_pair
from fedcore.audit.finding import Finding
from fedcore.audit.instruments.variance import POWER
from fedcore.audit.reading import Reader
from fedcore.audit.transcript import Transcript

COMPARED = 130
"""Answers of each side of a pair, or all of a plan that has fewer."""


def clipping(
    differences: np.ndarray,
    direction: np.ndarray,
    noise: np.ndarray,
    sensitivity: np.ndarray,
    false_alarm: float,
    records: str = "one record",
) -> Finding:
    """Tests the mean shift along the canaries against the planned sensitivity, one-sided.

    `differences` (A, d): release with the canaries minus release with their opposites, one row per answer. `direction`
    (d,): unit vector along which a canary pushes. `noise` (A,): planned standard deviation of a row per coordinate, for
    both releases together. `sensitivity` (A,): planned bound on the shift of a row by all differing records. `records`:
    name of the differing records, for the sentence.
    statistic: shift over sensitivity, averaged over answers by precision; threshold: 1 plus the noise's quantile.
    Raises ValueError on no answer.
    """
    answers = len(differences)
    if answers < 1 or not 0 < false_alarm < 1:
        raise ValueError(f"{answers} answers at a false alarm probability of {false_alarm} make no test")
    precision = np.square(sensitivity / noise)
    spread = 1.0 / math.sqrt(float(precision.sum()))
    statistic = float(((differences @ direction) / sensitivity) @ precision) * spread**2
    threshold = 1.0 + float(stats.norm.isf(false_alarm)) * spread
    seen = threshold + float(stats.norm.ppf(POWER)) * spread
    sentence = (
        f"out of norm, {records} moved the releases by {statistic:.4g} times the planned sensitivity (mean over "
        f"{answers} answers); up to {threshold:.4g} passes, {seen:.4g} would alarm with probability {POWER}"
    )
    # NaN must alarm: a comparison with NaN is false.
    passed = statistic <= threshold
    return Finding(f"clipping, {records}", passed, statistic, threshold, false_alarm, sentence)


def one_record(audited: AuditedSilo, rng: np.random.Generator, false_alarm: float) -> Finding:
    """Tests clipping of one record: neighbours, asked the same queries at the same addresses."""
    run, at = "audit-pair", audited.events[0].start
    return _compared(audited, clipping_pair(audited, row_order(audited, run)[at : at + 1], rng), run, at, false_alarm)


def all_records(audited: AuditedSilo, rng: np.random.Generator, false_alarm: float) -> Finding:
    """Tests clipping of all records at once: n neighbours apart, n times the sensitivity is allowed.

    The noise is still that of one release, so this test finds a clipping bound that is only slightly too large.
    """
    return _compared(audited, clipping_pair(audited, np.arange(audited.n), rng), "audit-crowd", None, false_alarm)


def _compared(audited: AuditedSilo, pair: Pair, run: str, at: int | None, false_alarm: float) -> Finding:
    """Tests the answers whose sums have differing records: that at position `at`, or all (None)."""
    without = AuditSession(audited, pair.without).still(run, COMPARED)
    canary = AuditSession(audited, pair.canary).still(run, COMPARED)
    sensitivity = np.array([event.sensitivity for event in canary.events]) * canary.unit
    sensitivity *= _differing(audited, canary, at)
    inside = sensitivity > 0
    name = "all records" if at is None else "one record"
    if not inside.any():
        sentence = f"no secret sample of {len(inside)} answers held the record: nothing was measured"
        return Finding(f"clipping, {name}", True, math.nan, math.nan, 0.0, sentence)
    differences = (canary.payload - without.payload)[inside]
    noise = math.sqrt(2.0) * canary.sigma[inside]
    return clipping(differences, pair.direction, noise, sensitivity[inside], false_alarm, name)


def _differing(audited: AuditedSilo, transcript: Transcript, at: int | None) -> np.ndarray:
    """Number of differing records in each message, summed by the sums' weights in the message (A,)."""
    reader = Reader(audited)

    def held(start: int, stop: int, chosen: np.ndarray | None) -> int:
        places = np.arange(start, stop)
        if chosen is not None:
            places = places[chosen]
        return len(places) if at is None else int((places == at).any())

    found = []
    for event, sums, sent in zip(transcript.events, transcript.sums, transcript.sent, strict=True):
        weights = reader.weights(sent)
        # An answer from other sums than the method asked for may be about all records.
        about = [one.chosen for one in sums] if len(sums) == len(weights) else [None] * len(weights)
        found.append(float(np.abs(weights) @ [held(event.start, event.stop, chosen) for chosen in about]))
    return np.array(found)
