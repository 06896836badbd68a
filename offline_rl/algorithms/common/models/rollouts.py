"""Model-based offline RL: soft actor-critic on the data and on rollouts of a dynamics model.

A dynamics model is fitted first. Then, every `rollout_every` updates, the policy acts in the model
for `horizon` steps, from states of the data. Batches mix real and predicted transitions.

Janner et al., NeurIPS 2019, arXiv:1906.08253. Defaults: yihaosun1124/OfflineRL-Kit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from offline_rl.algorithms.common.base import Metrics, State, update_targets
from offline_rl.algorithms.common.config import BUILT, Rate
from offline_rl.algorithms.common.critics import regress
from offline_rl.algorithms.common.entropy import soft_target, update_policy, update_temperature
from offline_rl.algorithms.common.models.fitting import PARTS, FittedDynamics, FittingConfig
from offline_rl.algorithms.common.optim import Adam, cosine
from offline_rl.algorithms.common.safety.guardian import GuardianConfig
from offline_rl.algorithms.common.schedule import Fill, Learn, Piece
from offline_rl.replay.batch import Batch, Source, Sources, require
from offline_rl.replay.mixtures import Marked, Mixture
from offline_rl.utils.errors import UserError
from offline_rl.utils.options import Count, Number, Positive, Range, Share, frozen
from policies.heads.gaussian import TanhGaussianActor

CHUNK = 10_000  # maximum number of rollouts computed at once, to limit memory
MODEL = "imagined"  # name of the source of predicted transitions, and of the column that marks them
Ends = Literal["task", "published", "never"]


@frozen
class ModelConfig(FittingConfig, GuardianConfig):
    """Options of rollouts in a dynamics model. Defaults: OfflineRL-Kit's."""

    rewards: Annotated[Literal["model", "task"], BUILT] = (
        "model"  # rewards in rollouts. model: predicted; task: computed by the task's formula
    )
    ends: Annotated[Ends, BUILT] = (
        "task"  # ends of rollouts. task: rule of the environment; published: rule of public code
    )
    clamp_states: Annotated[bool, BUILT] = False  # clip predicted states to the data's range
    outside_max: Share = 0.5  # stop if a larger share of predicted states is far outside the data
    horizon: Annotated[int, Range(1), BUILT] = 5  # steps of a rollout
    starts: Annotated[int, Range(1), BUILT] = 50_000  # number of rollouts in a set
    rollout_every: Count = 1_000  # updates between two sets of rollouts
    retain: Count = 5  # number of the newest sets of rollouts that are kept
    real_share: Annotated[Share, BUILT] = 0.05  # share of the data's transitions in a batch
    alpha_max: Positive | None = 1.0  # upper bound of the temperature; null: none
    actor_anneals: Annotated[bool, BUILT] = True  # anneal the actor's learning rate to 0 (cosine)
    entropy_in_target: Annotated[bool, BUILT] = True  # include the entropy in critic targets
    entropy_scale: Number = 1.0  # target entropy is -entropy_scale * |A|
    actor_lr: Rate = 1e-4
    alpha_lr: Rate = 1e-4

    @classmethod
    def small(cls) -> dict[str, Any]:
        return super().small() | {"horizon": 2, "starts": 16, "rollout_every": 4}


class Prediction(NamedTuple):
    """Prediction of a transition from B states, by all E members and by a sampled elite."""

    next_observations: Tensor  # [B, O], of the sampled member, with noise
    rewards: Tensor  # [B]
    means: Tensor  # [E, B, O + 1]: next observations and reward
    stds: Tensor  # [E, B, O + 1]


class ModelBased(FittedDynamics):
    """Soft actor-critic on real and predicted transitions.

    A subclass changes the reward of predictions (`imagined_reward`) or the update.
    """

    Config: type = ModelConfig
    uses_facts = True
    caution: ClassVar[str] = "a higher algorithm.penalty"  # keeps a policy close to the data

    def actor(self) -> nn.Module:
        return self.build(TanhGaussianActor, log_std_range=(-5, 2))

    def optimizers(self) -> dict[str, Adam]:
        schedule = cosine(self.num_updates) if self.cfg.actor_anneals else None
        return super().optimizers() | {"policy": Adam(self.cfg.actor_lr, schedule=schedule)}

    def schedule(self, num_updates: int, num_env_steps: int, pretrain: int | None) -> list[Piece]:
        if pretrain is not None:
            raise UserError(
                f"pretrain_updates={pretrain} is not used by model-based methods. Set "
                "algorithm.dynamics_epochs."
            )
        work = self.fitting_pieces(self.cfg.epoch_updates or 1)
        return work + self.rollouts_and_updates(num_updates)

    def rollouts_and_updates(self, num_updates: int) -> list[Piece]:
        """Return the pieces of the main phase: rollouts before every `rollout_every` updates."""
        work, every = list[Piece](), self.cfg.rollout_every
        for done in range(0, num_updates, every):
            work += self.fill_pieces()
            work.append(Learn("update", min(every, num_updates - done)))
        return work

    def fill_pieces(self, phase: str = "update", chunk: int = CHUNK) -> list[Piece]:
        """Return the pieces that compute `starts` rollouts with the config of `phase`.

        chunk: maximum number of rollouts computed at once.
        """
        starts = self.cfg.starts
        sizes = [min(chunk, starts - done) for done in range(0, starts, chunk)]
        return [Fill(phase, size, states="starts", target=MODEL) for size in sizes]

    def rings(self) -> Mapping[str, int]:
        return {MODEL: self.cfg.starts * self.cfg.horizon * self.cfg.retain}

    def source(self, phase: str, sources: Sources) -> Source:
        if phase in PARTS:
            return super().source(phase, sources)
        data = require(sources, "offline")
        if phase == "starts":
            return data
        real = self.real_rows(self.cfg.batch_size) / self.cfg.batch_size
        marked = Marked(data, MODEL, 0.0), Marked(require(sources, MODEL), MODEL, 1.0)
        return Mixture(*marked, real)

    def real_rows(self, batch_size: int) -> int:
        """Return the number of the data's transitions in a batch."""
        return int(batch_size * self.cfg.real_share)

    def predicted_rows(self, batch: Batch) -> Tensor:
        """Return the indices of the predicted transitions of a batch, in order."""
        assert batch.imagined is not None
        first = batch.imagined.argsort(stable=True)
        return first[self.real_rows(len(batch.rewards)) :]

    def predict(self, state: State, s: Tensor, a: Tensor) -> Prediction:
        """Return predictions for states [B, O] and actions [B, A]. Each row samples an elite."""
        mean, log_variance = state.dynamics(torch.cat([s, a], -1))
        means = torch.cat([mean[..., :-1] + s, mean[..., -1:]], -1)
        stds = (0.5 * log_variance).exp()
        member = self.elite_members(state)[state.random.integers(self.cfg.elites, (len(s),))]
        rows = torch.arange(len(s), device=s.device)
        noise = state.random.normal(means.shape[1:])
        sample = means[member, rows] + stds[member, rows] * noise
        return Prediction(sample[:, :-1], sample[:, -1], means, stds)

    def outcome(
        self, s: Tensor, a: Tensor, prediction: Prediction
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return next states [B, O], rewards [B] and ends [B] of predicted transitions.

        See `clamp_states`, `rewards`, `ends` and `guardian` in the config.
        """
        cfg, facts = self.cfg, self.facts
        assert facts is not None
        s2, r = prediction.next_observations, prediction.rewards
        s2 = facts.clamp(s2) if cfg.clamp_states else s2
        r = facts.task_reward(s, a, s2) if cfg.rewards == "task" else r
        return s2, *facts.guard(s, a, r, facts.is_end(cfg.ends, s, a, s2))

    def imagined_reward(self, state: State, prediction: Prediction, rewards: Tensor) -> Tensor:
        """Return the rewards [B] that are stored with predicted transitions."""
        return rewards

    def choose_action(self, state: State, s: Tensor) -> Tensor:
        """Return the actions [B, A] of a rollout."""
        action: Tensor = state.policy.explore_action(s, state.random)
        return action

    def fill(self, state: State, batch: Batch) -> dict[str, Tensor]:
        """Return rollouts from the states of the batch, as episodes of one step each.

        Rows after the end of a rollout are not valid.
        """
        cfg = self.cfg
        s, alive = batch.observations, torch.ones_like(batch.rewards, dtype=torch.bool)
        rows: dict[str, list[Tensor]] = {}
        for _ in range(cfg.horizon):
            a = self.choose_action(state, s)
            prediction = self.predict(state, s, a)
            s2, r, ends = self.outcome(s, a, prediction)
            columns = {"observations": s, "actions": a, "next_observations": s2}
            columns["rewards"] = self.imagined_reward(state, prediction, r)
            columns |= {"terminated": ends.float(), "truncated": (~ends).float()}
            finite = s2.isfinite().all(-1) & columns["rewards"].isfinite()
            for name, column in (columns | {"valid": alive & finite}).items():
                rows.setdefault(name, []).append(column)
            alive = alive & finite & ~ends
            s = torch.where(finite[:, None], s2, s)
        return {name: torch.cat(columns) for name, columns in rows.items()}

    def update(self, state: State, batch: Batch, i: int) -> tuple[State, Metrics]:
        """Update critics, actor, temperature and target, in this order."""
        alpha = self.alpha(state)
        y = self.target(state, batch, alpha)
        state, metrics = regress(state, batch, y)
        state, log_pi, actor_metrics = update_policy(state, state, batch.observations, alpha)
        state = update_temperature(state, log_pi, -self.cfg.entropy_scale * self.spec.action_dim)
        metrics |= actor_metrics | self.outside(batch)
        return update_targets(state), metrics

    def alpha(self, state: State) -> Tensor:
        """Return the temperature, at most `alpha_max`, 0-d."""
        alpha: Tensor = state.log_alpha().exp().detach()
        return alpha if self.cfg.alpha_max is None else alpha.clamp(max=self.cfg.alpha_max)

    def target(self, state: State, batch: Batch, alpha: Tensor) -> Tensor:
        """Return the regression target of the critics, [B]."""
        weight = alpha if self.cfg.entropy_in_target else torch.zeros_like(alpha)
        return soft_target(state, batch, weight)

    def outside(self, batch: Batch) -> Metrics:
        """Return the share of predicted next states that are far outside the data's range."""
        if self.facts is None or not len(self.facts.low) or batch.imagined is None:
            return {}
        is_outside = self.facts.is_outside(batch.next_observations) * batch.imagined
        return {"outside_data": is_outside.sum() / batch.imagined.sum().clamp(min=1)}

    def check_phase(self, phase: str, metrics: Mapping[str, np.ndarray]) -> None:
        """Raise UserError if the model predicts states far outside the data."""
        share = float(np.max(metrics.get("outside_data", 0.0)))
        if not share <= self.cfg.outside_max:
            raise UserError(
                f"The dynamics model has diverged: {share:.0%} of its predicted states are outside "
                "the data's range by more than the width of that range (limit: outside_max="
                f"{self.cfg.outside_max:g}). Use algorithm.clamp_states=true, a shorter "
                f"algorithm.horizon, or {self.caution}."
            )
