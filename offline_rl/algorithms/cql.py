"""Conservative Q-learning (CQL): a critic that thinks little of what the data does not show.

Soft actor-critic whose critics pay a penalty for every action they prefer to the data's: a soft
maximum of Q over sampled actions less Q at the data's. The weight is fixed, or learned such that the
penalty stays at `gap`.

Paper:   Kumar, Zhou, Tucker, Levine, NeurIPS 2020, arXiv:2006.04779, with its equation numbers.
Differs: from the authors' code (aviralkumar2907/CQL:d4rl/rlkit/torch/sac/cql.py) in that all losses
         are taken at the old parameters, and max_target_backup is a max over actions of the min
         over critics, both as in young-geng/CQL:SimpleSAC/conservative_sac.py. Also young-geng's:
         the exact log density (1e-6 inside the authors' logarithm), the learned scale and shift of
         the log deviation, its range of [-20, 2] (there [-5, 2]), a temperature stepped after the
         losses that use it, the penalty's bounds and the initial weights. From the defaults'
         source, tinkoff-ai/CORL, in that its second critic always has three hidden layers. CORL's
         cloning phase raises the density of the policy's own samples, not of the data's actions;
         here it is young-geng's. Online as tinkoff-ai/CORL:algorithms/finetune/cql.py. `num_critics`,
         `num_min_critics` and `layer_norm` are zhouzypaul/wsrl's (wsrl/agents/cql.py), as WSRL goes on from:
         algorithm.num_critics=10 algorithm.num_min_critics=2 algorithm.layer_norm=true.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partialmethod
from math import inf, log
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from offline_rl.algorithms.common import schedule
from offline_rl.algorithms.common.base import Algorithm, Metrics, State, minimize_with, soft_update
from offline_rl.algorithms.common.config import (
    BUILT,
    Bound,
    Discount,
    EnsembleConfig,
    Preliminary,
    Rate,
    Sizes,
    Switch,
    Tau,
)
from offline_rl.algorithms.common.critics import Critic, sampled_q, some
from offline_rl.algorithms.common.entropy import update_temperature
from offline_rl.algorithms.common.optim import Adam
from offline_rl.replay.batch import Batch
from offline_rl.utils.options import Count, NonNegative, Positive
from policies.heads.gaussian import TanhGaussianActor
from policies.networks.init import orthogonal_init, small_output_init
from policies.networks.mlp import Scalar

Variant = Literal["H", "H-raw", "rho"]  # of CQL's penalty
Gap = Annotated[NonNegative | None, BUILT]


@dataclass(frozen=True)
class Config(EnsembleConfig):
    """Defaults: tinkoff-ai/CORL's for D4RL's locomotion."""

    weight: NonNegative = 10.0  # of the penalty (alpha in eq. 4)
    variant: Variant = "H"  # see soft_maximum below
    num_samples: Count = 10  # actions drawn from each proposal in each state (N)
    temperature: Positive = 1.0  # of the soft maximum
    gap: Gap = None  # a factor on `weight`, learned, keeps the penalty here
    gap_after_weight: Switch = False  # see `excess`; only with a gap
    clip_diff_min: Bound = -inf  # least penalty of one sample
    clip_diff_max: Bound = inf  # and its greatest
    max_target_backup: bool = False  # bootstrap from the best of `num_samples` actions, not one
    backup_entropy: bool = False  # entropy in the target, as in SAC
    bc_updates: Preliminary = 0  # updates before, in which the policy clones and critics learn
    discount: Discount = 0.99  # gamma
    tau: Tau = 0.005  # share of the critic that enters its target each update
    policy_lr: Rate = 3e-5  # learning rate of the policy and of the temperature alpha
    critic_lr: Rate = 3e-4  # of the critics and of the Lagrange multiplier
    policy_hidden: Sizes = (256, 256, 256)  # units of each hidden layer, of the policy
    critic_hidden: Sizes = (256, 256, 256)  # of the critics
    normalize_observations: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.gap is None and self.gap_after_weight:
            raise ValueError("gap_after_weight=true counts no gap: give gap=… or set it to false")


class CQL(Algorithm):
    Config: ClassVar[type] = Config
    Online: ClassVar[type[schedule.Online]] = schedule.OneBuffer
    online = True
    targets: ClassVar = {"critic_target": "critic"}

    @property
    def phases(self) -> Mapping[str, int]:
        return {"clone": self.cfg.bc_updates} if self.cfg.bc_updates else {}

    def networks(self) -> dict[str, nn.Module]:
        obs, act, cfg = self.spec.observation_dim, self.spec.action_dim, self.cfg
        norm: dict[str, Any] = {"layer_norm": cfg.layer_norm}
        head: dict[str, Any] = {"affine": (1.0, -1.0), "init": small_output_init(1e-2)} | norm
        init = orthogonal_init(last_gain=1e-2)
        networks: dict[str, nn.Module] = {
            "policy": TanhGaussianActor(obs, act, cfg.policy_hidden, **head),
            "critic": Critic(
                obs, act, cfg.critic_hidden, ensemble=cfg.num_critics, init=init, **norm
            ),
            "log_alpha": Scalar(0),
        }
        multiplier = {"log_multiplier": Scalar(0 if cfg.gap_after_weight else 1)}
        return networks if cfg.gap is None else networks | multiplier

    def optimizers(self) -> dict[str, Adam]:
        policy, critic = Adam(self.cfg.policy_lr), Adam(self.cfg.critic_lr)
        return {"policy": policy, "log_alpha": policy, "critic": critic, "log_multiplier": critic}

    def update(
        self, state: State, batch: Batch, i: int, *, clone: bool = False
    ) -> tuple[State, Metrics]:
        """Policy, alpha, critics, multiplier, each loss at the old parameters; then the target."""
        s, a, cfg, old = batch.observations, batch.actions, self.cfg, state
        alpha = old.log_alpha().exp()

        def policy_loss(policy):
            pi, log_pi = policy.sample(s, old.random)
            gain = policy.log_prob(s, a) if clone else old.critic(s, pi).amin(0)  # [B]
            return (alpha * log_pi - gain).mean(), log_pi.mean()

        state, policy_value, log_pi = minimize_with(state, "policy", policy_loss)
        state = update_temperature(state, log_pi, -self.spec.action_dim)  # as SAC
        y = self.target(old, batch, alpha)  # [B]
        others, log_density = sample_proposals(
            old, batch, cfg.num_samples, cfg.variant
        )  # [M, B, A], [M, B]
        actions = torch.cat([others, a[None]])
        factor = 1.0 if cfg.gap is None else old.log_multiplier().exp().clamp(0, 1e6)

        def critic_loss(critic):  # eq. 4, its TD error without the 1/2
            q = critic(s.expand(len(actions), *s.shape), actions)  # [E, M + 1, B]
            td = (q[:, -1] - y).square().mean(1)  # [E]
            q = sampled_q(old, q, cfg.num_min_critics)
            z = soft_maximum(
                self.penalized_values(q, batch), log_density, cfg.variant, cfg.temperature
            )
            bounded = (z - q[:, -1]).clamp(min=cfg.clip_diff_min).clamp(max=cfg.clip_diff_max)
            paid = cfg.num_critics * (factor * weighted_excess(bounded.mean(1), cfg)).mean()
            return td.sum() + paid, (td.sum(), bounded.mean(1))

        state, _, (td, penalty) = minimize_with(state, "critic", critic_loss)
        state = soft_update(state, "critic_target", "critic", cfg.tau)
        metrics = {"critic_loss": td, "penalty": penalty.mean(), "policy_loss": policy_value}
        metrics |= {"target": y.mean(), "entropy": -log_pi, "alpha": alpha}
        if cfg.gap is None:
            return state, metrics

        def multiplier_loss(log_multiplier):  # dual ascent (appendix F)
            return -(
                log_multiplier().exp().clamp(0, 1e6) * weighted_excess(penalty, cfg)
            ).mean(), ()

        state, _, _ = minimize_with(state, "log_multiplier", multiplier_loss)
        return state, metrics | {"multiplier": factor}

    clone = partialmethod(update, clone=True)  # the preliminary phase, as in the authors' code

    def target(self, state: State, batch: Batch, alpha: Tensor) -> Tensor:
        """What the critics regress on, [B]; one next action, or the best of `num_samples`."""
        s, count = (
            batch.next_observations,
            self.cfg.num_samples if self.cfg.max_target_backup else 1,
        )
        pi, log_pi = state.policy.sample(s, state.random, count)  # [N, B, A], [N, B]
        few = some(state, self.cfg.num_critics, self.cfg.num_min_critics)
        q, best = state.critic_target(s.expand(count, *s.shape), pi, few).amin(0).max(0)  # [B]
        if self.cfg.backup_entropy:
            q = q - alpha * log_pi.gather(0, best[None])[0]
        return batch.rewards + batch.discount * q

    def penalized_values(self, q: Tensor, batch: Batch) -> Tensor:
        """The values of which the penalty takes the soft maximum, [E, M + 1, B], data's last."""
        return q


def sample_proposals(
    state: State, batch: Batch, samples: int, variant: Variant
) -> tuple[Tensor, Tensor]:
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


def weighted_excess(penalty: Tensor, cfg: Any) -> Tensor:
    """What the critics pay, [E] -> [E]: the weighted penalty, less the gap where there is one.

    weight * (penalty - gap) as young-geng/CQL, where the multiplier starts at e; with
    `gap_after_weight` weight * penalty - gap as the authors' code, where it starts at 1.
    """
    weight, gap = cfg.weight, cfg.gap or 0.0
    return weight * penalty - (gap if cfg.gap_after_weight else weight * gap)
