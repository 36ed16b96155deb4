"""Emissions of a gas turbine: carbon monoxide by 9 measurements, 36,733 hours in 2011 to 2015.

Source: Kaya, Tufekci and Uzun 2019, "Predicting CO and NOx emissions from gas turbines" (UCI, CC BY 4.0). The other
label, nitrogen oxides, is left out.
"""

from __future__ import annotations

from fedcore.data.sources.tables.description import Description, FileLayout, standardised

_COLUMNS = ("AT", "AP", "AH", "AFDP", "GTEP", "TIT", "TAT", "TEY", "CDP", "CO", "NOX")
# The joined file swaps the two names before carbon monoxide; its columns have the order of UCI's files. Energy yield
# (MWh) is 100 to 180, discharge pressure (mbar) 10 to 15.
_JOINED = (
    "Ambient temperature",
    "Ambient pressure",
    "Ambient humidity",
    "Air filter difference pressure",
    "Gas turbine exhaust pressure",
    "Turbine inlet temperature",
    "Turbine after temperature",
    "Compressor discharge pressure",
    "Turbine energy yield",
    "Carbon monoxide",
    "Nitrogen oxides",
)

GAS_TURBINE = Description(
    label="CO",
    label_range=(-45.0, 45.0),  # mg/m3; symmetric, so a model of zeros predicts 0, as in the paper
    schema=standardised(
        {
            "AT": (18, 7.5, 4),
            "AP": (1013, 6.5, 5),
            "AH": (78, 14.5, 4),
            "AFDP": (4, 0.8, 5),
            "GTEP": (25.5, 4.2, 4),
            "TIT": (1080, 17.5, 5),
            "TAT": (546, 7, 6),
            "TEY": (133, 15.5, 4),
            "CDP": (12, 1.1, 4),
        }
    ),
    layouts=(
        FileLayout(patterns=("gas-turbine.csv",), columns=_COLUMNS, headers=(_COLUMNS, _JOINED)),
        FileLayout(patterns=("gt_20*.csv",), columns=_COLUMNS, headers=(_COLUMNS,)),  # UCI's, one for each year
    ),
)
