"""RO2O: SAC-N with critics and policy smoothed around the data's states, offline and then online.

Critics and policy are trained to change little under the worst of n small state perturbations.
Critics are lowered by their own standard deviation at the policy's actions in perturbed states.
Online training uses the same losses on new experience.

Paper:   Wen, Yu, Yang, Chen, Bai, Wang, 2023, arXiv:2309.16973; the losses are those of RORL,
         arXiv:2206.02829.
Differs: from the authors' code (BattleWen/RO2O:algorithms/offline). Weights are initialized by
         fan-in; the authors' by fan-out. The log density is exact; the authors add 1e-6 inside its
         logarithm. As in the authors' code, "adversarial" means the worst of n uniform draws, not a
         gradient attack, and all states of a batch share these draws. Online, the losses are the
         paper's. The authors' online code (algorithms/finetune) keeps only SAC's losses and the
         cloning term; the options for this are online.q_smoothness=0 online.policy_smoothness=0
         online.uncertainty=0. For mazes, that code always has a cloning weight of 1 or 10 and
         rewards of 4 (r - 1/2); here the cloning weight and rewards of offline training are used.
         The authors' buffer starts empty; to start with the data, set online.offline_fraction=rows.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from torch import Tensor
from torch.nn.functional import mse_loss

from offline_rl.algorithms import sac_n
from offline_rl.algorithms.common import schedule
from offline_rl.algorithms.common.base import (
    DATA_THEN_ONLINE,
    Algorithm,
    LossAndMetrics,
    Network,
    State,
)
from offline_rl.algorithms.common.entropy import ensemble_min, soft_q
from offline_rl.algorithms.common.schedule import ONLINE
from offline_rl.algorithms.sac_n import squared_error
from offline_rl.replay.batch import Batch
from offline_rl.utils.options import Amount, Count, NonNegative, Share, frozen


@frozen
class Config(sac_n.Config):
    """Defaults: the authors' README for walker2d-medium."""

    num_samples: Count = 20  # perturbed states per state (n)
    q_noise: NonNegative = 0.01  # largest perturbation in the critics' smoothness loss
    policy_noise: NonNegative = 0.01  # largest perturbation in the policy's smoothness loss
    ood_noise: NonNegative = 0.01  # largest perturbation in the uncertainty loss
    q_smoothness: NonNegative = 1e-4  # weight of the critics' smoothness loss (eta_1)
    policy_smoothness: NonNegative = 1.0  # weight of the policy's smoothness loss (eta_3)
    uncertainty: NonNegative = 0.1  # weight of the uncertainty loss (eta_2)
    pessimism: NonNegative = 1.0  # standard deviations by which Q is lowered, at the start (alpha)
    min_pessimism: NonNegative = 0.1  # lower bound of pessimism as it decays
    pessimism_decay: Share = 5e-7  # decrease of pessimism per update
    bound: Literal["min", "lcb"] = "min"  # what the policy maximizes: minimum of Q, or mean - 4 std
    cloning: NonNegative = 0.0  # weight of the policy's squared distance to the data's actions
    independent: bool = False  # each critic has its own target instead of a shared minimum
    normalize_observations: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.independent:
            self.refuse_unread("independent", "q_aggregate", "rho")


@frozen
class Online(schedule.Online):
    """Defaults: the authors' code."""

    warmup_steps: Amount = 2_500


class RO2O(sac_n.SACN):
    Config: type = Config
    Online: type = Online
    mode = DATA_THEN_ONLINE

    def for_phase(self, phase: str) -> Algorithm:
        """Return the algorithm for `phase`.

        Online, pessimism is `min_pessimism` unless online.pessimism is set.
        """
        algorithm = super().for_phase(phase)
        if phase == ONLINE and "pessimism" not in algorithm.fixed_online_fields:
            algorithm.cfg = replace(algorithm.cfg, pessimism=0.0)  # min_pessimism applies
            algorithm.fixed_online_fields |= {"pessimism"}
        return algorithm

    def policy_loss(
        self, policy: Network, state: State, batch: Batch, alpha: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return SAC's loss plus smoothness and cloning terms, and the entropy."""
        s, cfg = batch.observations, self.cfg
        pi, log_pi = policy.sample(s, state.random)
        q = state.critic(s, pi)
        bound = ensemble_min(q) if cfg.bound == "min" else q.mean(0) - 4 * q.std(0)
        worst = jeffreys_divergence(
            policy(s), policy(self.perturb(state, s, cfg.policy_noise))
        ).amax(0)  # [B]
        loss = (alpha * log_pi - bound).mean() + cfg.policy_smoothness * worst.mean()
        return loss + cfg.cloning * (pi - batch.actions).square().mean(), -log_pi.mean()

    def target(self, state: State, batch: Batch, alpha: Tensor) -> Tensor:
        """Return SAC-N's target [B], or the separate target of each critic [E, B]."""
        if not self.cfg.independent:
            return super().target(state, batch, alpha)
        return batch.rewards + batch.discount * soft_q(state, batch.next_observations, alpha)

    def critic_loss(self, critic: Network, state: State, batch: Batch, y: Tensor) -> LossAndMetrics:
        """Return SAC-N's loss plus the smoothness and uncertainty losses."""
        s, a, cfg = batch.observations, batch.actions, self.cfg
        q = critic(s, a)  # [E, B]
        td, metrics = squared_error(q, y)

        near = self.perturb(state, s, cfg.q_noise)  # [N, B, O]
        change = critic(near, a.expand(len(near), *a.shape)) - q[:, None]  # [E, N, B]
        rise, fall = change.clamp(min=0).square(), change.clamp(max=0).square()
        smooth = (0.8 * rise + 0.2 * fall).mean(0).amax(0).mean()

        near = self.perturb(state, s, cfg.ood_noise)
        pi, _ = state.policy.sample(near, state.random)
        q_ood = critic(near, pi)  # [E, N, B]
        done = state.optimizer["critic"]["count"]["steps"]
        depth = (cfg.pessimism - cfg.pessimism_decay * done).clamp(min=cfg.min_pessimism)
        lower = mse_loss(q_ood, (q_ood - depth * q_ood.std(0)).detach())
        loss = td + cfg.q_smoothness * smooth + cfg.uncertainty * lower
        return loss, metrics | {"smoothness": smooth, "uncertainty": lower}

    def perturb(self, state: State, observations: Tensor, size: float) -> Tensor:
        """Return states moved by N uniform draws in +-size, [B, O] -> [N, B, O].

        All states share the same N draws.
        """
        shape = (self.cfg.num_samples, 1, observations.shape[-1])
        return observations + size * (2 * state.random.uniform(shape) - 1)


def jeffreys_divergence(p: tuple[Tensor, Tensor], q: tuple[Tensor, Tensor]) -> Tensor:
    """Return KL(p, q) + KL(q, p), summed over actions. p, q: mean and log std of normals."""
    (mean, log_std), (other_mean, other_log_std) = p, q
    ratio = (2 * (log_std - other_log_std)).exp()
    gap = (mean - other_mean).square()
    shift = gap * ((-2 * log_std).exp() + (-2 * other_log_std).exp())
    return ((ratio + 1 / ratio + shift) / 2 - 1).sum(-1)
