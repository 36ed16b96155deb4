"""Questions that a phase may put to silos: one class for each kind of answer, with the numbers that this kind needs."""

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from fedcore.planning.questions.question import (
    DifferenceQuestion,
    GradientQuestion,
    QuadraticModelQuestion,
    Question,
    SecondOrderQuestion,
)
from fedcore.planning.questions.statistics import (
    ColumnMomentsQuestion,
    EigenvalueQuestion,
    HistogramQuestion,
    MomentsQuestion,
)

if TYPE_CHECKING:
    AnyQuestion = Question
else:
    AnyQuestion = Annotated[
        GradientQuestion
        | DifferenceQuestion
        | SecondOrderQuestion
        | QuadraticModelQuestion
        | MomentsQuestion
        | ColumnMomentsQuestion
        | EigenvalueQuestion
        | HistogramQuestion,
        Field(discriminator="kind"),
    ]
    """As a plan is written and read: by its kind."""
