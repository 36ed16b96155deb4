"""Cards and the preparation in them: what is signed, read back, compared and refused."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from pydantic import ValidationError

from fedcore.data.federations.card import Card, card_of_text, read_card
from fedcore.data.federations.federation_data import FederationData
from fedcore.data.federations.joined import joined, name_of
from fedcore.data.federations.preparation import LABELS, Preparation
from fedcore.data.file_sources import file_sources
from fedcore.data.tabular import FilesData
from fedcore.errors import InputError
from fedcore.identity.keys import Identity
from fedcore.identity.signed_file import signed_text
from fedcore.models.model_config import ModelConfig

HEART = "ab" * 32
COLUMNS = {"features": {"age": {"range": [20, 90]}}, "label": "disease"}


def card(name="cleveland", silo=None, **changes) -> tuple[Card, Identity]:
    silo = silo or Identity.new()
    found = Card(HEART, name, 120, "0" * 32, Preparation(**COLUMNS), "0.2.0", 3, silo.public)
    return replace(found, **changes), silo


def test_a_card_is_read_back_as_it_was_signed(tmp_path):
    made, silo = card()
    path = tmp_path / "cleveland.card"
    path.write_text(made.text(silo))
    assert read_card(path) == made
    with pytest.raises(ValueError, match="signed by the silo whose keys"):
        made.text(Identity.new())


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"records": 1}, "out of bounds"),
        ({"records": True}, "out of bounds"),
        ({"name": "../up"}, "out of bounds"),
        ({"version": "0" * 31}, "out of bounds"),
        ({"more": 1}, "other fields"),
        ({"preparation": {**COLUMNS, "features": {}}}, "columns do not fit"),
        ({"preparation": {**COLUMNS, "code": "import os"}}, "columns do not fit: code"),
    ],
)
def test_a_signed_card_with_other_values_is_refused(changes, sentence):
    made, silo = card()
    content = json.loads(made.text(silo))["content"] | changes
    with pytest.raises(InputError, match=sentence):
        card_of_text(signed_text("card", content, silo).encode(), "here")


def test_a_changed_card_is_refused():
    made, silo = card()
    with pytest.raises(InputError, match="changed after it was signed"):
        card_of_text(made.text(silo).replace("120", "121").encode(), "here")


def test_the_data_set_is_another_one_if_a_silo_has_other_records():
    first, _ = card()
    second, _ = card("hungary")
    names = {
        name_of((first, second)),
        name_of((first,)),
        name_of((replace(first, records=121), second)),
        name_of((replace(first, version="1" * 32), second)),
        name_of((replace(first, preparation=Preparation(**COLUMNS, bias=False)), second)),
    }
    assert len(names) == 5
    assert name_of((replace(first, keys=Identity.new().public), second)) == name_of((first, second))


@pytest.mark.parametrize(
    ("columns", "model"),
    [
        ({}, {}),
        ({}, {"loss": {"name": "softmax"}, "bias": False}),
        ({"classes": None}, {"loss": {"name": "squared"}, "clip": 1.0}),
        ({"classes": None}, {"loss": {"name": "poisson"}, "clip": 1.0}),
        ({"person": "patient", "person_rows": 3}, {"normalise": "features", "feature_bound": 2.0}),
        ({"features": ["a", "b"], "divide_by": 255.0}, {}),
    ],
)
def test_a_silo_prepares_its_records_as_a_config_of_files_would(columns, model):
    """The source of a card is that of the same sections over files, so the records are the same to the bit."""
    section, chosen = COLUMNS | columns, ModelConfig(**model)
    files = FilesData(**section, silos=[{"name": "cleveland", "path": "/data/records.csv"}])
    found = Preparation.of(FederationData(**section, federation="heart"), chosen)
    assert found.source("cleveland", "/data/records.csv") == file_sources(files, chosen)[0]
    assert found.label_set == chosen.loss.labels
    assert found == Preparation.model_validate(found.model_dump(mode="json"))


def test_labels_follow_from_the_classes_where_they_are_not_named():
    assert Preparation(**COLUMNS).label_set == LABELS["two-classes"]
    assert Preparation(**COLUMNS, classes=[0, 1, 2]).label_set == LABELS["classes"]
    assert Preparation(**COLUMNS, classes=None).label_set == LABELS["real-numbers"]
    assert Preparation(**COLUMNS).difference(Preparation(**COLUMNS, labels="two-classes")) is None
    assert "labels is" in Preparation(**COLUMNS).difference(Preparation(**COLUMNS, labels="classes"))
    for wrong in ({"labels": "counts"}, {"labels": "two-classes", "classes": [0, 1, 2]}):
        with pytest.raises(ValidationError):
            Preparation(**COLUMNS, **wrong)


def test_only_silos_that_joined_with_the_same_columns_take_part(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDCORE_HOME", str(tmp_path))
    data = FederationData(**COLUMNS, federation="heart")
    with pytest.raises(InputError, match="there is no federation heart"):
        joined(data, ModelConfig())
    folder = tmp_path / "federations" / "heart" / "cards"
    folder.mkdir(parents=True)
    with pytest.raises(InputError, match="no silo has joined"):
        joined(data, ModelConfig())
    cards = {}
    for name in ("hungary", "cleveland"):
        cards[name], silo = card(name)
        (folder / f"{name}.card").write_text(cards[name].text(silo))
    assert joined(data, ModelConfig()) == (cards["cleveland"], cards["hungary"])
    chosen = FederationData(**COLUMNS, federation="heart", silos=["hungary"])
    assert joined(chosen, ModelConfig()) == (cards["hungary"],)
    with pytest.raises(InputError, match="virginia has not joined"):
        joined(FederationData(**COLUMNS, federation="heart", silos=["virginia"]), ModelConfig())
    with pytest.raises(
        InputError, match=r"silo cleveland prepares its records otherwise .*: bias is False here and True"
    ):
        joined(data, ModelConfig(bias=False))
    other = COLUMNS | {"features": {"age": {"range": [20, 91]}}}
    with pytest.raises(InputError, match="features is"):
        joined(FederationData(**other, federation="heart"), ModelConfig())
