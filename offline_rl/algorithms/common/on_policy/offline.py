"""Denoising improved by data alone: critics, chains on the data's states, and a gate.

Critics learn what the data's chunks are worth (IQL). Chains of a frozen policy are valued by them,
and reinforced with the clipped loss. The weights that come of it are kept where, from the same
starts in a learned model, they do better than those before by a margin, and else put back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from offline_rl.algorithms.common import dynamics
from offline_rl.algorithms.common.base import (
    Metrics,
    Network,
    State,
    minimize,
    soft_update,
)
from offline_rl.algorithms.common.chunk_cloning import Built
from offline_rl.algorithms.common.config import Ensemble, Expectile, Rate, Sizes, Tau
from offline_rl.algorithms.common.critics import Critic
from offline_rl.algorithms.common.in_sample import expectile_loss
from offline_rl.algorithms.common.on_policy.chains import ChainConfig, DenoisingRL
from offline_rl.algorithms.common.on_policy.ppo import standardize
from offline_rl.replay.batch import Batch
from offline_rl.utils.errors import UserError
from offline_rl.utils.options import Count, NonNegative

BEFORE = {"model": "behavior", "student": "student_before"}  # what learns, and what was accepted
HELD_OUT = 0.9  # a model with a larger error, of 1 for the mean change, tells nothing


@dataclass(frozen=True)
class OfflineConfig(ChainConfig):
    """What judges; defaults: RL-100's (Lei-Kun/RL-100), and PETS' for the model."""

    expectile: Expectile = 0.7  # of V among the values of the data's chunks
    tau: Tau = 0.005  # share of the critics that enters their targets each update
    critic_hidden: Sizes = (512, 512)  # units of each hidden layer of a critic
    critic_lr: Rate = 1.4e-4  # of critics and V, on data
    members: Ensemble = 7  # networks of the transition model
    elites: Built = 5  # of these, those that are asked
    dynamics_hidden: Sizes = (400, 400, 400, 400)  # units of each hidden layer of a member
    dynamics_lr: Rate = 5e-4  # of its members
    imagined: Count = 20  # steps in the model over which policies are compared, in whole decisions
    margin: NonNegative = 0.05  # of the score before, by which new weights have to be better
    gate: bool = True  # false: new weights are always kept
    rollback: bool = True  # false: where they are refused, learning goes on from them all the same

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.elites > self.members:
            raise ValueError(f"elites={self.elites} are more than members={self.members}")


class OfflineImprovement(DenoisingRL):
    """With `critic`, `dynamics` and `behavior`, the policy whose chains are reinforced."""

    def networks(self) -> dict[str, nn.Module]:
        """Those that judge are `critic`, `value` and `dynamics`; `fit` says how well the latter."""
        cfg, actions = self.cfg, self.cfg.n_action_steps * self.spec.action_dim
        seen = cfg.n_obs_steps * self.spec.observation_dim
        model = dynamics.Ensemble(seen + actions, seen, cfg.dynamics_hidden, cfg.members)
        critic = Critic(seen, actions, cfg.critic_hidden)
        judges = {"critic": critic, "dynamics": model, "fit": dynamics.Fit(cfg.members)}
        return super().networks() | judges

    def judge(self, state: State, batch: Batch, i: int) -> tuple[State, Metrics]:
        """One step of V and critics (IQL, arXiv:2110.06169, eq. 5 and 6), and of the model."""
        cfg, s = self.cfg, batch.observations.flatten(1)
        first = cfg.n_obs_steps - 1
        a = batch.actions[:, first : first + cfg.n_action_steps].flatten(1)
        q = state.critic_target(s, a).amin(0)  # [B]

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
        state, told = dynamics.update_dynamics(state, torch.cat([s, a], -1), change, batch.held_out)
        return state, told | {"value_loss": v_loss, "critic_loss": q_loss, "target": y.mean()}

    def fill(self, state: State, batch: Batch) -> dict[str, Tensor]:
        """Columns of `Rollouts`: chains of `behavior` on a batch's states, and their worth."""
        cfg, seen, count = self.cfg, batch.observations, len(batch.observations)
        noise = state.random.normal((count, *self.noise_shape))
        chain = self.chain(state, state.behavior, seen, noise)
        executed = torch.ones_like(noise[:, 0, : cfg.n_action_steps, 0])
        log_probs = self.chain_log_probs(state.behavior, seen, chain, executed)
        s, a = seen.flatten(1), self.executed_actions(chain).flatten(1)
        gained = standardize(state.critic(s, a).amin(0) - state.value(s))
        made = {"observations": seen, "chain": chain, "executed": executed}
        made |= {"log_probs": log_probs, "advantages": gained}
        size = cfg.decisions // cfg.environments, cfg.environments
        return {name: column.unflatten(0, size) for name, column in made.items()}

    def compare(self, state: State, batch: Batch, i: int) -> tuple[State, Metrics]:
        """The gate: the model's weights stay where they are better than `behavior`'s.

        Those of a one-step head that learns beside it share its fate. Optimizers begin anew.
        """
        cfg, random = self.cfg, state.random
        head: Any = self.modules["policy"]
        count = len(batch.observations)
        best = dynamics.elite_members(state, cfg.elites)
        rounds = [
            (
                random.normal((count, *head.noise_shape)),
                best[random.integers(cfg.elites, (count,))],
                random.normal((count, batch.observations[0].numel())),
            )
            for _ in range(max(1, cfg.imagined // cfg.n_action_steps))
        ]
        before, after = (
            self.score(state, name, batch.observations, rounds) for name in ("behavior", "model")
        )
        better = after - before >= cfg.margin * before.abs()
        stays = better | torch.tensor(not cfg.gate, device=better.device)
        params, optimizer = {**state.params}, {**state.optimizer}
        for name, before_it in BEFORE.items():
            if before_it not in params:
                continue
            was, found = params[before_it], params[name]
            was = {k: torch.where(stays, found[k], was[k]) for k in was}
            params[before_it] = was
            params[name] = was if cfg.rollback else found
            optimizer[name] = tree_map(torch.zeros_like, optimizer[name])  # next is another loss
        metrics = {"score_before": before, "score_after": after, "accepted": stays.float()}
        metrics |= {"model_error": state.fit()[best].mean()}
        return self.copy_to_policy(replace(state, params=params, optimizer=optimizer)), metrics

    def score(self, state: State, name: str, seen: Tensor, rounds: list[Any]) -> Tensor:
        """The least critic's values along imagined decisions, summed: the mean over starts, 0-d.

        seen: [B, n_obs_steps, O].  rounds: of each decision the noise, the elite and its noise.
        """
        weights = {**state.params["policy"], **state.params[name]}
        policy, total = Network(self.modules["policy"], weights), seen.new_zeros(())
        for noise, member, drawn in rounds:
            s, a = (
                seen.flatten(1),
                policy.plan(seen, noise)[:, : self.cfg.n_action_steps].flatten(1),
            )
            total = total + state.critic(s, a).amin(0).mean()
            change = dynamics.sample_change(state, torch.cat([s, a], -1), member, drawn)
            seen = (s + change).unflatten(1, seen.shape[1:])
        return total

    def check_phase(self, phase: str, metrics: Mapping[str, np.ndarray]) -> None:
        """See `Algorithm`."""
        worst = float(np.max(metrics.get("model_error", 0.0)))
        if phase == "compare" and self.cfg.gate and not worst <= HELD_OUT:  # NaN is none
            raise UserError(
                f"the transition model does not fit: on episodes held out its error is {worst:.2f} "
                "of what their mean change has; give more data, or a higher "
                "algorithm.judge_updates under another name=…"
            )
