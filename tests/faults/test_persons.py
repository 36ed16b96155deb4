"""Files with several rows per patient, by commands only: a run is killed, resumed, and refused for records."""

from __future__ import annotations

import json
import os
import signal

import numpy as np
import pytest

from tests.faults.federation import Federation
from tests.patience import SOON

pytestmark = [pytest.mark.faults, pytest.mark.slow, pytest.mark.minutes]
QUIET = {"cluster": {"backend": "in-process"}, "tracking": {"mlflow": False}}
PATIENTS = {"north": 60, "south": 50}


def visits(folder):
    """Visits of patients, mixed as a clinic has them: one to twelve each."""
    rng = np.random.default_rng(0)
    for silo, patients in PATIENTS.items():
        whose = np.repeat(np.arange(patients), rng.integers(1, 13, patients))
        rng.shuffle(whose)
        health = rng.standard_normal(patients)
        age = 50 + 10 * health[whose] + 3 * rng.standard_normal(len(whose))
        rows = [
            f"P{who},{years:.1f},{rng.integers(50, 90)},{int(health[who] > 0)}"
            for who, years in zip(whose, age, strict=True)
        ]
        (folder / f"{silo}.csv").write_text("\n".join(["patient,age,pulse,ill", *rows]) + "\n")


def test_a_run_about_persons_is_killed_goes_on_to_the_same_bits_and_keeps_its_account(home, tmp_path):
    visits(tmp_path)
    data = {
        "source": "files",
        "silos": [{"name": name, "path": str(tmp_path / f"{name}.csv")} for name in PATIENTS],
        "features": {"age": {"range": [20, 90]}, "pulse": {"centre": 70, "scale": 10}},
        "label": "ill",
        "person": "patient",
        "person_rows": 6,
    }
    federation = Federation.make(
        home, "visits", (400, 20, 10), data=data, privacy={"epsilon": 4, "ledger": "sqlite"}, **QUIET
    )
    checked = federation.call("check", str(federation.config))
    assert "records of 60 persons, fits" in checked and "have more rows than data.person_rows = 6" in checked
    planned = json.loads(federation.call("plan", str(federation.config), "--json"))
    assert planned["totals"]["unit"] == "persons" and planned["persons"] == {"column": "patient", "rows": 6}
    assert [silo["n"] for silo in planned["problem"]["silos"]] == [60, 50]

    process = federation.start("run", str(federation.config))
    federation.wait_for_rounds(process, 25)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=SOON)
    assert federation.state() == "KILLED"
    result = federation.resume()
    federation.check_complete(tmp_path / "scratch")
    assert max(federation.repeated_rounds().values()) <= 1
    assert result["unit"] == "persons by column 'patient'" and {s["silo"]: s["n"] for s in result["silos"]} == PATIENTS

    shown = federation.call("budget", "show")
    assert "persons by column 'patient', each with all of its rows: north, south" in shown
    accounts = json.loads(federation.call("budget", "show", "--json"))  # of a home with other tests' silos, too
    mine = [each for each in accounts if result["run"] in {run["run"] for run in each["runs"]}]
    assert [(each["silo"], each["unit"]) for each in mine] == [(name, result["unit"]) for name in PATIENTS]
    assert "for persons by column 'patient'" in " ".join(federation.call("report", federation.run).split())
    for other, asked in (("data.person=null", "for records"), ("data.person=pulse", "for persons by column 'pulse'")):
        more = ["data.person_rows=10", "data.features={age: {range: [20, 90]}}"]
        refused = federation.call("run", str(federation.config), other, *more, code=3)
        assert "Traceback" not in refused
        message = " ".join(refused.split())
        assert "is charged for persons by column 'patient', for good" in message and asked in message
        assert "Go on with data.person = 'patient'" in message and str(home / "ledgers") in message
