"""Every whole number of every section, method and objective has an upper bound."""

import importlib
import pkgutil
import typing

import pytest
from pydantic import TypeAdapter, ValidationError

import fedcore
import flows
from fedcore.algorithms import METHODS
from fedcore.configfile.reading import validated
from fedcore.errors import InputError
from fedcore.experiment.config import ExperimentConfig
from fedcore.hyperparameters import Section
from fedcore.limits import MOST_CELLS
from fedcore.silo.agreement import OBJECTIVES

VALUES_OF_A_COLUMN = {
    ("Column", "categories"),
    ("Column", "missing"),
    *((kind, "classes") for kind in ("OwnTable", "FilesData", "FederationData", "Preparation")),
}
"""Fields with values of a file's cells: their numbers are no counts."""
LARGE = 2**64


def sections(kind=Section):
    for each in kind.__subclasses__():
        yield each
        yield from sections(each)


def whole(hint):
    return hint is int or any(whole(part) for part in typing.get_args(hint))


def kinds():
    for package in (fedcore, flows):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)
    return {
        *(each for each in sections() if each.__module__.startswith(("fedcore.", "flows."))),
        *METHODS.values(),
        *OBJECTIVES.values(),
    }


def counts():
    return sorted(
        (
            (kind, name)
            for kind in kinds()
            for name, hint in typing.get_type_hints(kind).items()
            if name in kind.__pydantic_fields__ and whole(hint) and (kind.__name__, name) not in VALUES_OF_A_COLUMN
        ),
        key=lambda pair: (pair[0].__module__, pair[0].__name__, pair[1]),
    )


def refused(kind, name, value):
    """True if the declared field alone refuses the value, without the validators of its section."""
    field = kind.__pydantic_fields__[name]
    declared = typing.get_type_hints(kind, include_extras=True)[name]
    for bound in field.metadata:
        declared = typing.Annotated[declared, bound]
    try:
        TypeAdapter(declared).validate_python(value)
    except ValidationError:
        return True
    return False


def test_every_whole_number_has_an_upper_bound():
    found = counts()
    assert len(found) > 60
    free = [
        f"{kind.__module__}.{kind.__name__}.{name}"
        for kind, name in found
        for value in (LARGE, [LARGE], [LARGE, LARGE], {"a": LARGE})
        if not refused(kind, name, value)
    ]
    assert not free


def test_a_field_without_a_bound_would_be_found():
    class Free(Section):
        rounds: int = 3

    assert whole(typing.get_type_hints(Free)["rounds"]) and not refused(Free, "rounds", LARGE)


@pytest.mark.parametrize(
    "key, data",
    [
        ("data.records", {"source": "synthetic", "silos": 2, "records": MOST_CELLS // 20}),
        ("data.test_records", {"source": "synthetic", "test_records": MOST_CELLS // 2, "features": 20}),
        ("data.records", {"source": "simulated", "silos": 2, "records": [MOST_CELLS, 5], "features": ["age"]}),
        ("features", {"source": "synthetic", "features": 2**40}),
        ("test_records", {"source": "teacher", "test_records": 2**53}),
        ("seed", 2**63),
    ],
)
def test_what_would_be_made_up_is_bounded_before_it_is(key, data):
    values = {"privacy": {"epsilon": 1.0}, "algorithm": {"name": "mbsgd"}}
    with pytest.raises(InputError, match=key):
        validated(ExperimentConfig, {**values, **({"seed": data} if key == "seed" else {"data": data})}, "here")
