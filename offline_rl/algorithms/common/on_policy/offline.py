"""Offline improvement of a diffusion policy: critics, chains on the data's states, and a gate.

IQL critics learn the values of the data's chunks. Chains of a frozen policy on the data's states
are valued by the critics and reinforced with the clipped PPO loss. The new weights are kept if they
score better than the old ones by a margin, from the same states in a learned transition model;
otherwise the old weights are restored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from offline_rl.algorithms.common.base import (
    Metrics,
    Network,
    State,
    minimize,
    soft_update,
)
from offline_rl.algorithms.common.chunk_cloning import Built
from offline_rl.algorithms.common.config import (
    AggregateConfig,
    Ensemble,
    Expectile,
    Rate,
    Sizes,
    Tau,
)
from offline_rl.algorithms.common.critics import Critic, reduce_q
from offline_rl.algorithms.common.in_sample import expectile_loss
from offline_rl.algorithms.common.models import dynamics
from offline_rl.algorithms.common.on_policy.chains import ChainConfig, DenoisingRL
from offline_rl.algorithms.common.on_policy.ppo import standardize
from offline_rl.replay.batch import Batch
from offline_rl.utils.errors import UserError
from offline_rl.utils.options import Count, NonNegative, frozen

ACCEPTED = {"model": "behavior", "student": "student_before"}  # network -> its accepted weights
HELD_OUT = 0.9  # largest useful held-out error; predicting the mean change has 1


@frozen
class OfflineConfig(ChainConfig, AggregateConfig):
    """Defaults: RL-100's (Lei-Kun/RL-100), and PETS' for the transition model."""

    expectile: Expectile = 0.7  # expectile of V over the values of the data's chunks
    tau: Tau = 0.005  # target update rate: share of the critics mixed into their targets
    critic_hidden: Sizes = (512, 512)  # units of each hidden layer of the critics
    critic_lr: Rate = 1.4e-4  # learning rate of critics and V, offline
    members: Ensemble = 7  # ensemble members of the transition model
    elites: Built = 5  # members with the lowest held-out error, which are used
    dynamics_hidden: Sizes = (400, 400, 400, 400)  # units of each hidden layer of a member
    dynamics_lr: Rate = 5e-4  # learning rate of the transition model
    imagined: Count = 20  # model steps over which policies are compared, in complete decisions
    margin: NonNegative = 0.05  # relative improvement of the score that the gate requires
    gate: bool = True  # false: new weights are always kept
    rollback: bool = True  # false: training continues from rejected weights

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.elites > self.members:
            raise ValueError(f"elites={self.elites} exceeds members={self.members}.")

    @classmethod
    def small(cls) -> dict[str, Any]:
        return super().small() | {
            "dynamics_hidden": (16,),
            "members": 3,
            "elites": 2,
            "imagined": 4,
        }


class OfflineImprovement(DenoisingRL):
    """Offline improvement by critics and a gate.

    Adds `critic`, `dynamics` and `behavior`, the policy whose chains are reinforced.
    """

    def networks(self) -> dict[str, nn.Module]:
        """Return the networks, with critics, transition model and its error estimate `fit`."""
        cfg, actions = self.cfg, self.cfg.n_action_steps * self.spec.action_dim
        size = cfg.n_obs_steps * self.spec.observation_dim
        model = dynamics.Ensemble(size + actions, size, cfg.dynamics_hidden, cfg.members)
        critic = Critic(size, actions, cfg.critic_hidden)
        networks = {"critic": critic, "dynamics": model, "fit": dynamics.Fit(cfg.members)}
        return super().networks() | networks

    def judge(self, state: State, batch: Batch, i: int) -> tuple[State, Metrics]:
        """Update V and critics (IQL, arXiv:2110.06169, eq. 5 and 6) and the transition model."""
        cfg, s = self.cfg, batch.observations.flatten(1)
        first = cfg.n_obs_steps - 1
        a = batch.actions[:, first : first + cfg.n_action_steps].flatten(1)
        q = reduce_q(state, state.critic_target(s, a))  # [B]

        def value_loss(value: Network) -> Tensor:
            return expectile_loss(q - value(s), cfg.expectile).mean()

        state, v_loss = minimize(state, "value", value_loss)
        y = batch.rewards + batch.discount * state.value(batch.next_observations.flatten(1))

        def critic_loss(critic: Network) -> Tensor:  # [E, B] - [B]
            return (critic(s, a) - y).square().sum(0).mean()

        state, q_loss = minimize(state, "critic", critic_loss)
        state = soft_update(state, "critic_target", "critic", cfg.tau)
        change = batch.next_observations.flatten(1) - s
        assert batch.held_out is not None
        state, metrics = dynamics.update_dynamics(
            state, torch.cat([s, a], -1), change, batch.held_out
        )
        return state, metrics | {"value_loss": v_loss, "critic_loss": q_loss, "target": y.mean()}

    def fill(self, state: State, batch: Batch) -> dict[str, Tensor]:
        """Return `Rollouts` columns: chains of `behavior` on a batch's states, and advantages."""
        cfg, observations, count = self.cfg, batch.observations, len(batch.observations)
        noise = state.random.normal((count, *self.noise_shape))
        chain = self.chain(state, state.behavior, observations, noise)
        executed = torch.ones_like(noise[:, 0, : cfg.n_action_steps, 0])
        log_probs = self.chain_log_probs(state.behavior, observations, chain, executed)
        s, a = observations.flatten(1), self.executed_actions(chain).flatten(1)
        advantages = standardize(reduce_q(state, state.critic(s, a)) - state.value(s))
        columns = {"observations": observations, "chain": chain, "executed": executed}
        columns |= {"log_probs": log_probs, "advantages": advantages}
        size = cfg.decisions // cfg.environments, cfg.environments
        return {name: column.unflatten(0, size) for name, column in columns.items()}

    def compare(self, state: State, batch: Batch, i: int) -> tuple[State, Metrics]:
        """Keep the model's weights if they score better than `behavior`'s; else restore the latter.

        The same decision applies to a one-step student trained together with the policy. Optimizers
        are reset.
        """
        cfg, random = self.cfg, state.random
        head: Any = self.modules["policy"]
        count = len(batch.observations)
        elites = dynamics.elite_members(state, cfg.elites)
        draws = [
            (
                random.normal((count, *head.noise_shape)),
                elites[random.integers(cfg.elites, (count,))],
                random.normal((count, batch.observations[0].numel())),
            )
            for _ in range(max(1, cfg.imagined // cfg.n_action_steps))
        ]
        old_score, new_score = (
            self.score(state, name, batch.observations, draws) for name in ("behavior", "model")
        )
        better = new_score - old_score >= cfg.margin * old_score.abs()
        accepted = better | torch.tensor(not cfg.gate, device=better.device)
        params, optimizer = {**state.params}, {**state.optimizer}
        for name, accepted_name in ACCEPTED.items():
            if accepted_name not in params:
                continue
            old_weights, new_weights = params[accepted_name], params[name]
            accepted_weights = {
                k: torch.where(accepted, new_weights[k], old_weights[k]) for k in old_weights
            }
            params[accepted_name] = accepted_weights
            params[name] = accepted_weights if cfg.rollback else new_weights
            optimizer[name] = tree_map(torch.zeros_like, optimizer[name])  # the next loss differs
        metrics = {
            "score_before": old_score,
            "score_after": new_score,
            "accepted": accepted.float(),
        }
        metrics |= {"model_error": state.fit()[elites].mean()}
        return self.copy_to_policy(replace(state, params=params, optimizer=optimizer)), metrics

    def score(self, state: State, name: str, observations: Tensor, draws: list[Any]) -> Tensor:
        """Return the minimum critic's values summed over imagined decisions, mean over states, 0-d.

        observations: [B, n_obs_steps, O].  draws: per decision, policy noise, elite member, model
        noise.
        """
        weights = {**state.params["policy"], **state.params[name]}
        policy, total = Network(self.modules["policy"], weights), observations.new_zeros(())
        for noise, member, model_noise in draws:
            s, a = (
                observations.flatten(1),
                policy.decide(observations, {}, noise)[0][:, : self.cfg.n_action_steps].flatten(1),
            )
            total = total + reduce_q(state, state.critic(s, a)).mean()
            change = dynamics.sample_change(state, torch.cat([s, a], -1), member, model_noise)
            observations = (s + change).unflatten(1, observations.shape[1:])
        return total

    def check_phase(self, phase: str, metrics: Mapping[str, np.ndarray]) -> None:
        """Raise UserError if the transition model does not fit held-out episodes."""
        worst = float(np.max(metrics.get("model_error", 0.0)))
        if phase == "compare" and self.cfg.gate and not worst <= HELD_OUT:  # also refuses NaN
            raise UserError(
                f"The transition model does not fit: its error on held-out episodes is {worst:.2f} "
                "of that of predicting their mean change. Use more data, or a higher "
                "algorithm.judge_updates with another name=…"
            )
