"""Markers of figures become images, drawn from the numbers of published files, with one colour for each method."""

from __future__ import annotations

import csv
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from matplotlib.collections import FillBetweenPolyCollection, LineCollection

from flows.reports.colours import FOLLOWING, METHODS, colours, marks
from flows.reports.lines import Line
from flows.reports.plot import plot
from tests.docs.test_site import HEAD

ROOT = Path(__file__).parents[2]
ERRORS = {
    ("mbsgd", "0.5"): (0.30, 0.05),
    ("mbsgd", "2"): (0.20, 0.02),
    ("mbsgd", "4"): (0.16, 0.01),
    ("mbsgd", "none"): (0.10, 0.03),
    ("scaffold", "0.5"): (0.28, 0.04),
    ("scaffold", "2"): (0.22, 0.03),
    ("scaffold", "4"): (0.18, 0.02),
}
DIFFERENCE = "test error, difference from mbsgd"


def row(figure: str, measure: str, curve: str, key: str, at: str, value: float, spread: float) -> list[str]:
    return [figure, measure, curve, "", key, at, "", "", "3", str(value), str(spread), "interval 95%"]


@pytest.fixture
def extension(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    import extension

    return extension


@pytest.fixture
def published(tmp_path) -> Path:
    rows = [row("digits", "test error", curve, "privacy.epsilon", at, *pair) for (curve, at), pair in ERRORS.items()]
    rows += [row("digits", DIFFERENCE, "scaffold", "privacy.epsilon", at, 0.02, 0.01) for at in ("0.5", "2")]
    rows += [row("made", "excess loss", curve, "rounds", at, 0.3, 0.1) for curve in ("diff2", "mbsgd") for at in "24"]
    rows += [row("made", "train_loss", "mbsgd", "", "", 0.3, 0.1)]
    with (tmp_path / "trial.csv").open("w", newline="") as file:
        csv.writer(file).writerows([HEAD, *rows])
    return tmp_path


def drawn(extension, folder: Path, figure: str, measure: str):
    from extension.panels import drawn
    from extension.published import chosen

    rows = chosen(folder, "trial", figure, measure)
    return drawn({figure: rows}, measure)


def coloured(panel, colour: str):
    """Coordinates of the panel's lines in this colour, in order."""
    return [list(zip(*line.get_data(), strict=True)) for line in panel.lines if line.get_color() == colour]


def test_a_marker_becomes_an_image_with_words_for_study_measure_and_axis(extension, published, tmp_path):
    docs, marker = tmp_path / "docs", "<!-- figure: trial | digits | test error -->"
    text = extension.figures(f"before\n{marker}\nafter", published, docs, "page")
    image = "generated/figures/trial-digits-test-error.png"
    assert text == (f"before\n![trial, digits: test error against epsilon of the run, per record](/{image})\nafter")
    first = (docs / image).read_bytes()
    assert first.startswith(b"\x89PNG")
    (docs / image).unlink()
    extension.figures(marker, published, docs, "page")
    assert (docs / image).read_bytes() == first


@pytest.mark.parametrize(
    "words",
    [
        "other | digits | test error",
        "trial | mnist | test error",
        "trial | digits | loss",
        "trial | digits",
        "trial | made | train_loss",
    ],
)
def test_what_is_not_published_or_has_no_axis_is_an_error_that_names_page_and_marker(
    extension, published, tmp_path, words
):
    marker = f"<!-- figure: {words} -->"
    with pytest.raises(ValueError, match="page results/trial, ") as error:
        extension.figures(f"text\n{marker}", published, tmp_path / "docs", "results/trial")
    assert marker in str(error.value)
    assert not (tmp_path / "docs").exists()


def test_a_checkout_without_published_results_gets_the_sentence_of_its_tables(extension, tmp_path):
    words = "trial | digits | test error -->"
    sentence = extension.figures(f"<!-- figure: {words}", tmp_path / "none", tmp_path, "page")
    assert sentence == extension.tables(f"<!-- published: {words}", tmp_path / "none", "page")
    assert "studies/published/trial.csv" in sentence


def test_means_and_intervals_are_those_of_the_file(extension, published):
    panels = drawn(extension, published, "digits", "test error").axes
    assert [panel.get_title() for panel in panels] == ["mbsgd", "scaffold"]
    for panel, method in zip(panels, ("mbsgd", "scaffold"), strict=True):
        along, *alone = coloured(panel, METHODS[method])
        assert along == [(np.log2(at), ERRORS[method, f"{at:g}"][0]) for at in (0.5, 2, 4)]
        (band,) = (each for each in panel.collections if isinstance(each, FillBetweenPolyCollection))
        corners = {(x, round(y, 9)) for x, y in band.get_paths()[0].vertices}
        assert corners == {
            (np.log2(at), round(value + sign * spread, 9))
            for at in (0.5, 2, 4)
            for value, spread in [ERRORS[method, f"{at:g}"]]
            for sign in (-1, 1)
        }
        bars = [each for each in panel.collections if isinstance(each, LineCollection)]
        assert (len(alone), len(bars)) == ((1, 1) if method == "mbsgd" else (0, 0))
    ((last,),) = coloured(panels[0], METHODS["mbsgd"])[1:]
    (bar,) = (each for each in panels[0].collections if isinstance(each, LineCollection))
    assert last[1] == 0.10 and last[0] > np.log2(4) + 1
    np.testing.assert_allclose(bar.get_segments(), [[(last[0], 0.07), (last[0], 0.13)]])
    assert [text.get_text() for text in panels[0].get_xticklabels()] == ["0.5", "2", "4", "none"]
    assert panels[0].get_ylim() == panels[1].get_ylim() and panels[0].get_xlim() == panels[1].get_xlim()


def test_other_curves_are_grey_and_a_method_has_one_colour_in_all_figures(extension, published):
    from extension.panels import GREY

    errors = drawn(extension, published, "digits", "test error").axes
    losses = drawn(extension, published, "made", "excess loss").axes
    assert coloured(errors[1], GREY)[0] == coloured(errors[0], METHODS["mbsgd"])[0]
    assert [panel.get_title() for panel in losses] == ["diff2", "mbsgd"]
    assert coloured(losses[1], METHODS["mbsgd"]) and not coloured(losses[0], METHODS["mbsgd"])
    assert coloured(errors[0], METHODS["mbsgd"]) and not coloured(errors[1], METHODS["mbsgd"])
    assert {panel.get_yscale() for panel in losses} == {"log"} and errors[0].get_yscale() == "linear"


def test_a_difference_has_a_dashed_zero_line_within_its_range(extension, published):
    figure = drawn(extension, published, "digits", DIFFERENCE)
    (panel,) = figure.axes
    (zero,) = (line for line in panel.lines if line.get_linestyle() == "--")
    low, high = panel.get_ylim()
    assert list(zero.get_ydata()) == [0, 0] and low < 0 < 0.03 < high
    assert "level of mbsgd" in [text.get_text() for text in figure.legends[0].get_texts()]


def test_a_mean_far_above_all_others_is_written_at_the_axis_end(extension, published):
    from extension.panels import drawn
    from extension.published import chosen

    rows = chosen(published, "trial", "digits", "test error")
    rows.append({**rows[0], "curve": "one-pass-mbsgd", "value": "2.5"})
    panels = drawn({"digits": rows}, "test error").axes
    assert panels[2].get_ylim()[1] < 0.5
    assert [text.get_text()[:3] for panel in panels for text in panel.texts] == ["2.5"]


def test_settings_share_their_methods_colour_and_other_methods_follow_in_order():
    labels = ["mbsgd, step 1", "DP-mbsgd", "own", "fedprox, prox 2", "own, step 3"]
    assert list(colours(labels).values()) == [METHODS["mbsgd"]] * 2 + [*FOLLOWING[:2], FOLLOWING[0]]
    assert len(set(marks(labels)[label] for label in ("mbsgd, step 1", "DP-mbsgd"))) == 2
    assert marks(labels)["own"] == marks(labels)["mbsgd, step 1"] == ("o", "-")


SIGHTS = {  # Machado, Oliveira and Fernandes (2009), severity 1, on linear RGB
    "normal": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.04294, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}


def lab(colour: str, sight: str) -> np.ndarray:
    """CIELAB coordinates of an sRGB colour (D65), in this sight."""
    coded = np.array([int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)])
    linear = np.where(coded <= 0.04045, coded / 12.92, ((coded + 0.055) / 1.055) ** 2.4)
    seen = np.clip(np.asarray(SIGHTS[sight]) @ linear, 0, 1)
    to_xyz = [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
    x, y, z = np.asarray(to_xyz) @ seen / [0.95047, 1, 1.08883]
    a, b, c = (np.cbrt(part) if part > 216 / 24389 else (24389 / 27 * part + 16) / 116 for part in (x, y, z))
    return np.array([116 * b - 16, 500 * (a - b), 200 * (b - c)])


@pytest.mark.parametrize("sight", SIGHTS)
def test_the_ten_colours_stay_apart_in_every_sight(sight):
    seen = [lab(colour, sight) for colour in METHODS.values()]
    assert len(seen) == 10
    assert min(np.linalg.norm(one - other) for one, other in combinations(seen, 2)) > 18


def test_a_sweeps_plot_has_the_same_colours(monkeypatch, tmp_path):
    from matplotlib.figure import Figure

    kept = []
    save = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda self, *args, **named: (kept.append(self), save(self, *args, **named)))
    given = {"accounted": None, "spread": 0.01, "runs": 3, "rounds": 5, "seconds": 1.0, "noise": "gaussian"}
    lines = [
        Line(method=method, epsilon=epsilon, error=0.1, settings={"step": step}, **given)
        for method in ("own", "scaffold")
        for step in (1, 2)
        for epsilon in (1.0, 2.0, None)
    ]
    plot(lines, tmp_path / "plot.png")
    handles, labels = kept[0].axes[0].get_legend_handles_labels()
    shown = {label: (getattr(handle, "lines", [handle])[0]) for handle, label in zip(handles, labels, strict=True)}
    assert len(shown) == 8
    for label, line in shown.items():
        assert line.get_color() == (METHODS["scaffold"] if label.startswith("scaffold") else FOLLOWING[0])
        first = "" if label.endswith("no privacy") else "o"
        assert line.get_marker() == (first if "step 1" in label else "s")
