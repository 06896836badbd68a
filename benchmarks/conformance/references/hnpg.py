"""Adapter to an iteration of YifeiZhou02/HNPG: fits of all critics and steps of all policies."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import torch

from benchmarks.conformance import torch_side
from benchmarks.conformance.inputs import ACT, OBS
from benchmarks.conformance.job import Job, Learner
from benchmarks.conformance.torch_side import link, mlp, narrow

SIDE = "torch_side"
ORDER = ("value", "next_value", "off_action", "off_value")


def hnpg(job: Job) -> Learner:
    sys.path.insert(0, str(job.checkout))
    sys.modules["torchvision.models"] = sys.modules["torchvision"] = MagicMock()
    module, c = job.load(), job.config
    module.HYBRID = job.algorithm == "hnpg"
    narrow(16)
    narrow(64)
    horizon, samples = c["num_steps"], c["value_samples"]
    options = {"l2_reg": 0, "gamma": 1, "tau": c["trace"], "critic_ratio": 0}
    options |= {"max_kl": c["max_kl"], "damping": c["damping"]}
    agent = module.TRPO(OBS, ACT, horizon, **options)
    queue: list[torch.Tensor] = []
    forward = module.QValue.forward

    def clipped(self: Any, x: torch.Tensor) -> Any:
        return forward(self, torch.cat([x[:, :OBS], x[:, OBS:].clip(-1, 1)], 1))

    module.QValue.forward = clipped
    torch.normal = lambda mean, std: mean + std * queue.pop(0).reshape(mean.shape)

    def update(b: Any) -> dict[str, float]:
        count, rows = len(b.rewards), b.off_rewards.shape[1]
        shapes = ((samples, count), (samples, count), (horizon, rows), (samples, horizon * rows))
        draw: Any = torch_side.replay
        arrays = [draw("normal", (*shape, ACT)) for shape in shapes[: 4 if module.HYBRID else 2]]
        value, _, *off = map(torch.from_numpy, arrays)
        queue[:] = [torch.zeros(1, ACT)] * (count * samples)  # values that are not used
        queue.extend(b.noise[h] for h in reversed(range(horizon - 1)))
        queue.extend(value[k, n] for n in range(count) for k in range(samples))
        for h in range(horizon):
            unused = torch.zeros(rows, ACT)
            queue.append(off[0][h] if off else unused)
            of_step = slice(h * rows, (h + 1) * rows)
            queue.extend(off[1][k, of_step] if off else unused for k in range(samples))
        batch = SimpleNamespace(
            reward=b.rewards.tolist(),
            mask=(1 - b.terminated).tolist(),
            action=[a[None] for a in b.samples.numpy()],
            state=list(b.observations.numpy()),
            horizon=b.timesteps.long().tolist(),
        )
        buffers = [Buffer(b, h) for h in range(horizon)]
        _, _, _, loss = agent.update_params(batch, buffers, horizon, 0)
        if queue:
            raise ValueError(f"{len(queue)} draws were not used")
        return {"policy_loss": float(loss)}

    links = []
    for h, (policy, critic) in enumerate(zip(agent.policy_net, agent.q_net, strict=True)):
        links += mlp("policy/trunk", (policy.affine1, policy.affine2, policy.action_mean), h)
        links += [link("policy/log_std", policy.action_log_std, (h,))]
        links += mlp("critic/net", (critic.affine1, critic.affine2, critic.value_head), h)
    # each fit has a new optimizer, so moments are not compared
    return Learner([replace(each, moment=lambda: None) for each in links], update, ORDER)


trpo = hnpg


class Buffer:
    """The data of one step, which all requests return."""

    capacity = 10**9

    def __init__(self, b: Any, h: int) -> None:
        names = ("off_observations", "off_actions", "off_rewards", "off_next_observations")
        states, actions, rewards, following = (getattr(b, name)[h] for name in names)
        self.columns = states, actions, rewards[:, None], following, None, None

    def sample(self, count: int) -> Any:
        return self.columns
