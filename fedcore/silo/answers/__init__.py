"""Kinds of answers that a silo gives, one per file.

To add one: a file here and its class in ANSWERS; the contract tests run it. A plan names the kind of each phase
(`Phase.question.kind`), and a silo gives no other.
"""

from fedcore.silo.answers.answer import Answer, Shard, Sums, rows_of
from fedcore.silo.answers.column_moments import ColumnMoments
from fedcore.silo.answers.gradient import Gradient
from fedcore.silo.answers.gradient_and_hessian import GradientAndHessian
from fedcore.silo.answers.gradient_and_hessian_vector import GradientAndHessianVector
from fedcore.silo.answers.gradient_difference import GradientDifference
from fedcore.silo.answers.histogram import Histogram
from fedcore.silo.answers.largest_eigenvalue import LargestEigenvalue
from fedcore.silo.answers.moments import Moments

ANSWERS: dict[str, type[Answer]] = {
    answer.name: answer
    for answer in (
        Gradient,
        GradientDifference,
        GradientAndHessian,
        GradientAndHessianVector,
        Moments,
        ColumnMoments,
        Histogram,
        LargestEigenvalue,
    )
}

__all__ = [
    "ANSWERS",
    "Answer",
    "ColumnMoments",
    "Gradient",
    "GradientAndHessian",
    "GradientAndHessianVector",
    "GradientDifference",
    "Histogram",
    "LargestEigenvalue",
    "Moments",
    "Shard",
    "Sums",
    "rows_of",
]
