"""Auditor's models of answers, one file each, by the names of `fedcore.silo.answers`."""

from fedcore.audit.answers.answer import AuditedAnswer, Sum
from fedcore.audit.answers.column_moments import AuditedColumnMoments
from fedcore.audit.answers.gradient import AuditedGradient
from fedcore.audit.answers.gradient_and_hessian import AuditedGradientAndHessian
from fedcore.audit.answers.gradient_and_hessian_vector import AuditedGradientAndHessianVector
from fedcore.audit.answers.gradient_difference import AuditedGradientDifference
from fedcore.audit.answers.histogram import AuditedHistogram
from fedcore.audit.answers.largest_eigenvalue import AuditedLargestEigenvalue
from fedcore.audit.answers.moments import AuditedMoments

_Audited = (
    type[AuditedGradient]
    | type[AuditedMoments]
    | type[AuditedColumnMoments]
    | type[AuditedHistogram]
    | type[AuditedLargestEigenvalue]
    | type[AuditedGradientDifference]
    | type[AuditedGradientAndHessian]
    | type[AuditedGradientAndHessianVector]
)

AUDITED: dict[str, _Audited] = {
    kind.watched.name: kind
    for kind in (
        AuditedGradient,
        AuditedGradientDifference,
        AuditedGradientAndHessian,
        AuditedGradientAndHessianVector,
        AuditedMoments,
        AuditedColumnMoments,
        AuditedHistogram,
        AuditedLargestEigenvalue,
    )
}
"""Class of each auditable kind of answer; made from a plan and the objective of its method, if any."""

__all__ = ["AUDITED", "AuditedAnswer", "Sum"]
