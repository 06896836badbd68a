"""RAMBO: robust adversarial model-based offline RL.

The policy and the dynamics model play a zero-sum game. The policy is trained by soft actor-critic
on the data and on short rollouts of the model. At intervals, adversary steps update the model: they
make predicted transitions less likely if these are better than the critics expect. A likelihood
term keeps the model accurate on the data.

Paper:   Rigter, Lacerda, Hawes, NeurIPS 2022, arXiv:2204.12581.
Differs: from yihaosun1124/OfflineRL-Kit, whose settings are used. The log density of the elites'
         mixture is computed with logsumexp; there, with exp and log, which give -inf if
         observations have many dimensions. The adversary's rollouts restart in the states of the
         batch on which the likelihood is computed; there, in those of another batch. Behavior
         cloning samples random rows; there, each pass has the order of the file. No adversary steps
         follow the last update. With adversary=0, adversary steps only fit the model; the authors'
         code (marc-rigter/rambo, TensorFlow 1) skips them, as adversary_updates=0 does. Other
         differences are those of `mopo`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor, nn

from offline_rl.algorithms.common.base import (
    Metrics,
    Network,
    State,
    keep_where,
    minimize,
    reset_optimizer,
)
from offline_rl.algorithms.common.config import BUILT, Rate
from offline_rl.algorithms.common.critics import reduce_q
from offline_rl.algorithms.common.models import dynamics
from offline_rl.algorithms.common.models.fitting import known_targets, model_loss
from offline_rl.algorithms.common.models.rollouts import ModelBased, ModelConfig
from offline_rl.algorithms.common.schedule import Learn, Piece
from offline_rl.data import Dataset
from offline_rl.replay.batch import Batch, Source, Sources, require
from offline_rl.utils.options import Amount, Count, NonNegative, Range, Share, frozen

CLONING_EPOCHS = 50


@frozen
class Config(ModelConfig):
    """Defaults: OfflineRL-Kit's (run_example/run_rambo.py)."""

    adversary: NonNegative = 3e-4  # weight of the adversarial loss; 0: the model is only fitted
    adversary_lr: Rate = 3e-4  # learning rate of the dynamics model in adversary steps
    adversary_updates: Amount = 1000  # adversary steps in a row; 0: no adversary
    adversary_every: Count = 1000  # updates before adversary steps; a multiple of rollout_every
    walk: Count = 5  # steps of the adversary's rollouts, which then restart from the data
    cloning_updates: Amount | None = None  # updates of behavior cloning; null: 50 data passes
    normalize_observations: bool = True
    dynamics_lr: Rate = 3e-4
    bounds_weight: NonNegative = 0.001
    holdout_share: Annotated[float, Range(above=0, below=1), BUILT] = 0.1
    patience: Count = 10
    rollout_every: Count = 250
    retain: Count = 20
    real_share: Annotated[Share, BUILT] = 0.5
    actor_anneals: Annotated[bool, BUILT] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.adversary_every % self.rollout_every:
            raise ValueError(
                f"adversary_every={self.adversary_every} is not a multiple of "
                f"rollout_every={self.rollout_every}. Use a multiple."
            )
        if self.model == "sparse" and self.adversary_updates:
            raise ValueError("model=sparse has no adversary. Set algorithm.adversary_updates=0.")

    @classmethod
    def small(cls) -> dict[str, Any]:
        values = {"adversary_every": 4, "adversary_updates": 4, "walk": 2, "cloning_updates": 4}
        return super().small() | values


class Walk(nn.Module):
    """States of the adversary's rollouts, one per row of a batch. No optimizer trains them."""

    def __init__(self, rows: int, observations: int) -> None:
        super().__init__()
        self.states = nn.Parameter(torch.zeros(rows, observations))

    def forward(self) -> Tensor:
        """Return the states, [B, O]."""
        return self.states


class RAMBO(ModelBased):
    Config = Config
    imitation_phases: ClassVar = ("clone",)
    caution = "more algorithm.dynamics_epochs"

    def networks(self) -> dict[str, nn.Module]:
        walk = Walk(self.cfg.batch_size, self.spec.observation_dim)
        return super().networks() | {"walk": walk}

    @property
    def phases(self) -> Mapping[str, int]:
        """Number of updates of each phase; the schedule repeats the adversary's phase."""
        cfg = self.cfg
        clone = 1 if cfg.cloning_updates is None else cfg.cloning_updates
        phases = {"clone": clone, **super().phases, "update_adversary": cfg.adversary_updates}
        return {name: updates for name, updates in phases.items() if updates}

    def prepare(self, dataset: Dataset) -> tuple[Dataset, Any]:
        """Set `cloning_updates` from the number of rows if it is null."""
        dataset, cfg = super().prepare(dataset)
        if cfg.cloning_updates is None:
            updates = CLONING_EPOCHS * dataset.num_rows // cfg.batch_size
            cfg = replace(cfg, cloning_updates=updates)
        return dataset, cfg

    def schedule(self, num_updates: int, num_env_steps: int, pretrain: int | None) -> list[Piece]:
        clone = Learn("clone", self.phases.get("clone", 0) if num_updates else 0)
        return [clone] * (clone.size > 0) + super().schedule(num_updates, num_env_steps, pretrain)

    def rollouts_and_updates(self, num_updates: int) -> list[Piece]:
        """Return the pieces of the main phase, with adversary steps between them."""
        cfg, work, done = self.cfg, list[Piece](), 0
        adversary = Learn("update_adversary", cfg.adversary_updates, evaluate=False)
        for piece in super().rollouts_and_updates(num_updates):
            work.append(piece)
            if isinstance(piece, Learn):
                done += piece.updates
                due = done % cfg.adversary_every == 0 and done < num_updates
                work += [adversary] * (due and adversary.size > 0)
        return work

    def source(self, phase: str, sources: Sources) -> Source:
        if phase == "clone":
            return self.offline_source(phase, sources)
        if phase == "update_adversary":
            return require(sources, "offline")
        return super().source(phase, sources)

    def clone(self, state: State, batch: Batch, i: int) -> tuple[State, Metrics]:
        """Update the policy by behavior cloning, on the squared error of a sampled action.

        The last update resets Adam's moments for the main phase.
        """

        def loss(policy: Network) -> Tensor:
            a, _ = policy.sample(batch.observations, state.random)
            return (a - batch.actions).square().mean()

        state, value = minimize(state, "policy", loss)
        is_last = state.done + 1 >= self.phases["clone"]
        return reset_optimizer(state, "policy", is_last), {"policy_loss": value}

    def select_dynamics(self, state: State, batch: Batch, i: int) -> tuple[State, Metrics]:
        """Restore each member's stored weights, and reset Adam's moments for the adversary."""
        state, metrics = super().select_dynamics(state, batch, i)
        if "dynamics" in state.optimizer:
            state = reset_optimizer(state, "dynamics", torch.ones_like(state.done) > 0)
        return state, metrics

    def update_adversary(self, state: State, batch: Batch, i: int) -> tuple[State, Metrics]:
        """Update the model against the policy, on one step of the walk and on rows of the data.

        The walk continues after the end of an episode. If the adversarial loss is not finite, the
        model is not changed.
        """
        cfg = self.cfg
        restarts = state.done % cfg.adversary_updates % cfg.walk == 0
        s = torch.where(restarts, batch.observations, state.walk())
        a = self.choose_action(state, s)
        prediction = self.predict(state, s, a)
        s2, r, ends = self.outcome(s, a, prediction)
        advantage = self.advantage(state, s, a, r, s2, ends)
        x, change = torch.cat([s, a], -1), prediction.next_observations - s
        y = torch.cat([change, prediction.rewards[:, None]], -1)
        is_elite = self.elite_mask(state)
        real_x, real_y = (z.expand(cfg.members, *z.shape) for z in known_targets(batch))

        def loss(model: Network) -> tuple[Tensor, tuple[Tensor, ...]]:
            mean, log_variance = model(x)
            log_p = dynamics.mixture_log_prob(mean, log_variance, y, is_elite)  # [B]
            adversarial = (log_p * advantage).mean()
            fit = model_loss(model, real_x, real_y, cfg.dynamics_decay, cfg.bounds_weight)
            return cfg.adversary * adversarial + fit, (adversarial, fit, log_p.mean())

        with_adversary_lr = self.with_values({"dynamics_lr": cfg.adversary_lr})
        learner = replace(state, algorithm=with_adversary_lr)
        learned, _, (adversarial, fit, log_p) = minimize(learner, "dynamics", loss)
        state = replace(keep_where(state, learned, ~adversarial.isfinite()), algorithm=self)
        walk = torch.where(s2.isfinite().all(-1, keepdim=True), s2, batch.observations)
        metrics = {"adversarial_loss": adversarial, "dynamics_loss": fit, "log_prob": log_p}
        return replace(state, params={**state.params, "walk": {"states": walk}}), metrics

    def advantage(
        self, state: State, s: Tensor, a: Tensor, r: Tensor, s2: Tensor, ends: Tensor
    ) -> Tensor:
        """Return how much better than Q(s, a) each transition is, standardized over the batch, [B].

        It is r + gamma * Q(s', pi(s')) - Q(s, a), with the critics' combined value.
        """
        next_q = reduce_q(state, state.critic(s2, state.policy.act(s2)))
        y = r + self.cfg.discount * torch.where(ends, 0.0, next_q)
        gain = y - reduce_q(state, state.critic(s, a))
        return (gain - gain.mean()) / (gain.std() + 1e-6)
