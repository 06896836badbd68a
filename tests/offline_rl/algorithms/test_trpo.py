"""TRPO: training on a lock, with nothing but its own episodes."""

from typing import Any

import pytest

import offline_rl
from offline_rl.algorithms.trpo import TRPO


def test_it_needs_no_data():
    assert TRPO.mode.learns == ("environment",)
    assert TRPO.extra_columns == ()


@pytest.mark.slow
def test_trpo_trains_on_a_lock(tmp_path: Any):
    options: dict[str, Any] = {"num_env_steps": 100, "algorithm.decisions": 50}
    options |= {"eval_episodes": 2, "out": str(tmp_path), "tracker": "none", "show": False}
    run = offline_rl.train(algorithm="trpo", task="lock/5", compile="never", **options)
    assert run is not None
