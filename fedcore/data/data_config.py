"""The config section `data`: a union of one class per source, by the key `source`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from fedcore.data.federations.federation_data import FederationData
from fedcore.data.sources.alpha_beta import AlphaBetaData
from fedcore.data.sources.hospitals import HospitalsData
from fedcore.data.sources.images import DigitsData, MnistData
from fedcore.data.sources.libsvm import LibsvmData
from fedcore.data.sources.made_up.simulated import SimulatedData
from fedcore.data.sources.regression import RegressionData
from fedcore.data.sources.synthetic import SyntheticData
from fedcore.data.sources.tables.split import TablesData
from fedcore.data.sources.teacher import TeacherData
from fedcore.data.tabular import FilesData

GeneratedData = (
    DigitsData
    | MnistData
    | SyntheticData
    | AlphaBetaData
    | HospitalsData
    | RegressionData
    | TablesData
    | TeacherData
    | LibsvmData
    | SimulatedData
)
"""Silos generated from a seed, or from public data."""

DataConfig = Annotated[GeneratedData | FilesData | FederationData, Field(discriminator="source")]
