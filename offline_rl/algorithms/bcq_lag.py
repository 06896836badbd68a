"""BCQ-Lagrangian (BCQ-Lag): batch-constrained Q-learning under a cost limit.

A VAE proposes actions like the data's, and the policy perturbs them slightly. The policy maximizes
Q minus a Lagrange multiplier times the value of the cost critics. A PID controller raises the
multiplier while this value exceeds the cost limit. When acting, the policy perturbs one proposal.

Paper:   Fujimoto, Meger, Precup, ICML 2019, arXiv:1812.02900 (BCQ); Stooke, Achiam, Abbeel, ICML
         2020, arXiv:2007.03964 (PID control); a baseline of arXiv:2107.09003 and arXiv:2306.09303.
Differs: settings and order of liuzuxin/OSRL:osrl/algorithms/bcql.py; `as_released=true` reproduces
         its losses. There, costs bootstrap after terminations, from the highest of the sampled
         actions, and the lowest cost critics count. Here, costs end with the episode, the highest
         cost critic counts, and costs bootstrap from the mean over sampled actions, because the
         policy acts on one of them. Time-outs bootstrap here. The untrained policy does not perturb
         proposals. The multiplier is bounded, and checkpoints contain the controller's state.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor, nn

from offline_rl.algorithms.common import schedule
from offline_rl.algorithms.common.actor_critic import ActorCritic
from offline_rl.algorithms.common.base import (
    DATA_THEN_ONLINE,
    Metrics,
    Network,
    Params,
    State,
    minimize,
    update_targets,
)
from offline_rl.algorithms.common.config import BUILT, CriticConfig, Rate, Sizes
from offline_rl.algorithms.common.critics import reduce_q, regress
from offline_rl.algorithms.common.models.vae import VAE, fit_vae
from offline_rl.algorithms.common.optim import Adam
from offline_rl.algorithms.common.safety.cost_critics import (
    CostCriticConfig,
    bootstrap_costs,
    cost_limit,
    highest_cost,
)
from offline_rl.algorithms.common.safety.lagrangian import Multiplier, PIDConfig, pid
from offline_rl.replay.batch import Batch
from offline_rl.utils.options import Count, NonNegative, Number, Share, frozen
from policies.heads.residual import PerturbedActor, ResidualActor
from policies.networks.mlp import Critic

GROUPS = (2, 2)  # critics: groups, and members of each


@frozen
class Config(CriticConfig, CostCriticConfig, PIDConfig):
    """Defaults: liuzuxin/OSRL:examples/configs/bcql_configs.py."""

    batch_size: Count = 512
    num_samples: Count = 10  # sampled actions per next state; the best one gives the target of Q
    min_share: Share = 0.75  # lambda: weight of the lower of two groups of critics in that target
    max_perturbation: Annotated[NonNegative, BUILT] = 0.05  # Phi: largest change of an action
    actor_lr: Rate = 1e-3  # learning rate of the policy
    critic_lr: Rate = 1e-3  # learning rate of the critics and of the cost critics
    vae_lr: Rate = 1e-3  # learning rate of the VAE
    policy_hidden: Sizes = (256, 256)  # units of each hidden layer of the policy, with tanh
    critic_hidden: Sizes = (256, 256)  # units of each hidden layer of critics and cost critics
    vae_hidden: Sizes = (400, 400)  # units of each hidden layer of the VAE
    kl_weight: NonNegative = 0.5  # weight of the KL term in the loss of the VAE
    reward_scale: Number = 0.1


class BCQLag(ActorCritic):
    Config: type = Config
    Online = schedule.OneBuffer
    mode = DATA_THEN_ONLINE
    targets: ClassVar = {
        "critic_target": "critic",
        "cost_critic_target": "cost_critic",
        "policy_target": "policy",
    }
    extra_columns = ("costs",)
    follows_card = False  # the cards' shifts of rewards are for reward_scale=1
    acts = ("policy", "vae")

    def actor(self) -> nn.Module:
        inputs, cfg = self.spec.observation_dim + self.spec.action_dim, self.cfg
        options: Any = {"scale": float(cfg.max_perturbation), "activation": "tanh"}
        options |= {"layer_norm": False}
        return ResidualActor(inputs, self.spec.action_dim, cfg.policy_hidden, **options)

    def critic(self) -> nn.Module:
        return self.build(Critic, self.cfg.critic_hidden, ensemble=GROUPS[0] * GROUPS[1])

    def networks(self) -> dict[str, nn.Module]:
        more = {"cost_critic": self.critic(), "vae": self.build(VAE, self.cfg.vae_hidden)}
        return super().networks() | more | {"multiplier": Multiplier()}

    def optimizers(self) -> dict[str, Adam]:
        more = {"cost_critic": Adam(self.cfg.critic_lr), "vae": Adam(self.cfg.vae_lr)}
        return super().optimizers() | more

    def acting_head(self) -> PerturbedActor:
        arguments: Any = self.modules["policy"].arguments
        return PerturbedActor(arguments, decoder_hidden=self.cfg.vae_hidden)

    def acting_params(self, params: Mapping[str, Params]) -> Params:
        named = super().acting_params(params).items()
        return {k: v for k, v in named if not k.startswith("vae.encoder.")}

    def update(self, state: State, batch: Batch, i: int) -> tuple[State, Metrics]:
        """Update VAE, critics, cost critics, multiplier and policy, then the targets."""
        s, s2, cfg = batch.observations, batch.next_observations, self.cfg
        state, vae_loss = fit_vae(state, s, batch.actions, cfg.kl_weight)

        q = state.critic_target(*self.propose(state, s2))  # [E, N, B]
        y = batch.rewards + batch.discount * self.mix_groups(q).amax(0)
        state, metrics = regress(state, batch, y)

        q = state.cost_critic_target(*self.propose(state, s2))  # [E, N, B]
        costs = self.mix_groups(q).amax(0) if cfg.as_released else q.amax(0).mean(0)
        cost_target = bootstrap_costs(cfg, batch, costs, ignore_ends=cfg.as_released)
        state, cost_metrics = regress(state, batch, cost_target, network="cost_critic")

        proposed = state.vae.sample(s, state.random, 1)[0]
        excess = self.excess_cost(state, s, perturb(state.policy, s, proposed))
        state, multiplier = pid(state, excess)
        old = state

        def policy_loss(policy):
            a = perturb(policy, s, proposed)
            q = reduce_q(old, old.critic(s, a)).mean()
            return multiplier * self.excess_cost(old, s, a) - q

        state, policy_value = minimize(state, "policy", policy_loss)
        metrics |= {"vae_loss": vae_loss, "policy_loss": policy_value, "multiplier": multiplier}
        return update_targets(state), metrics | cost_metrics | {"cost_excess": excess}

    def propose(self, state: State, s: Tensor) -> tuple[Tensor, Tensor]:
        """Return states and proposals perturbed by the target policy, [N, B, ...] each."""
        proposed = state.vae.sample(s, state.random, self.cfg.num_samples)  # [N, B, A]
        states = s.expand(len(proposed), *s.shape)
        return states, perturb(state.policy_target, states, proposed)

    def mix_groups(self, q: Tensor) -> Tensor:
        """Return a weighted mean of the lower and the higher group's minimum, [E, ...] -> [...]."""
        groups = q.unflatten(0, GROUPS).amin(1)
        return self.cfg.min_share * groups.amin(0) + (1 - self.cfg.min_share) * groups.amax(0)

    def excess_cost(self, state: State, s: Tensor, a: Tensor) -> Tensor:
        """Return the mean cost value of actions minus the limit, 0-d."""
        return highest_cost(self.cfg, state.cost_critic(s, a)).mean() - cost_limit(self.cfg)


def perturb(policy: Network, s: Tensor, proposed: Tensor) -> Tensor:
    """Return the perturbed actions [..., A] for states [..., O]."""
    return policy(torch.cat([s, proposed], -1))
