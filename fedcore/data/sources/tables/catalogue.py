"""Catalogue of public tables by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from fedcore.data.sources.tables.blog_feedback import BLOG_FEEDBACK
from fedcore.data.sources.tables.california import CALIFORNIA
from fedcore.data.sources.tables.cover_type import COVER_TYPE
from fedcore.data.sources.tables.description import Description
from fedcore.data.sources.tables.gas_turbine import GAS_TURBINE
from fedcore.data.sources.tables.kdd99 import KDD99
from fedcore.data.sources.tables.scikit_learn import (
    BREAST_CANCER,
    DIABETES,
    DIGITS,
    load_breast_cancer,
    load_diabetes,
    load_digits,
)
from fedcore.data.table import Table

FileTable = Literal["california", "gas-turbine", "blog-feedback", "covertype", "kdd99"]
"""Tables in files of a local folder."""
BundledTable = Literal["diabetes", "breast-cancer", "digits"]
"""Tables of scikit-learn, without files."""
TableName = BundledTable | FileTable

TABLES: dict[TableName, Description] = {
    "diabetes": DIABETES,
    "breast-cancer": BREAST_CANCER,
    "digits": DIGITS,
    "california": CALIFORNIA,
    "gas-turbine": GAS_TURBINE,
    "blog-feedback": BLOG_FEEDBACK,
    "covertype": COVER_TYPE,
    "kdd99": KDD99,
}
BUNDLED: dict[str, Callable[[], Table]] = {
    "diabetes": load_diabetes,
    "breast-cancer": load_breast_cancer,
    "digits": load_digits,
}
