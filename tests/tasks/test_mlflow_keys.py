"""MLflow keys for users' names: a different valid key for each name, and the earlier keys if none collide."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlflow.utils.validation import _validate_metric_name, _validate_param_name

from fedcore.experiment.result import HeldOut, Interval
from tasks.mlflow.keys import LONGEST_KEY, keys_of
from tasks.run_parameters import run_parameters
from tasks.statement import evaluation_metrics, recall_metrics

AWKWARD = st.text(st.sampled_from([*"ab_:/.<>+#%- 7", "é", "\u0301", "\ud800", "中"]), max_size=6)
NAMES = st.lists(st.one_of(AWKWARD, AWKWARD.map(lambda text: text + "x" * 260)), max_size=12, unique=True)
FORMS = ("test_recall/{}", "data.features.{}", "evaluation/classes/{}/recall_high")


@given(NAMES, st.sampled_from(FORMS), st.booleans())
def test_every_name_has_a_key_of_its_own_that_mlflow_takes(names, form, parts):
    found = keys_of(names, form, parts)
    assert set(found) == set(names) and len(set(found.values())) == len(names)
    for key in found.values():
        _validate_metric_name(key)
        _validate_param_name(key)
        assert len(key) <= LONGEST_KEY
    assert keys_of(names[::-1], form, parts) == found, "the order of names decides nothing"


@given(NAMES)
def test_a_key_stays_what_it_was_where_it_is_nobody_elses(names):
    before = {name: re.sub(r"[^\w.:/ -]", "_", name)[: LONGEST_KEY - len("test_recall/")] for name in names}
    for name, key in keys_of(names, "test_recall/{}").items():
        alone = list(before.values()).count(before[name]) == 1
        path = not re.search(r"^$|^/|//|/$|(^|/)\.\.?(/|$)", before[name])
        if path and (alone or before[name] == name):
            assert key == "test_recall/" + before[name]


@pytest.mark.parametrize(
    "names, keys",
    [
        (("<7", ">7"), (":3c:7", ":3e:7")),
        (("CD4+", "CD4#"), ("CD4:2b:", "CD4:23:")),
        (("CD4+",), ("CD4_",)),
        (("a_b", "a+b"), ("a_b", "a:2b:b")),
        (("a+b", "a#b", ":"), ("a:2b:b", "a:23:b", ":")),
        (("age", "od280/od315"),) * 2,
        (("Yes", "yes"), ("Yes", "yes")),
        (("..", "."), (":2e::2e:", ":2e:")),
        (("",), (":nothing:",)),
        (("a//b",), ("a:2f::2f:b",)),
    ],
)
def test_the_keys_of_names(names, keys):
    assert keys_of(names) == dict(zip(names, keys, strict=True))


def test_a_name_that_looks_like_an_escape_keeps_its_key_and_gets_no_other_names():
    found = keys_of(("<7", ">7", ":3c:7"))
    assert found[":3c:7"] == ":3c:7" and len(set(found.values())) == 3 and found["<7"].startswith(":3c:7-")


def test_names_that_differ_beyond_mlflows_limit_have_two_keys():
    names = ["n" * 300 + end for end in "ab"]
    first, second = (keys_of(names, "data.features.{}")[name] for name in names)
    assert first != second and len(first) == len(second) == LONGEST_KEY


def held_out(*labels: str) -> HeldOut:
    at = Interval(value=0.5, low=0.4, high=0.6)
    return HeldOut(
        phase=2,
        records=90,
        error=at,
        majority_error=at,
        gain=at,
        auc=None,
        recall=dict.fromkeys(labels, at),
        silos={"birch": at},
    )


def test_classes_that_were_one_key_have_their_own_and_keep_it_where_a_test_lacks_one():
    classes = ("<7", ">7", "a/b", "a_b")
    assert recall_metrics({"<7": 0.25, ">7": 0.75}, classes) == {"test_recall/:3c:7": 0.25, "test_recall/:3e:7": 0.75}
    assert recall_metrics({">7": 0.75}, classes) == {"test_recall/:3e:7": 0.75}
    metrics = evaluation_metrics(held_out(">7", "a/b", "a_b"), classes)
    for key in (":3e:7", "a:2f:b", "a_b"):
        assert metrics[f"evaluation/classes/{key}/recall"] == 0.5
        assert metrics[f"evaluation/classes/{key}/recall_low"] == 0.4
    assert metrics["evaluation/silos/birch/error_high"] == 0.6 and len(metrics) == 18


def test_a_class_of_a_long_name_costs_no_entry():
    """Its key with the interval's suffix exceeded MLflow's limit once, and all of the run's last values were lost."""
    for key in evaluation_metrics(held_out("x" * 245), None):
        _validate_metric_name(key)


def test_lists_that_differ_beyond_what_is_shown_are_shown_as_two(tmp_path):
    from fedcore.configfile.reading import validated
    from fedcore.experiment.config import ExperimentConfig
    from fedcore.experiment.experiment import make_plan

    (tmp_path / "n.csv").write_text("age,y\n" + "1,0\n" * 9)
    features = [f"column {number}" for number in range(60)]
    shown = []
    for last in ("CD4+", "CD4#"):
        file = tmp_path / "n.csv"
        file.write_text(",".join([*features, last, "y"]) + "\n" + (",".join(["1"] * 61 + ["0"]) + "\n") * 9)
        made = validated(
            ExperimentConfig,
            {
                "data": {
                    "source": "files",
                    "silos": [{"name": "n", "path": str(file)}],
                    "label": "y",
                    "features": [*features, last],
                },
                "privacy": {"epsilon": 1},
                "algorithm": {"name": "mbsgd"},
            },
            "test",
        )
        shown.append(run_parameters(made, make_plan(made))["data.features"])
    assert shown[0] != shown[1] and all(len(text) == 500 and " characters, sha256 " in text for text in shown)
