"""Adapter to younggyoseo/CQN, the agent for control without demonstrations."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import nn

from benchmarks.conformance.inputs import ACT, OBS, WIDTH
from benchmarks.conformance.job import Job, Learner
from benchmarks.conformance.references.arsq import add_biases, coarse_to_fine

SIDE = "torch_side"


class Identity(nn.Module):
    """Image encoder that returns vectors unchanged."""

    repr_dim = OBS

    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.Parameter(torch.zeros(1))  # an optimizer needs a parameter

    def forward(self, observations: Any) -> Any:
        return observations


def cqn(job: Job) -> Learner:
    """Return the learner. Observations are vectors instead of images, and are not augmented."""
    sys.path.insert(0, str(job.checkout))
    add_biases()
    module, c = job.load(swaps={"Encoder(obs_shape)": "obs_shape"}), job.config
    names = ("levels", "bins", "atoms", "v_min", "v_max", "lr")
    t = module.CQNAgent(
        obs_shape=Identity(),
        action_shape=(ACT,),
        device="cpu",
        feature_dim=c["features"],
        hidden_dim=WIDTH,
        critic_target_tau=c["tau"],
        update_every_steps=1,
        num_expl_steps=0,
        stddev_schedule=0.0,
        use_logger=True,
        **{name: c[name] for name in names},
    )
    t.aug = lambda x: x

    def update(b: Any) -> dict[str, float]:
        rows = b.observations, b.actions, b.column.rewards, b.column.discount, b.next_observations
        return {"critic_loss": t.update(iter([rows]), 0)["critic_loss"]}

    links = coarse_to_fine("policy", t.critic) + coarse_to_fine("policy_target", t.critic_target)
    return Learner(links, update)
