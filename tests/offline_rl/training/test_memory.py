"""Online training of a policy that keeps a memory of its episode."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from offline_rl import train
from offline_rl.runs import refusals
from offline_rl.runs.folder import SeedFolder
from offline_rl.training.trainer import Trainer

REMEMBERS = '''
"""TD3 whose policy counts the steps of its episode and adds up its rewards."""

import torch
from torch import nn

from offline_rl.algorithms.td3 import TD3, Config
from policies.heads.head import Head


class Counts(Head):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(0.1))

    def initial_memory(self, batch):
        return {name: torch.zeros(batch) for name in ("seen", "paid", "rewards")}

    def decide(self, observations, memory, noise):
        seen, paid = memory["seen"] + 1, memory["paid"] + memory["rewards"]
        action = torch.tanh(self.scale * (seen + paid))[:, None]
        return action[:, None], memory | {"seen": seen, "paid": paid}


class Remembers(TD3):
    Config = Config
    targets = {"critic_target": "critic"}
    frozen_networks = ("policy",)

    def networks(self):
        return super().networks() | {"policy": Counts()}

    def update(self, state, batch, i):
        return state, {"done": state.done.float()}
'''


class Everything:
    def __contains__(self, kind: object) -> bool:
        return True


def test_a_run_resumed_within_an_episode_acts_like_an_uninterrupted_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The policy cannot be saved as a bundle, so all runs stop before their end."""
    monkeypatch.setattr(refusals, "load_kinds", lambda: SimpleNamespace(values=Everything))
    (tmp_path / "remembers.py").write_text(REMEMBERS)
    keys: dict[str, Any] = {"algorithm": str(tmp_path / "remembers.py"), "task": "env:Pendulum-v1"}
    keys |= {"num_updates": 0, "num_env_steps": 30, "online.warmup_steps": 0, "batch_size": 8}
    keys |= {"algorithm.hidden": [8], "compile": "never", "eval_episodes": 1, "tracker": "none"}
    keys |= {"max_episode_steps": 7, "eval_every": 10, "checkpoint_every": 5, "show": False}

    def quit_at(step: int, name: str) -> None:
        def quit_there(trainer: Trainer) -> None:
            if trainer.env_steps == step:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            train(**keys, out=str(tmp_path / name), watch=quit_there)

    quit_at(20, "undisturbed")
    quit_at(10, "resumed")  # its checkpoint is after the fifth step of an episode
    quit_at(20, "resumed")
    found = list[torch.Tensor]()
    for name in ("undisturbed", "resumed"):
        (run,) = (path.parent for path in (tmp_path / name).glob("*/*/*/seed_0"))
        files = SeedFolder(run, 0).checkpoints()
        found.append(load_file(files[max(files)])["buffer/actions"])
    assert len(found[0]) == 15
    assert torch.equal(*found)
