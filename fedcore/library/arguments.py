"""A config made of a caller's arguments, or of a config file; what does not go together is refused in a sentence."""

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
"""What other libraries call it, and how it is written here."""


@dataclass(frozen=True)
class Asked:
    """Arguments of `train` and `plan` as they were given; `folder`: where arrays are written for the call."""

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

    def config(self, looked_at: bool) -> ExperimentConfig:
        """The config that they mean. Raises InputError, which shows nothing of the data.

        `looked_at`: whether labels and missing values of arrays may be looked at.
        """
        for given in self.overrides:
            if not isinstance(given, str):
                raise InputError(
                    f"silos come first, and nothing of type {type(given).__name__} after them; write "
                    "fedcore.train({'north': (X, y), 'south': (X, y), ..}, epsilon=1)"
                )
        config = self._of_file() if isinstance(self.silos, str | Path) else self._of_arguments(looked_at)
        wanted = {
            "privacy.noise = guarded": config.privacy.noise == "guarded",
            "privacy.ledger = sqlite": config.privacy.ledger != "memory",
            "privacy.trust = shuffler": config.shuffler is not None or config.privacy.trust == "shuffler",
            "evaluation": config.evaluation is not None,
        }
        refused = [name for name, is_asked in wanted.items() if is_asked]
        if refused:
            raise InputError(f"{refused[0]} needs the command line: `fedcore run` keeps what it takes")
        return config

    def has_arrays(self, config: ExperimentConfig) -> bool:
        """Whether the files of `config` are arrays, written for the call."""
        return isinstance(config.data, FilesData) and Path(config.data.silos[0].path).parent == self.folder

    @property
    def secret(self) -> bool:
        """Whether noise is secret: of arrays and files without a seed. A config file is an experiment that repeats."""
        return isinstance(self.silos, Mapping) and "seed" not in self.sections

    @contextmanager
    def paths_untold(self) -> Iterator[None]:
        """Sentences about arrays, without the files that they were for one call."""
        try:
            yield
        except InputError as error:
            if str(self.folder) not in (said := str(error)):
                raise
            told = re.sub(rf"(?:file )?{re.escape(str(self.folder))}[\w/.-]*", "its array", said)
            raise type(error)(told) from None

    @property
    def total(self) -> float:
        """epsilon for all that silos release."""
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
        said = [name for name, value in others.items() if value is not None]
        if not (isinstance(self.algorithm, str) and self.algorithm == "mbsgd"):
            said.append("algorithm")
        if said:
            raise InputError(
                f"{self.silos}: a config file says everything itself; change it by overrides, as 'privacy.epsilon=1', "
                f"and leave out {', '.join(said)}"
            )
        return load_experiment(self.silos, self.overrides)

    def _of_arguments(self, looked_at: bool) -> ExperimentConfig:
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
        data = data_section(self.silos, self.test, self.folder, self.label, self.features, self.classes, looked_at)
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
    """The config of arrays without the folder in which they were for one call: equal for equal calls.

    Silos' records are named by their silo, as generated ones are; noise of simulated silos depends on no more. Names
    are paths from the root, as all of a config are, which they stay when a saved one is read.
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
    """Raises InputError where the label is of another kind than the loss that is taken unless one is named."""
    if isinstance(model, Mapping) and "loss" in model:
        return
    if classes is None:
        raise InputError(f"classes=None is for a real-valued label, which needs a loss of numbers: {REAL_LOSS}")
    if len(classes) > 2:
        raise InputError(f"classes= has {len(classes)} values, which need a loss of several classes: {CLASSES_LOSS}")


def _elsewhere(key: str, values: Mapping[str, Any]) -> str | None:
    """How to write what is no key of a config by itself; None where nobody knows."""
    if key in ELSEWHERE:
        return ELSEWHERE[key]
    sections = [each for each in sections_with(key, values, ExperimentConfig) if each != "data"]
    if not sections:
        return None
    inside = "'name': .., " if sections[0] == "algorithm" else ""
    return f"{sections[0]}={{{inside}{key!r}: ..}}"
