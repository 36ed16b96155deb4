"""Bugs of outcomes: a refusal, a failure, a length or a number without noise that depends on records."""

from __future__ import annotations

from tests.audit.bug import Bug, bug, edit
from tests.audit.foreign.later_places import SILO

SUM = "fedcore.models.linear:weighted_sum"
COMPARE = SILO + "compare"
SHAPE = "rows, features = self._records.X.shape"
LOST = "lost = ~(norms < math.inf)"

BUGS: tuple[Bug, ...] = (
    bug(
        "a sum that has to be a number",
        "outcomes: it fails where a record's label is no number",
        "guarded",
        edit(
            SUM,
            (
                "if not math.isfinite(total[0]):",
                "if not math.isfinite(total[0]):\n        raise FloatingPointError('a sum is not finite')",
            ),
        ),
    ),
    bug(
        "sums that are not numbers are zero",
        "outcomes: one record whose label is no number takes the parts of all others out of the sum",
        "restarts",
        edit(
            SUM,
            (
                "if not math.isfinite(total[0]):",
                "if math.isnan(total[0]):\n        return np.zeros_like(total)\n    if not math.isfinite(total[0]):",
            ),
        ),
    ),
    bug(
        "records that are checked",
        "outcomes: a run is refused where a record holds what is no number",
        "network",
        edit(
            COMPARE,
            (
                SHAPE,
                f"{SHAPE}\n    if not np.isfinite(self._records.X).all():\n"
                "        raise SiloError(self.name, 'records', 'a record holds what is no number')",
            ),
        ),
    ),
    bug(
        "classes by a table",
        "outcomes: it fails where a record's label is beyond the classes",
        "softmax",
        edit(
            "fedcore.losses.softmax:Softmax.one_hot",
            (
                "return np.asarray(y == np.arange(float(classes))[:, None]).T",
                "return np.eye(classes, dtype=bool)[np.nan_to_num(y).astype(np.int64)]",
            ),
        ),
    ),
    bug(
        "a cell for a class that is none",
        "outcomes: counts are longer where a label is beyond the classes, and the message is refused",
        "evaluations of classes",
        edit(
            "fedcore.silo.answers.histogram:Histogram.of",
            ("labels = np.where(known, y, 0.0)", "labels = np.clip(np.nan_to_num(y), 0.0, 1e6)"),
        ),
    ),
    bug(
        "columns that are used",
        "outcomes: a column that one record fills decides whether a run is refused",
        "guarded column moments",
        edit(COMPARE, (SHAPE, f"{SHAPE}\n    features = int(self._records.X.any(axis=0).sum())")),
    ),
    bug(
        "warnings that are errors",
        "outcomes: it fails where a record is so large that its predictor overflows",
        "local steps",
        edit(
            "fedcore.silo.site:Site._answers",
            ('np.errstate(all="ignore")', 'np.errstate(over="raise", invalid="raise")'),
        ),
    ),
    bug(
        "exact losses of a guarded silo",
        "outcomes: it shows the sum of its losses, to all digits and for no charge",
        "guarded differences",
        edit(SILO + "simulated", ("if self._guarded:", "if self._guarded and run not in self._runs:")),
    ),
    bug(
        "room for all records but one",
        "outcomes: a sum that all records reach together is refused, one that a record is missing from is not",
        "guarded evaluations",
        edit("fedcore.mechanisms.grid:Grid.of", ("limit = (count * (largest", "limit = ((count - 1) * (largest")),
    ),
    bug(
        "nothing new, nothing sent",
        "outcomes: where a sum has hardly moved the last answer is sent again, which shows that it has not",
        "guarded",
        edit(
            "fedcore.silo.round_view:RoundView.ask",
            (
                "return self._released(total, context, scale)",
                "last, sent = answer.__dict__.get('last', (None, None))\n"
                "    if last is not None and np.linalg.norm(total - last) <= 0.05 * np.linalg.norm(last):\n"
                "        return sent.copy()\n"
                "    exact = total.copy()\n    found = self._released(total, context, scale)\n"
                "    answer.__dict__['last'] = exact, found.copy()\n    return found",
            ),
        ),
    ),
    bug(
        "eigenvalues above zero",
        "outcomes: there is no answer where all records are zero, and the run fails",
        "guarded largest eigenvalue",
        edit(
            "fedcore.silo.answers.largest_eigenvalue:largest_eigenvalue",
            (
                "return np.asarray(np.linalg.eigvalsh(total)[-1:], dtype=np.float64)",
                "found = np.linalg.eigvalsh(total)\n    return found[found > 0.0][-1:]",
            ),
        ),
    ),
    bug(
        "a count of what was left out",
        "outcomes: the account of a run counts records that hold what is no number",
        "largest eigenvalue",
        edit(
            SILO + "answer",
            ("self.computed += 1", "self.computed += 1 + int((~np.isfinite(self._records.X)).any(axis=1).sum())"),
        ),
    ),
    bug(
        "differences that keep what is lost",
        "outcomes: a record that overflows makes a sum no number, which the grid refuses",
        "guarded differences",
        edit("fedcore.models.norms:shortened_products", (LOST, "lost = norms < 0.0")),
    ),
    bug(
        "two classes to learn from",
        "outcomes: a run is refused where all records have one label",
        "guarded local steps",
        edit(
            "fedcore.silo.answers.gradient:Gradient.of",
            (
                "model = model_of(loss)",
                "if len(np.unique(y)) < 2:\n        raise ValueError('labels of one class only')\n"
                "    model = model_of(loss)",
            ),
        ),
    ),
)
