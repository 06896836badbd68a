"""Critics: Q and V networks, their ensembles, and TD regression."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from offline_rl.algorithms.common.base import Metrics, Network, State, minimize
from offline_rl.replay.batch import Batch
from policies.networks.init import Init, torch_init
from policies.networks.mlp import MLP, Activation
from policies.networks.mlp import Critic as Critic


class Value(nn.Module):
    """State value V(s)."""

    def __init__(
        self,
        observations: int,
        hidden: Sequence[int],
        *,
        activation: Activation = "relu",
        layer_norm: bool = False,
        norm_after_activation: bool = False,
        norm_eps: float = 1e-5,
        init: Init = torch_init,
    ) -> None:
        super().__init__()
        options: dict[str, Any] = {"activation": activation, "layer_norm": layer_norm}
        options |= {"norm_after_activation": norm_after_activation, "norm_eps": norm_eps}
        self.net = MLP(observations, 1, hidden, init=init, **options)

    def forward(self, observations: Tensor) -> Tensor:
        """Return V(s), [...], for observations [..., O]."""
        return self.net(observations).squeeze(-1)


def sample_members(
    state: State, ensemble: int, count: int | None, *, replace: bool
) -> Tensor | None:
    """Return indices [K] of `count` random ensemble members; None (all members) for None.

    The complete batch uses the same members.
    """
    if count is None:
        return None
    if replace:
        return (ensemble * state.random.uniform((count,))).long()
    return state.random.uniform((ensemble,)).topk(count).indices


def sampled_q(state: State, q: Tensor, count: int | None) -> Tensor:
    """Return Q of `count` members sampled with replacement, [E, ...] -> [K, ...]; all for None.

    The gradients of a member that is sampled twice are summed in a fixed order. Indexing would not
    guarantee this on a GPU.
    """
    members = sample_members(state, len(q), count, replace=True)
    if members is None:
        return q
    is_drawn = members[:, None] == torch.arange(len(q), device=q.device)  # [K, E]
    return torch.where(is_drawn.reshape(*is_drawn.shape, *[1] * (q.dim() - 1)), q, 0).sum(1)


def aggregate_q(
    q: Tensor, how: Literal["mean", "min"] = "mean", rho: float | Tensor = 0.0
) -> Tensor:
    """Return the value of an ensemble [E, ...] -> [...]: the minimum, or mean - rho * std.

    The standard deviation has the divisor E.
    """
    if how == "min":
        return q.amin(0)
    is_mean = isinstance(rho, float) and not rho
    return q.mean(0) if is_mean else q.mean(0) - rho * q.std(0, correction=0)


def reduce_q(state: State, q: Tensor) -> Tensor:
    """Return `aggregate_q` of an ensemble [E, ...] -> [...], as the algorithm's config says."""
    cfg = state.algorithm.cfg
    return aggregate_q(q, cfg.q_aggregate, cfg.rho)


def candidate_values(state: State, cfg: Any, s: Tensor) -> tuple[Tensor, Tensor]:
    """Return target values and log densities of the policy's actions in states s, both [N, B].

    N: 1, or `num_samples` with the option `max_target_backup`. A value combines
    `num_min_critics` target critics, sampled with replacement.
    """
    count = cfg.num_samples if cfg.max_target_backup else 1
    a, log_pi = state.policy.sample(s, state.random, count)  # [N, B, A], [N, B]
    members = sample_members(state, cfg.num_critics, cfg.num_min_critics, replace=True)
    return reduce_q(state, state.critic_target(s, a, members)), log_pi


def regress(
    state: State, batch: Batch, target: Tensor, *, network: str = "critic"
) -> tuple[State, Metrics]:
    """Update the critics `network` toward `target` [B].

    The loss is the squared error, mean over B, sum over the ensemble. The metrics of the network
    `cost_critic` are `cost_critic_loss` and `cost_target`.
    """

    def critic_loss(critic: Network) -> Tensor:  # [E, B] - [B]
        return (critic(batch.observations, batch.actions) - target).square().mean(1).sum()

    state, value = minimize(state, network, critic_loss)
    prefix = network.removesuffix("critic")
    return state, {f"{network}_loss": value, f"{prefix}target": target.mean()}
