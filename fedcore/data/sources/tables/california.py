"""California housing: the median house value of 20,640 districts in 1990, by 8 attributes.

Source: Pace and Barry 1997, "Sparse spatial autoregressions" (StatLib).
"""

from __future__ import annotations

from fedcore.data.schema import Column
from fedcore.data.sources.tables.description import Description, FileLayout, standardised

_NUMBERS = standardised(
    {
        "longitude": (-119.5, 2, 3),
        "latitude": (35.5, 2, 4),
        "housing_median_age": (29, 12.5, 3),
        "total_rooms": (2600, 2200, 10),
        "total_bedrooms": (540, 420, 10),
        "population": (1400, 1100, 10),
        "households": (500, 380, 10),
        "median_income": (4, 2, 6),
    }
)


def _column(column: Column) -> Column:
    """The column; a missing number of bedrooms (207 cells) counts as the centre."""
    known = column.name != "total_bedrooms"
    return column if known else column.model_copy(update={"missing": (), "indicator": False})


_NAMES = (*(column.name for column in _NUMBERS), "median_house_value")

CALIFORNIA = Description(
    label="median_house_value",
    # Above 500,000 the census wrote 500,001. Symmetric, so a model of zeros predicts 0, as in the paper.
    label_range=(-500_001.0, 500_001.0),
    schema=tuple(_column(column) for column in _NUMBERS),
    layouts=(
        # A public variant with a header; its text ocean_proximity is not in the original, so it is left out.
        FileLayout(
            patterns=("housing.csv",), columns=(*_NAMES, "ocean_proximity"), headers=((*_NAMES, "ocean_proximity"),)
        ),
        FileLayout(patterns=("cal_housing.data",), columns=_NAMES),  # of StatLib and L. Torgo's page
    ),
)
