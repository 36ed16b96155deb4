"""`run --publish` and `compare`: the same trials have the same printed digits, and a planted change is found."""

from __future__ import annotations

import json
import subprocess

import pytest

from fedcore.errors import InputError
from fedcore.experiment.sweep import SweepConfig
from fedcore.home import Home
from studies.results import publication
from studies.results.comparison import Difference, comparable, differences, of_trials
from studies.results.measured import Measured, Place
from studies.results.provenance import DRAWS, Provenance, read_provenance, write_provenance
from studies.results.publication import Published, committed
from studies.results.results_file import read_results
from tests.studies.test_provenance import publication as origin

PLACE = Place("plain", "test error", "mbsgd", "", "privacy.epsilon", "1")
OTHER = Place("plain", "test error", "fedavg", "(0)")


def test_a_difference_is_one_of_a_printed_digit_or_of_a_value_on_one_side():
    published = [Measured(PLACE, "0.250", 0), Measured(PLACE, "0.270", 1), Measured(OTHER, "-0.00", 0, 2)]
    assert differences(published, published[::-1]) == []
    now = [Measured(PLACE, "0.250", 0), Measured(PLACE, "0.271", 1), Measured(OTHER, "0.00", 0, 2)]
    (found,) = differences(published, now)
    assert found == Difference(PLACE, (1, None), "0.270", "0.271")
    assert found.sentence == "plain: test error of mbsgd at privacy.epsilon 1, seed 1: published 0.270, now 0.271"
    lost, new = differences(published, [*now[:1], published[1], Measured(OTHER, "0.00", 0, 3)])
    assert lost.sentence == (
        "plain: test error of fedavg in panel (0), seed 0, repetition 2: published -0.00, does not come out now"
    )
    assert new.sentence.endswith("seed 0, repetition 3: not published, now 0.00")


def test_a_sweep_is_restricted_to_trials_where_its_grids_have_them():
    variants = [{"set": {"algorithm.name": "mbsgd"}}, {"grid": {"seed": [0], "repetition": [0, 1], "model.clip": [1]}}]
    sweep = SweepConfig.model_validate({"name": "s", "grid": {"seed": [0, 1, 2]}, "variants": variants})
    few = of_trials(sweep, [(0, None), (2, None)])
    assert few.grid == {"seed": [0, 2]} and few.variants[1].grid == sweep.variants[1].grid
    assert few.variants[0] == sweep.variants[0]
    one = of_trials(sweep, [(0, 1)])
    assert one.grid == {"seed": [0]}
    assert one.variants[1].grid == {"seed": [0], "repetition": [1], "model.clip": [1]}


def test_numbers_of_other_draws_are_not_compared():
    old = Provenance(study="small", published=(origin("plain", draws="0.2"), origin("chosen", draws=DRAWS)))
    rows = [Measured(PLACE, "0.250", 0), Measured(Place("chosen", "test error", "mbsgd"), "0.1", 0)]
    assert comparable("small", old, rows, ()) == ["chosen"]
    with pytest.raises(InputError, match=r"published numbers are of draws 0\.2, and this code makes draws") as refused:
        comparable("small", old, rows, ["plain"])
    assert "a difference would show no mistake" in str(refused.value)
    with pytest.raises(InputError, match="figure other was not published"):
        comparable("small", old, rows, ["other"])
    means = [Measured(PLACE, "0.250", trials=10)]
    with pytest.raises(InputError, match="only means over trials were published"):
        comparable("small", Provenance(study="small", published=(origin("plain", draws=DRAWS),)), means, ())


def test_published_numbers_of_other_draws_end_the_command_with_exit_2(studies, monkeypatch):
    """The draws of the code change here, since a study may be published anew at any time."""
    monkeypatch.setattr("studies.results.comparison.DRAWS", "of a later version")
    (draws,) = {made.draws for made in read_provenance(Published("localized").provenance).published}
    code, out, err = studies("compare", "localized")
    assert (code, out) == (2, "") and f"the published numbers are of draws {draws}, and" in " ".join(err.split())
    assert "localised" in studies("compare", "localised")[2]
    code, out, _ = studies("list", "--json")
    assert code == 0 and {each["name"]: each["published"] for each in json.loads(out)}["five-way"]


def test_a_study_that_is_not_published_is_not_compared(studies, small):
    code, out, err = studies("compare", "small")
    assert (code, out) == (2, "") and "python -m studies run small --publish" in " ".join(err.split())
    code, out, _ = studies("list")
    assert code == 0 and "Small (no paper); about 1 minutes; not published" in " ".join(out.split())


@pytest.mark.slow
@pytest.mark.minutes
def test_published_trials_come_out_the_same_and_a_changed_digit_is_found(studies, small, tmp_path, monkeypatch):
    monkeypatch.setattr(publication, "PUBLISHED", tmp_path / "published")
    monkeypatch.setattr("studies.results.publication.committed", lambda: "0123456789abcdef")
    (tmp_path / "published").mkdir()
    code, _, err = studies("run", "small", "--publish", "seed=1")
    assert code == 2 and "leave the overrides out" in " ".join(err.split())
    code, out, err = studies("run", "small", "--publish")
    assert code == 0, err
    files = Published("small")
    rows, provenance = read_results(files.results), read_provenance(files.provenance)
    single = [row for row in rows if row.single]
    # two epsilons of one method, one epsilon of two methods, three seeds each
    assert len(single) == 3 * (2 + 2) and {row.seed for row in single} == {0, 1, 2}
    costs = {"rounds", "numbers sent", "gradient evaluations"}
    measures = {row.place.measure for row in rows} - costs
    assert "test error" in measures and len(measures) == 2
    assert all(each.startswith("test error, above ") for each in measures - {"test error"})
    (made,) = provenance.published
    assert made.figures == ("plain", "chosen") and made.draws == DRAWS and made.command == "python -m studies run small"
    assert {path.name for path in files.extras.iterdir()} >= {"plain.png", "chosen.png", "chosen-along-2.png"}
    assert "published: " in out

    runs = set((Home.current().root / "runs").iterdir())
    code, out, err = studies("compare", "small", "--trials", "2", "--json")
    assert code == 0, out + err
    assert json.loads(out) == {"figures": ["plain", "chosen"], "values": 8, "differences": []}
    assert set((Home.current().root / "runs").iterdir()) == runs, "compare runs in a home of its own"

    (row,) = [row for row in single if (row.place.figure, row.place.at, row.seed) == ("plain", "4", 1)]
    digit = f"{row.value[:-1]}{(int(row.value[-1]) + 1) % 10}"
    line = f"plain,test error,mbsgd,,privacy.epsilon,4,1,,1,{row.value},,"
    text = files.results.read_text()
    assert text.count(line) == 1
    files.results.write_text(text.replace(line, line.replace(f",{row.value},", f",{digit},")))
    code, out, _ = studies("compare", "small", "--figure", "plain")
    assert code == 1
    assert f"epsilon 4, seed 1: published {digit}, now {row.value}" in " ".join(out.split())
    assert "small: 4 values of 1 figures made again, 1 differ" in " ".join(out.split())

    settings = json.loads(files.settings.read_text())
    settings[0]["settings"] = {"algorithm.step": 0.75}
    files.settings.write_text(json.dumps(settings))
    code, _, err = studies("compare", "small", "--figure", "chosen")
    assert code == 2 and "are not in its grid" in " ".join(err.split())

    write_provenance(files.provenance, Provenance(study="small", published=(made.model_copy(update={"draws": "0.1"}),)))
    code, _, err = studies("compare", "small")
    assert code == 2 and "published numbers are of draws 0.1" in " ".join(err.split())

    monkeypatch.setattr(publication, "code_version", lambda: "0.2.0+other")
    code, _, err = studies("run", "small", "--publish", "--figure", "plain")
    assert code == 2 and "its runs were made by code" in " ".join(err.split())


def test_results_are_published_of_a_commit_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(publication, "ROOT", tmp_path)
    with pytest.raises(InputError, match="in a clone with Git"):
        committed()

    def git(*words: str) -> None:
        identity = ("-c", "user.name=test", "-c", "user.email=test@localhost")
        subprocess.run(["git", *identity, *words], cwd=tmp_path, check=True, capture_output=True)

    git("init")
    (tmp_path / "code.py").write_text("1")
    git("add", ".")
    git("commit", "-m", "one")
    commit = committed()
    assert len(commit) == 40
    (tmp_path / "studies" / "published").mkdir(parents=True)
    (tmp_path / "studies" / "published" / "small.csv").write_text("figure")
    assert committed() == commit, "results of another study may lie there already"
    (tmp_path / "code.py").write_text("2")
    with pytest.raises(InputError, match=r"code\.py differs from it; commit first"):
        committed()
