"""`python -m benchmarks.gpu` without a GPU: limits, contenders, runs that are stopped, the page."""

import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.gpu import __main__ as command
from benchmarks.gpu import equality, evidence, speed
from benchmarks.gpu.limits import CACHE, COPY, KERNEL, floor_s
from benchmarks.gpu.page import page
from benchmarks.speed.contenders import difference, engine, state_bytes
from offline_rl.utils.errors import UserError

LIMITS = {COPY: 2e12, CACHE: 1e6, KERNEL: 1e-6, "fp32 a": 1e12, "fp32 b": 4e12, "bf16 a": 8e12}


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"kernels": 50, "flops": 4e6, "state_bytes": 1e5}, 50e-6),  # kernels
        ({"kernels": 50, "flops": 4e6, "state_bytes": 4e7}, 2 * 79e6 / 2e12),  # 2 x 40 MB - 1 MB
        ({"kernels": 50, "flops": 4e8, "state_bytes": 1e5}, 2 * 4e8 / 4e12),
        ({"flops": 4e8, "state_bytes": 1e5}, None),
    ],
)
def test_the_slowest_of_kernels_memory_and_products_limits_an_update(
    row: dict[str, float], expected: float | None
):
    found = floor_s({"precision": "fp32", "seeds": 2, **row}, LIMITS)
    assert found == (None if expected is None else pytest.approx(expected))


def test_an_update_replaces_parameters_moments_and_two_counters():
    """BC has three layers: 17 -> 256 -> 256 -> 6. The counters are 64-bit integers."""
    parameters = 17 * 256 + 256 + 256 * 256 + 256 + 256 * 6 + 6
    learner = engine("bc", 1, "fp32", "cpu", False)
    assert state_bytes(learner) == 3 * 4 * parameters + 2 * 8
    other = engine("bc", 1, "fp32", "cpu", False)
    assert difference(learner, other) == 0
    weights = other.state["params"]["policy"]["trunk.weights.0"]
    weights[0, 0, 0] = 3 + weights[0, 0, 0].abs()
    assert difference(learner, other) > 0.5


class FakeContender:
    """A contender that is ready at once, after its process is killed, or never starts."""

    def __init__(self, job: dict[str, Any], device: str) -> None:
        self.job, self.facts, self.killed = job, {"flops": 1.0}, threading.Event()
        self.process = SimpleNamespace(
            kill=self.killed.set, poll=lambda: None, send_signal=lambda _: None
        )
        speed.Starting.started.append(self)  # type: ignore[arg-type]
        if job["how"] == "slow":
            self.killed.wait()
        if job["how"] in ("slow", "fails"):
            raise UserError("stopped")

    def run(self, updates: int) -> tuple[int, float]:
        if self.job["how"] == "diverges":
            raise UserError("not finite")
        return updates, updates / 100

    def stop(self) -> None:
        self.killed.set()


def test_contenders_are_measured_until_the_time_is_over(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(speed, "Starting", type("Fake", (FakeContender,), {"started": []}))
    monkeypatch.setattr(speed, "TURNS", 1)
    monkeypatch.setattr(speed.hardware, "num_cores", lambda: 4)
    hows = ["slow", "fails", "ready", "diverges", "slow", "slow", "slow", "ready"]
    jobs = [{"how": how, "seeds": 8, "number": k} for k, how in enumerate(hows)]
    rows: dict[int, dict[str, Any]] = {}
    started = time.monotonic()
    speed.compare(jobs, started + 0.6, lambda row: rows.update({row["number"]: row}))
    assert time.monotonic() - started < 5
    assert rows.keys() == set(range(len(jobs)))
    assert rows[2]["blocks"] == pytest.approx([800])  # 8 seeds at 100 updates/s
    assert [rows[k]["error"] for k in (1, 3)] == ["stopped", "not finite"]
    late = (0, 4, 5, 6, 7)  # the four cores were occupied before the last one started
    assert {rows[k]["error"] for k in late} == {"not ready in time"}


@pytest.mark.slow
def test_phases_are_compared_with_a_cpu():
    rows: list[dict[str, Any]] = []
    equality.compare(["bc"], "cpu", rows.append)
    [row] = rows
    assert (row["algorithm"], row["phase"]) == ("bc", "update")
    assert [row[k] for k in ("repeated", "uncaptured", "cpu", "actions")] == [0, 0, 0, 0]
    assert equality.is_equal(row)


def test_rounding_is_allowed_between_devices_but_not_between_runs():
    row = {"cpu": 1e-4, "repeated": 0.0, "uncaptured": 0.0, "ill_conditioned": False}
    assert equality.is_equal(row)
    for change in ({"cpu": 2e-3}, {"repeated": 1e-9}, {"uncaptured": 1e-9}, {"error": "no"}):
        assert not equality.is_equal(row | change)
    assert equality.is_equal(row | {"cpu": 0.3, "ill_conditioned": True})


def test_a_suite_is_interrupted_when_the_time_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    for name, value in (("MIN_S", 0.1), ("STOP_S", 2.0)):
        monkeypatch.setattr(evidence, name, value)
    wait = "import time; time.sleep(60)"
    started = time.monotonic()
    assert evidence.run("d4rl", started + 2.5, wait)[0] == "No run of suite=d4rl has started."
    assert time.monotonic() - started < 6
    assert "no time left" in evidence.run("d4rl", time.monotonic(), wait)[0]
    fails = "import sys; sys.exit('disk full')"
    assert evidence.run("d4rl", time.monotonic() + 30, fails)[-1] == "disk full"


def test_the_page_shows_ratios_shares_and_what_differs(tmp_path: Path):
    results = command.Results(tmp_path / "gpu")
    results.values["machine"] |= {"gpu": "a GPU"}
    results.set("limits", LIMITS)
    equal = {"algorithm": "bc", "phase": "update", "cpu": 1e-6, "ill_conditioned": False}
    equal |= {"repeated": 0.0, "uncaptured": 0.0}
    results.add("equality", equal)
    results.add("equality", equal | {"algorithm": "iql", "cpu": 0.5})
    common = {"algorithm": "bc", "flops": 1.0, "state_bytes": 1.0, "kernels": 100, "seeds": 8}
    results.add("rows", {"kind": "eager", "algorithm": "bc", "blocks": [300.0]})
    results.add("rows", {"kind": "jax_corl", "algorithm": "bc", "seeds": 8, "blocks": [1_000.0]})
    results.add("rows", common | {"kind": "ours", "precision": "fp32", "blocks": [2e4, 1e9, 1.0]})
    results.add("rows", {"kind": "ours", "algorithm": "cql", "error": "not ready in time"})
    text = (tmp_path / "gpu.md").read_text()
    assert text == page(results.values)
    assert "1 of 2 phases of 2 algorithms" in text
    [line] = [line for line in text.splitlines() if line.startswith("| iql")]
    assert "5.0e-01" in line
    [line] = [line for line in text.splitlines() if "20,000" in line]
    cells = [cell.strip() for cell in line.split("|")]
    # 2,500 updates/s of 8 seeds; 100 kernels of 1 µs would allow 10,000
    assert cells[5:10] == ["20,000", "66.67", "20.00", "25 %", "100"]
    assert "Not measured: cql ours fp32 1: not ready in time." in text
