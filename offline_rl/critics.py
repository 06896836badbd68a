"""Value functions: what an observation, or one with an action, is worth; and what teaches them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import log
from typing import Literal

import torch
from torch import Tensor, nn

from offline_rl.algorithm import Metrics, Network, State, minimise
from offline_rl.replay.batch import Batch
from policies.networks import MLP, Init, torch_init

Variant = Literal["H", "H-raw", "rho"]  # of CQL's penalty


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
        norm_after_relu: bool = False,
        init: Init = torch_init,
    ) -> None:
        super().__init__()
        self.net = MLP(
            observations + actions,
            1,
            hidden,
            ensemble=ensemble,
            layer_norm=layer_norm,
            norm_after_relu=norm_after_relu,
            init=init,
        )

    def forward(self, observations: Tensor, actions: Tensor) -> Tensor:
        """[..., O], [..., A] -> [E, ...]."""
        return self.net(torch.cat([observations, actions], -1)).squeeze(-1)

    def each(self, observations: Tensor, actions: Tensor) -> Tensor:
        """[E, ..., O], [E, ..., A] -> [E, ...]: member i values the i-th slice alone."""
        return self.net(torch.cat([observations, actions], -1), own_rows=True).squeeze(-1)


class Value(nn.Module):
    """V(s)."""

    def __init__(
        self,
        observations: int,
        hidden: Sequence[int],
        *,
        layer_norm: bool = False,
        init: Init = torch_init,
    ) -> None:
        super().__init__()
        self.net = MLP(observations, 1, hidden, layer_norm=layer_norm, init=init)

    def forward(self, observations: Tensor) -> Tensor:
        """[..., O] -> [...]."""
        return self.net(observations).squeeze(-1)


def regress(state: State, batch: Batch, target: Tensor) -> tuple[State, Metrics]:
    """The critics' step towards `target` [B]: squared error, mean over B, sum over the ensemble."""

    def critic_loss(critic: Network) -> Tensor:  # [E, B] - [B]
        return (critic(batch.observations, batch.actions) - target).square().mean(1).sum()

    state, value = minimise(state, "critic", critic_loss)
    return state, {"critic_loss": value, "target": target.mean()}


def td3_target(
    state: State,
    batch: Batch,
    noise: float,
    noise_clip: float,
    penalty: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """r + discount * min_i Q_i(s', a'), a' the target policy's action under clipped noise; [B].

    TD3, arXiv:1802.09477, algorithm 1. Networks: policy_target, critic_target; a policy that learns
    under dropout has it here too. penalty: of a' [B, A], taken off its value.
    """
    epsilon = noise * state.random.normal(batch.actions.shape)
    epsilon = epsilon.clamp(-noise_clip, noise_clip)
    next_actions = state.policy_target(batch.next_observations, state.random)
    next_actions = (next_actions + epsilon).clamp(-1, 1)
    next_q = state.critic_target(batch.next_observations, next_actions).amin(0)  # [B]
    if penalty is not None:
        next_q = next_q - penalty(next_actions)
    return batch.rewards + batch.discount * next_q


def proposals(state: State, batch: Batch, samples: int, variant: Variant) -> tuple[Tensor, Tensor]:
    """The actions whose value CQL pushes down, [M, B, A], and their log densities [M, B].

    For rho N of the policy's (M = N = samples), else also N uniform ones and N that the policy
    takes in the *next* state (M = 3N); all are meant for the present state.
    """
    here, log_here = state.policy.sample(batch.observations, state.random, samples)
    if variant == "rho":
        return here, log_here
    there, log_there = state.policy.sample(batch.next_observations, state.random, samples)
    uniform = 2 * state.random.uniform(here.shape) - 1
    log_uniform = torch.full_like(log_here, -here.shape[-1] * log(2))
    return torch.cat([uniform, here, there]), torch.cat([log_uniform, log_here, log_there])


def soft_maximum(q: Tensor, log_density: Tensor, variant: Variant, temperature: float) -> Tensor:
    """What CQL pushes down in a state; q: [E, M + 1, B], the data's action last; -> [E, B].

    log_density: [M, B], of the first M actions where they were drawn.  t: the temperature.
    H:     t log sum_k exp((Q(s, a_k) - log p(a_k)) / t): the log of the integral in CQL's eq. 4 by
           importance sampling, but for a constant log M (appendix F).
    H-raw: the same without densities, the data's action included (its code's `min_q_version=2`).
    rho:   E_mu[Q] with mu(a) in proportion to pi(a) exp(Q(s, a) / t), which solves the inner
           problem of eq. 3, max_mu E_mu[Q] - t KL(mu, pi), pi being the policy so far. By its own
           samples: sum_k w_k Q(s, a_k), a_k ~ pi, w = softmax_k(Q(s, a_k) / t). As mu is a maximum,
           no gradient goes through w (envelope theorem).
    """
    t, drawn = temperature, q[:, :-1]
    if variant == "rho":
        return ((drawn.detach() / t).softmax(1) * drawn).sum(1)
    logits = q if variant == "H-raw" else drawn - log_density
    return t * (logits / t).logsumexp(1)
