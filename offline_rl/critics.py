"""Value functions: what an observation, or an observation with an action, is worth; and targets."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from offline_rl.algorithm import Batch, State
from policies.networks import MLP, Init, torch_init


class Critic(nn.Module):
    """E independent Q(s, a) as one batched product, each initialised by its own fan-in."""

    def __init__(
        self,
        observations: int,
        actions: int,
        hidden: Sequence[int],
        *,
        ensemble: int = 2,
        layer_norm: bool = False,
        init: Init = torch_init,
    ) -> None:
        super().__init__()
        inputs = observations + actions
        self.net = MLP(inputs, 1, hidden, ensemble=ensemble, layer_norm=layer_norm, init=init)

    def forward(self, observations: Tensor, actions: Tensor) -> Tensor:
        """[..., O], [..., A] -> [E, ...]."""
        return self.net(torch.cat([observations, actions], -1)).squeeze(-1)


class Value(nn.Module):
    """V(s)."""

    def __init__(self, observations: int, hidden: Sequence[int], init: Init = torch_init) -> None:
        super().__init__()
        self.net = MLP(observations, 1, hidden, init=init)

    def forward(self, observations: Tensor) -> Tensor:
        """[..., O] -> [...]."""
        return self.net(observations).squeeze(-1)


def td3_target(state: State, batch: Batch, noise: float, noise_clip: float) -> Tensor:
    """r + discount * min_i Q_i(s', a'), a' the target policy's action under clipped noise; [B].

    TD3, arXiv:1802.09477, algorithm 1. Networks: policy_target, critic_target.
    """
    epsilon = noise * state.random.normal(batch.actions.shape)
    epsilon = epsilon.clamp(-noise_clip, noise_clip)
    next_actions = (state.policy_target(batch.next_observations) + epsilon).clamp(-1, 1)
    next_q = state.critic_target(batch.next_observations, next_actions).amin(0)  # [B]
    return batch.rewards + batch.discount * next_q
