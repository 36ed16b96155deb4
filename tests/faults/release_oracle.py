"""A second, naive computation of the releases that a site may send: from agreements' JSON, without the site's code.

It records every payload by (silo, run, phase, round), and compares the ledger's rows and charges with its own numbers.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tests.gaussian_curve import mu_by_hand

LOCAL = ("scaffold", "fedavg", "fedprox", "fedsgd")
Address = tuple[str, str, int, int]


@dataclass
class Approved:
    """One approved agreement: its JSON, and the JSON of the plan that it leads to."""

    problem: dict[str, Any]
    method: dict[str, Any]
    name: str
    plan: dict[str, Any]

    def rounds(self, phase: int) -> int:
        """0 for a phase that the plan does not have."""
        return self.plan["phases"][phase - 1]["rounds"] if 1 <= phase <= len(self.plan["phases"]) else 0

    def part(self, phase: int, round: int) -> dict[str, Any]:
        """The phase, or the part of it that has this round."""
        whole = self.plan["phases"][phase - 1]
        for part in whole.get("parts") or ():
            if round >= part["first"] and (round - part["first"]) % part["every"] == 0:
                return part
        return whole

    def length(self, phase: int, round: int) -> int:
        """Numbers of a message."""
        d = self.problem["objective"]["dim"]
        if self.name == "dp-fcrn":
            return max(1, math.ceil(self.method["kept"] * d))
        if self.name == "noised-newton" and (round - 1) % self.method["period"] == 0:
            return d + d * (d + 1) // 2
        return self.problem["objective"]["dim"] * (self.part(phase, round).get("vectors_up") or 1)

    def _of_differences(self, silo: str, phase: int, round: int, n: int) -> dict[str, Any]:
        """Of DIFF2: restarts, differences, and turns about samples, in which no other silo may answer."""
        part, method, R = self.part(phase, round), self.method, self.method["rounds"]
        turn, restart = bool(part.get("in_turn")), part["answer"] == "gradient"
        rounds = self.plan["phases"][phase - 1]["rounds"]
        assert rounds == (2 * R if self.name == "diff2-bvr" else R)
        r = (round + 1) // 2 if self.name == "diff2-bvr" else round
        assert turn == (self.name == "diff2-bvr" and round % 2 == 0)
        names = [each["name"] for each in self.problem["silos"]]
        assert not turn or names[r % len(names)] == silo, f"round {round} is not the turn of {silo}"
        T = self.plan["phases"][phase - 1]["settings"]["period"]
        assert turn or restart == ((r - 1) % T == 0)
        clip = self.problem["objective"]["clip"] if restart else method["slope"]
        batch, count = n, 1
        if turn:
            clip, batch, count = method["local_slope"] or clip, method["batch"], method["local_steps"] - 1
        return {
            "start": 0,
            "stop": n,
            "sensitivity": self._slack(2 * clip * (1 + 1e-6) / batch),
            "count": count,
            "sampling": "full" if batch == n else "without-replacement",
            "rate": batch / n,
            "sigma": next(each for each in part["shares"] if each["silo"] == silo)["sigma"],
        }

    def _slack(self, sensitivity: float) -> float:
        grid = self.problem["budget"]["mechanism"] == "discrete-gaussian"
        return sensitivity * (1 + 2**-20) * (1 + 2**-37) if grid else sensitivity

    def event(self, silo: str, phase: int, round: int) -> dict[str, Any]:
        """Fields that the ledger's event of this address must have."""
        sizes = {each["name"]: each["n"] for each in self.problem["silos"]}
        n, smallest = sizes[silo], min(sizes.values())
        if self.name.startswith("diff2"):
            found = self._of_differences(silo, phase, round, n)
            self._check_differences(found, silo, phase, round, n)
            return found
        if self.name in ("dp-fcrn", "noised-newton"):
            return self._of_second_order(silo, round, n)
        start, size, count, rate, sampling = 0, n, 1, 1.0, "full"
        if self.name.startswith("localized"):
            start, size = sum(n // 2**j for j in range(1, phase)), n // 2**phase
            smallest //= 2**phase
        batch: float = size
        if self.name.startswith("one-pass"):
            batch = size = n // self.plan["phases"][0]["rounds"]
            start = (round - 1) * size
        wanted = self.method.get("batch")
        if isinstance(wanted, int) and wanted < smallest:
            rate, sampling, batch = wanted / smallest, "poisson", wanted * size / smallest
        if self.name in LOCAL:
            batch = math.floor(self.method["sampling_rate"] * n + 1e-9)
            rate, sampling = batch / n, "full" if batch == n else "without-replacement"
            count = self.method["local_steps"]
            count = {"one": 1, "epoch": int(np.rint(1 / self.method["sampling_rate"]))}.get(count, count)
        sensitivity = self._slack(2 * self.problem["objective"]["clip"] * (1 + 1e-6) / batch)
        share = next(each for each in self.plan["phases"][phase - 1]["shares"] if each["silo"] == silo)
        found = {
            "start": start,
            "stop": start + size,
            "sensitivity": sensitivity,
            "sigma": share["sigma"],
            "count": count,
            "sampling": sampling,
            "rate": rate,
        }
        expected = self._sigma(found, phase, n)
        if expected is not None:
            assert math.isclose(share["sigma"], expected, rel_tol=1e-6), (share["sigma"], expected)
        return found

    def _of_second_order(self, silo: str, round: int, n: int) -> dict[str, Any]:
        """Gradients with or without Hessians; or the answers of a silo's solver, of one record as one event."""
        method, clip, answers, batch, together = self.method, self.problem["objective"]["clip"], 1, n, 1.0
        longest, total = 2 * clip, 0.0
        if self.name == "noised-newton":
            R, T, A, B = method["rounds"], method["period"], clip**2, method["balance"] * clip**2
            both = math.sqrt(max(2 * A + 2 * B + A**2 / (2 * B) if A <= 2 * B else 4 * A, 4 * A + B))
            hessians = math.ceil(R / T)
            total = math.sqrt(hessians * both**2 + (R - hessians) * longest**2)
            longest = both if (round - 1) % T == 0 else longest
        else:
            d, answers = self.problem["objective"]["dim"], method["local_steps"] - (method["average"] == "paper")
            k = max(1, math.ceil(method["kept"] * d))
            longest = 2 * (method["bound"] or min(1.0, 1.2 * math.sqrt(k / d)) * clip)
            total = longest * math.sqrt(method["rounds"] * answers)
            if method["sampling"] == "record":
                batch, together, answers = 1, math.sqrt(answers), 1
        sigma = next(each for each in self.part(1, round)["shares"] if each["silo"] == silo)["sigma"]
        budget = self.problem["budget"]
        delta = budget["fixed_delta"] if budget["fixed_delta"] is not None else 1 / n**2
        usual = budget["epsilon"] is not None and 1e-2 <= budget["epsilon"] <= 20 and 1e-9 <= delta <= 0.1
        if usual and batch == n and budget["calibration"] == "exact" and not self.problem["trust"]["aggregator"]:
            wanted = self._slack(total * (1 + 1e-6) / n) / mu_by_hand(budget["epsilon"], delta)
            assert math.isclose(sigma, wanted, rel_tol=1e-6), (sigma, wanted)
        return {
            "start": 0,
            "stop": n,
            "sensitivity": self._slack(longest * (1 + 1e-6) / batch) * together,
            "sigma": sigma,
            "count": answers,
            "rate": batch / n,
            "sampling": "full" if batch == n else "without-replacement",
        }

    def _check_differences(self, event: dict[str, Any], silo: str, phase: int, round: int, n: int) -> None:
        """Noise of full batches by the closed form: mu squared of restarts and differences is v and 1 - v of a part."""
        budget, whole = self.problem["budget"], self.plan["phases"][phase - 1]
        if budget["multiplier"] is not None:
            assert math.isclose(event["sigma"], event["sensitivity"] * budget["multiplier"], rel_tol=1e-9)
            return
        if budget["epsilon"] is None:
            assert event["sigma"] == 0.0
            return
        delta = budget["fixed_delta"] if budget["fixed_delta"] is not None else 1 / n**2
        usual = 1e-2 <= budget["epsilon"] <= 20 and 1e-9 <= delta <= 0.1 and not budget.get("whole_silo")
        central = self.problem["trust"]["aggregator"]
        if budget["calibration"] != "exact" or not usual or self.part(phase, round).get("in_turn") or central:
            return
        restarts = math.ceil(self.method["rounds"] / whole["settings"]["period"])
        restart = self.part(phase, round)["answer"] == "gradient"
        part = 1 - self.method["local_part"] if self.name == "diff2-bvr" else 1.0
        if restarts < self.method["rounds"]:
            split = whole["settings"]["split"]
            part *= split if restart else 1 - split
        count = restarts if restart else self.method["rounds"] - restarts
        wanted = event["sensitivity"] * math.sqrt(count / part) / mu_by_hand(budget["epsilon"], delta)
        assert math.isclose(event["sigma"], wanted, rel_tol=1e-6), (event["sigma"], wanted)

    def _sigma(self, event: dict[str, Any], phase: int, n: int) -> float | None:
        """Noise by the closed form, where there is one."""
        budget = self.problem["budget"]
        if budget["multiplier"] is not None:
            return event["sensitivity"] * budget["multiplier"]
        if budget["epsilon"] is None:
            return 0.0
        delta = budget["fixed_delta"] if budget["fixed_delta"] is not None else 1 / n**2
        usual = 1e-2 <= budget["epsilon"] <= 20 and 1e-9 <= delta <= 0.1
        if event["sampling"] != "full" or budget["calibration"] != "exact" or not usual:
            return None
        phases = self.plan["phases"]
        if self.name in LOCAL:
            # A first phase is answered once at most.
            rounds = phases[-1]["rounds"] + (len(phases) > 1)
        else:
            rounds = 1 if self.name.startswith("one-pass") else phases[phase - 1]["rounds"]
        return event["sensitivity"] * math.sqrt(rounds * event["count"]) / mu_by_hand(budget["epsilon"], delta)


@dataclass
class Oracle:
    """Records of all approvals and all releases."""

    runs: dict[str, Approved] = field(default_factory=dict)
    left: dict[Address, tuple[bytes, bytes]] = field(default_factory=dict)
    """By address: the query's digest as the release names it, and the payload."""
    closed: dict[str, set[Address]] = field(default_factory=dict)
    """By run, the addresses in its ledgers when it was closed: only those may be sent again."""

    def approved(self, agreement: bytes, plan: dict[str, Any]) -> str:
        """Records an agreement that a site accepted; returns the run's id."""
        run, _, problem, (name, method), *_ = json.loads(agreement)
        made = Approved(problem, method, name, plan)
        assert run not in self.runs or self.runs[run] == made, f"{run} was approved with two plans"
        self.runs[run] = made
        return run

    def close(self, run: str, ledgers: dict[str, Any]) -> None:
        """Records that a run was closed at silos with these ledgers."""
        known = {(silo, run, row.phase, row.round) for silo, ledger in ledgers.items() for row in ledger.rows(run)}
        self.closed.setdefault(run, known)

    def answered(self, query: bytes, bundle: bytes, ledgers: dict[str, Any]) -> int:
        """Checks an answer against everything before it; returns the number of its releases."""
        run, _, phase, round, names = json.loads(query.partition(b"\n")[0])
        address, listed, rest = bundle.split(b"\n", 2)
        (its_phase, its_round), silos = json.loads(address), json.loads(listed)
        assert [its_phase, its_round] == [phase, round]
        assert silos == [name for name in names if name in ledgers] and len(set(silos)) == len(silos)
        if not silos:
            assert rest == b""
            return 0
        plan = self.runs[run]
        assert 1 <= round <= plan.rounds(phase), "an address outside of the plan"
        length = 8 * plan.length(phase, round)
        assert len(rest) == len(silos) * (32 + length)
        for place, silo in enumerate(silos):
            asked = rest[32 * place : 32 * place + 32]
            payload = rest[32 * len(silos) + length * place :][:length]
            self._released((silo, run, phase, round), asked, payload, ledgers[silo])
        return len(silos)

    def _released(self, address: Address, asked: bytes, payload: bytes, ledger: Any) -> None:
        silo, run, phase, round = address
        plan = self.runs[run]
        kept = self.closed.get(run)
        assert address in self.left or kept is None or address in kept, f"{address} was answered after its run's end"
        before = self.left.setdefault(address, (asked, payload))
        assert before == (asked, payload), f"two answers left by {address}"
        rows = [row for row in ledger.rows(run) if (row.phase, row.round) == (phase, round)]
        assert len(rows) == 1, f"{len(rows)} rows for {address}"
        (row,) = rows
        assert row.payload_digest == hashlib.sha256(payload).digest() and row.query_digest == asked
        expected = plan.event(silo, phase, round)
        for key, value in expected.items():
            found = getattr(row.event, key)
            assert found == value or (isinstance(value, float) and math.isclose(found, value, rel_tol=1e-9)), (
                f"{address}: the ledger's {key} is {found}, not {value}"
            )
        once = plan.plan["phases"][phase - 1]["at_most_once"]
        turns = [each for each in self.left if each[:3] == address[:3]]
        assert not once or len(turns) == 1, f"{silo} answered {len(turns)} times in a phase of one answer"
        charged = charges_of(ledger)[run].mu_squared
        spent = self.spent(silo, run)
        assert spent <= charged * (1 + 1e-9), f"{address}: mu^2 of what left is {spent}, the charge {charged}"

    def spent(self, silo: str, run: str) -> float:
        """The largest sum of mu^2 over a silo's positions, position by position."""
        plan = self.runs[run]
        sizes = {each["name"]: each["n"] for each in plan.problem["silos"]}
        total = np.zeros(sizes[silo])
        for one, its_run, phase, round in self.left:
            if (one, its_run) == (silo, run):
                event = plan.event(silo, phase, round)
                with np.errstate(over="ignore"):
                    ratio = np.float64(event["sensitivity"]) / event["sigma"] if event["sigma"] > 0 else np.inf
                    total[event["start"] : event["stop"]] += event["count"] * ratio**2
        return float(total.max())


def charges_of(ledger: Any) -> dict[str, Any]:
    """The charges in force, by run, of either form of ledger."""
    return ledger.charges() if hasattr(ledger, "charges") else ledger._charges
