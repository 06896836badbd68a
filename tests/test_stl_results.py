"""Experiments with signal temporal logic: their kept results and their dynamics."""

import json

import numpy as np
import torch

from benchmarks.stl import backup, conformance, controller
from envs.suites.neorl2.dmsd import DMSD


def test_pages_are_generated_from_the_kept_numbers() -> None:
    pages = {"stl-conformance": conformance.page, "stl-controller": controller.page}
    pages["backup"] = lambda content: backup.page(content, content["rows"])
    for name, page in pages.items():
        content = json.loads((backup.RESULTS / f"{name}.json").read_text())
        assert (backup.RESULTS / f"{name}.md").read_text() == page(content)


def test_robustness_equals_public_code_up_to_rounding() -> None:
    rows = json.loads((backup.RESULTS / "stl-conformance.json").read_text())["rows"]
    assert [row["formula"] for row in rows] == list(conformance.FORMULAS)
    for row in rows:
        errors = [row[name] for name in ("smooth", "gradient", "exact", "rtamt")]
        assert max(error for error in errors if error is not None) < 1e-13


def test_the_backup_policy_prevents_the_violations_of_the_planted_fault() -> None:
    rows = json.loads((backup.RESULTS / "backup.json").read_text())["rows"]
    planted = {row["backup"]: row for row in rows if row["fault"] == "planted"}
    assert planted["none"]["violations"] > 20
    assert planted["margin=0.3"]["violations"] == 0
    assert planted["margin=0.3"]["success"] >= planted["none"]["success"]


def test_the_differentiable_dynamics_of_dmsd_equal_the_environment() -> None:
    env, rng, indices = DMSD(4), np.random.default_rng(0), np.arange(4)
    state = torch.as_tensor(env.reset([3, 4, 5, 6], indices), dtype=torch.float64)
    for _ in range(30):
        action = rng.uniform(-1, 1, (4, 2))
        step = env.step(action, indices)
        state = controller.step_dmsd(state, torch.as_tensor(action))
        np.testing.assert_allclose(state, step.observations, atol=1e-5)


def test_a_fault_depends_on_the_episode_only_and_half_of_the_episodes_have_one() -> None:
    faults = [backup.draw_fault(seed) for seed in range(400)]
    assert faults == [backup.draw_fault(seed) for seed in range(400)]
    lengths = np.array([stop - start for start, stop, _ in faults])
    assert 160 < (lengths > 0).sum() < 240
    assert lengths[lengths > 0].min() == backup.FAULT_STEPS[0]
    assert lengths.max() == backup.FAULT_STEPS[1] - 1
