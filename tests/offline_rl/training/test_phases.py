"""Schedules in which a phase comes more than once."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file
from small_data import save_small

from offline_rl import train
from offline_rl.runs.folder import SeedFolder
from offline_rl.training.trainer import Trainer

PHASED = '''
"""TD3 that notes in parameters what `state.done` was in each of its updates."""

from dataclasses import replace

from offline_rl.algorithms.common.schedule import ONLINE, Interact, Learn
from offline_rl.algorithms.td3 import TD3, Config
from policies.networks.mlp import Scalar


class Phased(TD3):
    Config = Config
    frozen_networks = ("a_digits", "b_digits", "online_sum", "online_count")

    def networks(self):
        return super().networks() | {name: Scalar(0.0) for name in self.frozen_networks}

    def schedule(self, num_updates, num_env_steps, pretrain):
        half = Interact(ONLINE, num_env_steps // 2)
        a, b = Learn("a", num_updates), Learn("b", num_updates)
        return [a, b, half, a, half, b]

    def noted(self, state, **values):
        params = {**state.params, **{name: {"value": value} for name, value in values.items()}}
        return replace(state, params=params), {"done": state.done.float()}

    def a(self, state, batch, i):
        return self.noted(state, a_digits=10 * state.a_digits() + state.done)

    def b(self, state, batch, i):
        return self.noted(state, b_digits=10 * state.b_digits() + state.done)

    def update(self, state, batch, i):
        state, _ = super().update(state, batch, i)
        count, total = state.online_count() + 1, state.online_sum() + state.done
        return self.noted(state, online_count=count, online_sum=total)
'''


@pytest.mark.parametrize("resumed", [False, True])
def test_a_repeated_phase_counts_only_its_own_updates(resumed: bool, tmp_path: Path) -> None:
    """Two phases have two updates each, and 30 online steps have batches of 8, in two parts.

    Both phases count updates 0 to 3. Online there are 22 = 30 - 8, whose numbers add up to 231.
    """
    (tmp_path / "phased.py").write_text(PHASED)
    keys: dict[str, Any] = {"algorithm": str(tmp_path / "phased.py"), "task": "env:Pendulum-v1"}
    keys |= {"dataset": str(save_small(tmp_path / "small.npz", obs=3, act=1)), "num_updates": 2}
    keys |= {
        "num_env_steps": 30,
        "online.warmup_steps": 0,
        "batch_size": 8,
        "algorithm.hidden": [8],
    }
    keys |= {"algorithm.policy_delay": 1, "compile": "never", "eval_episodes": 1, "show": False}
    keys |= {"eval_every": 1000, "tracker": "none", "out": str(tmp_path), "max_episode_steps": 7}
    if resumed:

        def quit_there(trainer: Trainer) -> None:
            if trainer.env_steps == 30:  # before the last piece
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            train(**keys, watch=quit_there)
    result = train(**keys)
    files = SeedFolder(result.path, 0).checkpoints()
    found = load_file(files[max(files)])
    values = {k.split("/")[1]: float(v) for k, v in found.items() if k.endswith("/value")}
    assert values["a_digits"] == values["b_digits"] == 123
    assert values["online_count"] == 30 - 8
    assert values["online_sum"] == np.arange(22).sum()
    assert int(found["counters/update"]) == 4 + 4 + 22
    assert result.results[0]["online_updates"] == 22


CYCLIC = '''
"""TD3 that alternates two phases without evaluations before it learns online."""

from offline_rl.algorithms.common.schedule import ONLINE, Interact, Learn
from offline_rl.algorithms.td3 import TD3, Config


class Cyclic(TD3):
    Config = Config

    def schedule(self, num_updates, num_env_steps, pretrain):
        cycle = [Learn(name, num_updates, evaluate=False) for name in ("a", "b")]
        return [*cycle * 5, Interact(ONLINE, num_env_steps)]

    def a(self, state, batch, i):
        return self.update(state, batch, i)

    b = a
'''


def test_alternating_phases_are_evaluated_only_where_the_schedule_says_so(tmp_path: Path) -> None:
    """5 × 2 pieces of 4 updates pass many multiples of 6. The online phase counts from 0."""
    (tmp_path / "cyclic.py").write_text(CYCLIC)
    keys: dict[str, Any] = {"algorithm": str(tmp_path / "cyclic.py"), "task": "env:Pendulum-v1"}
    keys |= {"dataset": str(save_small(tmp_path / "small.npz", obs=3, act=1)), "num_updates": 4}
    keys |= {"num_env_steps": 15, "online.warmup_steps": 0, "batch_size": 8, "eval_every": 6}
    keys |= {"algorithm.hidden": [8], "compile": "never", "eval_episodes": 1, "show": False}
    keys |= {"tracker": "none", "out": str(tmp_path), "max_episode_steps": 7}
    folder = SeedFolder(train(**keys).path, 0)
    rows = folder.rows("evaluations")
    evaluations = [(row["phase"], row["updates"], row["env_steps"]) for row in rows]
    online = [("online", 40, 6), ("online", 44, 12), ("online", 46, 15)]  # in pairs
    assert evaluations == [("a", 0, 0), *online]
    metrics = [(row["phase"], row["updates"]) for row in folder.rows("metrics")]
    pieces = [(phase, 4 * k) for k, phase in enumerate(5 * ["a", "b"], 1)]
    assert {*pieces, *[(phase, updates) for phase, updates, _ in online]} <= {*metrics}
    _, progress = folder.load(max(folder.checkpoints()))
    counters = {phase: (n["updates"], n["env_steps"]) for phase, n in progress["counters"].items()}
    assert counters == {"a": (20, 0), "b": (20, 0), "online": (6, 15)}
