"""Cover types of 581,012 patches of forest: 7 classes by 54 attributes, of which 44 are 0 or 1.

Source: Blackard and Dean 1999 (UCI, CC BY 4.0). Centres and scales are those of its description, covtype.info, rounded.
"""

from __future__ import annotations

from fedcore.data.sources.tables.description import Description, FileLayout, flag, standardised

_NUMBERS = standardised(
    {
        "elevation": (2960, 280, 4),
        "aspect": (155, 110, 3),
        "slope": (14, 7.5, 5),
        "horizontal_distance_to_hydrology": (270, 210, 5),
        "vertical_distance_to_hydrology": (46, 58, 5),
        "horizontal_distance_to_roadways": (2350, 1560, 4),
        "hillshade_9am": (212, 27, 5),
        "hillshade_noon": (223, 20, 5),
        "hillshade_3pm": (142, 38, 4),
        "horizontal_distance_to_fire_points": (1980, 1320, 4),
    }
)
_SCHEMA = (
    *_NUMBERS,
    *(flag(f"wilderness_area_{k}") for k in range(1, 5)),
    *(flag(f"soil_type_{k}") for k in range(1, 41)),
)

COVER_TYPE = Description(
    label="cover_type",
    schema=_SCHEMA,
    classes=("1", "2", "3", "4", "5", "6", "7"),
    layouts=(FileLayout(patterns=("covtype.data",), columns=(*(column.name for column in _SCHEMA), "cover_type")),),
)
