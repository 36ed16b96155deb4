"""Questions of a phase to silos: one class for each kind of answer, with the numbers that it needs."""

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
    """Any question; `kind` selects the class when a plan is read."""
