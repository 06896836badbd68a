"""Schedules in which a phase comes more than once."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file
from small_data import save_small

from offline_rl import train
from offline_rl.training.run_folder import SeedFolder
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


@pytest.mark.parametrize("resumed", ["never", "always", "from a checkpoint that holds no phases"])
def test_a_repeated_phase_counts_only_its_own_updates(
    resumed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    if resumed != "never":
        load = SeedFolder.load

        def without_phases(folder: SeedFolder, done: Any) -> Any:
            tensors, progress = load(folder, done)
            if resumed != "always":
                del progress["phases"]
            return tensors, progress

        def quit_there(trainer: Trainer) -> None:
            if trainer.clock == 4 + 15 + 2 + 15:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            train(**keys, watch=quit_there)
        monkeypatch.setattr(SeedFolder, "load", without_phases)
    result = train(**keys)
    files = SeedFolder(result.path, 0).checkpoints()
    found = load_file(files[max(files)])
    values = {k.split("/")[1]: float(v) for k, v in found.items() if k.endswith("/value")}
    assert values["a_digits"] == values["b_digits"] == 123
    assert values["online_count"] == 30 - 8
    assert values["online_sum"] == np.arange(22).sum()
    assert int(found["counters/update"]) == 4 + 4 + 22
    assert result.results[0]["online_updates"] == 22
