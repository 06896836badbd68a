"""Model-based RL: TD3 on transitions of the data and on transitions that a model predicts.

A model is fitted to the data. Then, in rounds, it predicts one step of the policy from states of
the data, and TD3 is trained on batches of real and predicted transitions.

Paper: Janner et al., NeurIPS 2019, arXiv:1906.08253 (MBPO). Differs: one deterministic model.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from offline_rl.algorithms import td3
from offline_rl.algorithms.common.base import Metrics, Mode, State, minimize
from offline_rl.algorithms.common.config import Preliminary
from offline_rl.algorithms.common.schedule import Fill, Learn, Piece
from offline_rl.replay.batch import Batch, Source, Sources
from offline_rl.replay.mixtures import Mixture
from offline_rl.utils.options import Count, frozen
from policies.networks.mlp import MLP


@frozen
class Config(td3.Config):
    model_updates: Preliminary = 1_000  # updates that fit the model
    updates_per_round: Count = 1_000  # updates of TD3 between predictions of new transitions
    rows: Count = 1_000  # transitions that the model predicts per round
    capacity: Count = 10_000  # predicted transitions that are kept, the newest


class LearnedModel(td3.TD3):
    Config = Config
    mode = Mode(learns=("data",))
    needed_phases = ("fit_model",)

    @property
    def phases(self) -> Mapping[str, int]:
        return {"fit_model": self.cfg.model_updates}

    def schedule(self, num_updates: int, num_env_steps: int, pretrain: int | None) -> list[Piece]:
        *work, main = super().schedule(num_updates, num_env_steps, pretrain)
        fill = Fill("update", self.cfg.rows, states="fit_model", target="imagined")
        for done in range(0, main.size, n := self.cfg.updates_per_round):
            work += [fill, Learn("update", min(n, main.size - done), evaluate=False)]
        return work

    def rings(self) -> Mapping[str, int]:
        return {"imagined": self.cfg.capacity}

    def source(self, phase: str, sources: Sources) -> Source:
        data = super().source(phase, sources)
        return data if phase == "fit_model" else Mixture(data, sources["imagined"])

    def networks(self) -> dict[str, nn.Module]:
        obs, inputs = self.spec.observation_dim, self.spec.observation_dim + self.spec.action_dim
        return super().networks() | {"model": MLP(inputs, obs + 1, self.cfg.hidden)}

    def optimizers(self):
        return super().optimizers() | {"model": self.adam(self.cfg.critic_lr)}

    def fit_model(self, state: State, batch: Batch, i: int) -> tuple[State, Metrics]:
        """Update the model by regression on changes of the state and rewards."""
        x = torch.cat([batch.observations, batch.actions], -1)
        change = batch.next_observations - batch.observations
        target = torch.cat([change, batch.rewards[:, None]], -1)
        state, loss = minimize(state, "model", lambda model: (model(x) - target).square().mean())
        return state, {"model_loss": loss}

    def fill(self, state: State, batch: Batch) -> dict[str, Tensor]:
        """Return a predicted transition from each state of the batch, as an episode of one step."""
        s = batch.observations
        a = state.policy.explore_action(s, state.random)
        prediction = state.model(torch.cat([s, a], -1))
        s2, r = s + prediction[:, :-1], prediction[:, -1]
        ends = {"terminated": torch.zeros_like(r), "truncated": torch.ones_like(r)}
        return {"observations": s, "actions": a, "rewards": r, "next_observations": s2, **ends}
