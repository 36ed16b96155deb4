"""The config of a call of `train` or `plan`, from its arguments or a config file."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedcore.configfile.reading import validated
from fedcore.data.constants.scaling import PublicScaling
from fedcore.data.tabular import FilesData
from fedcore.errors import InputError
from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.loading import load_experiment
from fedcore.library.scales import scaled
from fedcore.library.silos import CLASSES_LOSS, REAL_LOSS, data_section
from fedcore.wrong_values import sections_with

ELSEWHERE = {
    "random_state": "seed=0",
    "lr": "algorithm={'step': ..}",
    "learning_rate": "algorithm={'step': ..}",
    "epochs": "algorithm={'rounds': ..}",
    "max_iter": "algorithm={'rounds': ..}",
    "batch_size": "algorithm={'batch': ..}",
    "max_grad_norm": "model={'clip': ..}",
    "target_epsilon": "epsilon=..",
    "target_delta": "privacy={'delta': ..}",
    "loss": "model={'loss': {'name': ..}}",
    "X": "silos={'north': (X, y), ..}",
}
"""Arguments of other libraries, with their form here."""


@dataclass(frozen=True)
class Arguments:
    """Arguments of one call of `train` or `plan`; `folder`: temporary folder for its arrays."""

    silos: Any
    overrides: tuple[Any, ...]
    folder: Path
    test: Any = None
    epsilon: Any = None
    algorithm: Any = "mbsgd"
    label: Any = None
    features: Any = None
    classes: Any = (0, 1)
    scale: Any = None
    sections: Mapping[str, Any] = field(default_factory=dict)

    def config(self, check_values: bool) -> ExperimentConfig:
        """The config of these arguments. Raises InputError, which shows no cell of the data.

        `check_values`: also checks the labels and missing values of arrays.
        """
        for given in self.overrides:
            if not isinstance(given, str):
                raise InputError(
                    f"silos come first, and nothing of type {type(given).__name__} after them; write "
                    "fedcore.train({'north': (X, y), 'south': (X, y), ..}, epsilon=1)"
                )
        config = self._of_file() if isinstance(self.silos, str | Path) else self._of_arguments(check_values)
        excluded = {
            "privacy.noise = guarded": config.privacy.noise == "guarded",
            "privacy.ledger = sqlite": config.privacy.ledger != "memory",
            "privacy.trust = shuffler": config.shuffler is not None or config.privacy.trust == "shuffler",
            "evaluation": config.evaluation is not None,
        }
        refused = [name for name, is_set in excluded.items() if is_set]
        if refused:
            raise InputError(f"{refused[0]} needs the command line: `fedcore run` has it")
        return config

    def has_arrays(self, config: ExperimentConfig) -> bool:
        """Checks whether the files of `config` are arrays that this call has written."""
        return isinstance(config.data, FilesData) and Path(config.data.silos[0].path).parent == self.folder

    @property
    def secret(self) -> bool:
        """True for arrays and files without a seed, which get secret noise."""
        return isinstance(self.silos, Mapping) and "seed" not in self.sections

    @contextmanager
    def without_paths(self) -> Iterator[None]:
        """Replaces the paths of this call's temporary files in InputErrors by "its array"."""
        try:
            yield
        except InputError as error:
            if str(self.folder) not in (message := str(error)):
                raise
            public = re.sub(rf"(?:file )?{re.escape(str(self.folder))}[\w/.-]*", "its array", message)
            raise type(error)(public) from None

    @property
    def total(self) -> float:
        """Epsilon of everything that a silo releases."""
        return float(self.epsilon if self.epsilon is not None else self.sections["privacy"]["epsilon"])

    def _of_file(self) -> ExperimentConfig:
        others = {
            "test": self.test,
            "epsilon": self.epsilon,
            "label": self.label,
            "features": self.features,
            "scale": self.scale,
            **self.sections,
        }
        given = [name for name, value in others.items() if value is not None]
        if not (isinstance(self.algorithm, str) and self.algorithm == "mbsgd"):
            given.append("algorithm")
        if given:
            raise InputError(
                f"{self.silos}: a config file has all settings; change it by overrides, as 'privacy.epsilon=1', "
                f"and leave out {', '.join(given)}"
            )
        return load_experiment(self.silos, self.overrides)

    def _of_arguments(self, check_values: bool) -> ExperimentConfig:
        if self.overrides:
            raise InputError(f"{self.overrides[0]!r}: overrides are for a config file; give sections as arguments")
        values = {key: dict(value) if isinstance(value, Mapping) else value for key, value in self.sections.items()}
        if "data" in values:
            raise InputError("data= follows from silos; a config file can have other sources")
        values["algorithm"] = self._algorithm()
        values["privacy"] = self._privacy(values.get("privacy", {}))
        for key in self.sections:
            if key not in ExperimentConfig.model_fields and (meant := _elsewhere(key, values)) is not None:
                raise InputError(f"{key}= is no argument of its own; write {meant}")
        data = data_section(self.silos, self.test, self.folder, self.label, self.features, self.classes, check_values)
        _check_loss(values.get("model"), data["classes"])
        values["data"], values["privacy"]["epsilon"] = scaled(data, self.scale, values["privacy"].get("epsilon"))
        if values["privacy"]["epsilon"] is None:
            del values["privacy"]["epsilon"]
        return validated(ExperimentConfig, values, "fedcore")

    def _algorithm(self) -> dict[str, Any]:
        if isinstance(self.algorithm, str):
            return {"name": self.algorithm}
        if not isinstance(self.algorithm, Mapping):
            raise InputError(
                f"algorithm is of type {type(self.algorithm).__name__}; write a method's name, as 'mbsgd', or its "
                "section, as {'name': 'mbsgd', 'rounds': 20}"
            )
        return dict(self.algorithm)

    def _privacy(self, section: Any) -> dict[str, Any]:
        if not isinstance(section, Mapping):
            raise InputError("privacy= is a section, as {'delta': 1e-6}; epsilon is an argument of its own")
        if self.epsilon is None:
            return dict(section)
        if section.get("epsilon") is not None:
            raise InputError("epsilon= is given twice, as an argument and in privacy=; leave one out")
        return {**section, "epsilon": self.epsilon}


def placed(config: ExperimentConfig) -> ExperimentConfig:
    """The config of arrays without their temporary folder: equal for equal calls.

    The path of a silo's file names the silo only. It is absolute, like all paths of a config, so that reading a saved
    config leaves it unchanged. Noise of simulated silos depends on the silo's name and not on the path.
    """
    data = config.data
    if not isinstance(data, FilesData):
        return config
    silos = tuple(silo.model_copy(update={"path": f"/array of {silo.name}"}) for silo in data.silos)
    update: dict[str, Any] = {"silos": silos, "test": None if data.test is None else "/array of test"}
    if isinstance(data.scaling, PublicScaling) and data.scaling.path == data.test:
        update["scaling"] = data.scaling.model_copy(update={"path": "/array of test"})
    return config.model_copy(update={"data": data.model_copy(update=update)})


def _check_loss(model: Any, classes: Sequence[Any] | None) -> None:
    """Raises InputError if no loss is named and the default loss does not fit the kind of label."""
    if isinstance(model, Mapping) and "loss" in model:
        return
    if classes is None:
        raise InputError(f"classes=None is for a real-valued label, which needs a loss of numbers: {REAL_LOSS}")
    if len(classes) > 2:
        raise InputError(f"classes= has {len(classes)} values, which need a loss of several classes: {CLASSES_LOSS}")


def _elsewhere(key: str, values: Mapping[str, Any]) -> str | None:
    """The form of an unknown argument here: another name, or a section's key; else None."""
    if key in ELSEWHERE:
        return ELSEWHERE[key]
    sections = [each for each in sections_with(key, values, ExperimentConfig) if each != "data"]
    if not sections:
        return None
    inside = "'name': .., " if sections[0] == "algorithm" else ""
    return f"{sections[0]}={{{inside}{key!r}: ..}}"
