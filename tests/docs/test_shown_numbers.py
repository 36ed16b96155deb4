"""Only `fedcore.directed_rounding` formats epsilons, deltas, noise, rates and the rest of a budget."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.rounding_scan import roundings

ROOT = Path(__file__).parents[2]
ROOMS = ("fedcore", "tasks", "flows", "studies")

CURVATURE = "the strong convexity of a loss, which the papers call mu"
STATISTIC = "a statistic of a test at a silo, in units of what was planned; no promise of privacy"
ACCURACY = "what noise does to the accuracy of constants, shown as about so much"

ALLOWED = {
    ("fedcore/directed_rounding.py", "epsilon"): "the one rounder itself makes a number of its text",
    ("fedcore/planning/stages.py", "mu"): CURVATURE,
    ("fedcore/algorithms/mbsgd.py", "1 / phase.subproblem.mu"): CURVATURE,
    ("fedcore/audit/instruments/sensitivity.py", "worst"): STATISTIC,
    ("fedcore/audit/instruments/tails.py", "largest"): STATISTIC,
    ("fedcore/experiment/outlook.py", "ratio"): "signal over noise, a warning about accuracy",
    ("fedcore/advice/table.py", "(len(sizes) * variance) ** (-0.5)"): "effective records of a row of the table",
    ("flows/commands/plan.py", "worst * ndtri(COVERED) * noise / bound ** 2"): ACCURACY,
    ("flows/commands/plan.py", "found['eigenvalue_noise']"): ACCURACY,
    ("flows/commands/plan.py", "off"): ACCURACY,
    ("flows/commands/plan.py", "math.sqrt(noise)"): ACCURACY,
    ("flows/commands/plan.py", "correlation_noise(statistics)"): ACCURACY,
}
"""Module and source of other permitted formatting, with the reason."""


def test_no_other_formatting_of_these_quantities_exists():
    found = {
        (path.relative_to(ROOT).as_posix(), each.source): each.line
        for room in ROOMS
        for path in sorted((ROOT / room).rglob("*.py"))
        for each in roundings(path.read_text())
    }
    others = [f"{path}:{line}: {source}" for (path, source), line in found.items() if (path, source) not in ALLOWED]
    assert not others, "rounded to nearest; use shown_up, shown_down or in_full:\n" + "\n".join(others)
    assert set(ALLOWED) <= set(found), "allowed, and not there any more"


@pytest.mark.parametrize(
    "line",
    [
        'f"{epsilon:.4g}"',
        'f"{result.delta:.3g}"',
        'f"{charge.mu_squared:g}"',
        'f"{cap.left(charges):.4g} left"',
        'f"{share.noise_multiplier:{width}.3f}"',
        'f"{max(epsilons):.2f}"',
        'f"{1 - cell.delta:.1%}"',
        'f"""{values["epsilon_accounted"]:.4g}"""',
        'f"""{values.get("sigma"):.4g}"""',
        'f"""{getattr(phase, "sigma"):.4g}"""',
        "round(epsilon, 4)",
        "np.round(sigmas, 3)",
        "np.around(delta, 3)",
        '"{:.4g}".format(epsilon)',
        '"%.3g of %d" % (delta, n)',
        "'%.3f' % sigma",
        "format(epsilon, '.4g')",
        "number(phase['sigma'])",
        "np.format_float_positional(epsilon, 4)",
        "Decimal(epsilon).quantize(step)",
        "shown = setting.sigma\nf'{shown:.4g}'",
        "a, b = plan.rounds, plan.delta\nf'{b:.4g}'",
        "for kind, value in sigmas.items():\n    f'{kind} {value:.6g}'",
        "[f'{x:.3g}' for x in epsilons]",
        "(number(phase[key]) for key in ('lam', 'clip', 'sigma'))",
        "f'{(left := cap.room):.3g}'",
        "f'{0.0 if mu is None else mu:.3g}'",
        "f'{float(shown_up(x, 6))}'",
        "f'{spent(events, d):.5g}'",
    ],
)
def test_it_finds_what_is_planted(line):
    body = "\n".join(f"    {each}" for each in line.splitlines())
    assert roundings(line) and roundings(f"def show():\n{body}\n")


@pytest.mark.parametrize(
    "line",
    [
        'f"{shown_up(epsilon)}"',
        'f"{epsilon}"',
        'f"{seconds:.1f}"',
        'f"{error.value:.3f}"',
        'f"{delta:>8}"',
        "math.ceil(rate * n)",
        "round(rate * n)",
        "round(seconds, 3)",
        'f"{began:%Y-%m-%d}"',
        "float(epsilon)",
        '"{name} of {n}".format(name=name, n=n)',
        'f"{budget.rounds:,}"',
        'f"{plan.private.rounds:.3g}"',
    ],
)
def test_it_lets_be_what_is_none(line):
    assert not roundings(line)
