"""Conservative Q-learning (CQL): soft actor-critic with a conservative penalty on Q.

The critics are penalized by a soft maximum of Q over sampled actions minus Q at the data's action.
The penalty weight is fixed, or a Lagrange multiplier is learned that keeps the penalty at `gap`.

Paper:   Kumar, Zhou, Tucker, Levine, NeurIPS 2020, arXiv:2006.04779, with its equation numbers.
Differs: from the authors' code (aviralkumar2907/CQL:d4rl/rlkit/torch/sac/cql.py). The following
         differences are taken from young-geng/CQL:SimpleSAC/conservative_sac.py. All losses use the
         parameters before the update. max_target_backup takes the minimum over critics, then the
         maximum over actions. Also young-geng's are the exact log density (the authors add 1e-6
         inside its logarithm), the learned scale and shift of the log standard deviation, its range
         of [-20, 2] (the authors' is [-5, 2]), a temperature updated after the losses that use it,
         the penalty's bounds and the initial weights. There are two differences from
         tinkoff-ai/CORL, the source of the defaults. CORL's second critic always has three hidden
         layers. CORL's cloning phase raises the density of the policy's own samples, not of the
         data's actions; here that phase is young-geng's. Online training is that of
         tinkoff-ai/CORL:algorithms/finetune/cql.py. `num_critics`, `num_min_critics` and
         `layer_norm` follow zhouzypaul/wsrl (wsrl/agents/cql.py), for runs that WSRL continues:
         algorithm.num_critics=10 algorithm.num_min_critics=2 algorithm.layer_norm=true.
"""

from __future__ import annotations

from math import inf, log
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn

from offline_rl.algorithms.common import schedule
from offline_rl.algorithms.common.actor_critic import CloningFirst
from offline_rl.algorithms.common.base import (
    DATA_THEN_ONLINE,
    Metrics,
    State,
    minimize,
    update_targets,
)
from offline_rl.algorithms.common.config import (
    BUILT,
    Bound,
    EnsembleConfig,
    Preliminary,
    Rate,
    Sizes,
    Switch,
)
from offline_rl.algorithms.common.critics import (
    Critic,
    candidate_values,
    reduce_q,
    sampled_q,
)
from offline_rl.algorithms.common.entropy import update_temperature
from offline_rl.algorithms.common.histories.encoding import HistoryConfig, WithHistories
from offline_rl.algorithms.common.optim import Adam
from offline_rl.replay.batch import Batch
from offline_rl.utils.options import Count, NonNegative, Positive, frozen
from policies.heads.gaussian import TanhGaussianActor
from policies.networks.init import orthogonal_init, small_output_init
from policies.networks.mlp import Scalar

Variant = Literal["H", "H-raw", "rho"]  # forms of the penalty
Gap = Annotated[NonNegative | None, BUILT]


@frozen
class Config(HistoryConfig, EnsembleConfig):
    """Defaults: tinkoff-ai/CORL's for D4RL locomotion."""

    weight: NonNegative = 10.0  # weight of the conservative penalty (alpha in eq. 4)
    variant: Variant = (
        "H"  # H: log-sum-exp of Q - log density; H-raw: of Q; rho: softmax-weighted mean of Q
    )
    num_samples: Count = 10  # sampled actions per proposal distribution and state (N)
    temperature: Positive = 1.0  # temperature of the soft maximum
    gap: Gap = None  # target of the penalty; a learned multiplier on `weight` keeps it there
    gap_after_weight: Switch = False  # weight * penalty - gap, instead of weight * (penalty - gap)
    clip_diff_min: Bound = -inf  # lower bound on the penalty of one sample
    clip_diff_max: Bound = inf  # upper bound on the penalty of one sample
    max_target_backup: bool = False  # bootstrap from the best of `num_samples` actions, not one
    backup_entropy: bool = False  # include the entropy in the target, as SAC
    bc_updates: Preliminary = 0  # preliminary updates in which the policy is trained by imitation
    policy_lr: Rate = 3e-5  # learning rate of the policy and of the temperature alpha
    critic_lr: Rate = 3e-4  # learning rate of the critics and of the Lagrange multiplier
    policy_hidden: Sizes = (256, 256, 256)  # units of each hidden layer of the policy
    critic_hidden: Sizes = (256, 256, 256)  # units of each hidden layer of the critics
    normalize_observations: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.gap is None and self.gap_after_weight:
            raise ValueError("gap_after_weight=true has no effect without a gap. Set gap=….")


class CQL(WithHistories, CloningFirst):
    Config: type = Config
    Online: type = schedule.OneBuffer
    mode = DATA_THEN_ONLINE

    def actor(self) -> nn.Module:
        head = {"affine": (1.0, -1.0), "layer_norm": self.cfg.layer_norm}
        init = small_output_init(1e-2)
        return self.build(TanhGaussianActor, self.cfg.policy_hidden, init=init, **head)

    def critic(self) -> nn.Module:
        shape = {"ensemble": self.cfg.num_critics, "layer_norm": self.cfg.layer_norm}
        init = orthogonal_init(last_gain=1e-2)
        return self.build(Critic, self.cfg.critic_hidden, init=init, **shape)

    def networks(self) -> dict[str, nn.Module]:
        networks = super().networks() | {"log_alpha": Scalar(0)}
        multiplier = {"log_multiplier": Scalar(0 if self.cfg.gap_after_weight else 1)}
        return networks if self.cfg.gap is None else networks | multiplier

    def optimizers(self) -> dict[str, Adam]:
        policy, critic = Adam(self.cfg.policy_lr), Adam(self.cfg.critic_lr)
        networks = ("critic", "log_multiplier", "encoder", "model")
        return {"policy": policy, "log_alpha": policy} | dict.fromkeys(networks, critic)

    def learn(self, state: State, batch: Batch, *, clone: bool) -> tuple[State, Metrics]:
        """Update policy, alpha, critics and multiplier at the old parameters; then the target."""
        s, a, cfg, old = batch.observations, batch.actions, self.cfg, state
        alpha = old.log_alpha().exp()

        def policy_loss(policy):
            pi, log_pi = policy.sample(s, old.random)
            gain = policy.log_prob(s, a) if clone else reduce_q(old, old.critic(s, pi))  # [B]
            return (alpha * log_pi - gain).mean(), log_pi.mean()

        state, policy_value, log_pi = minimize(state, "policy", policy_loss)
        state = update_temperature(state, log_pi, -self.spec.action_dim)  # as SAC
        y = self.target(old, batch, alpha)  # [B]
        # [M, B, A], [M, B]
        sampled, log_density = sample_proposals(old, batch, cfg.num_samples, cfg.variant)
        actions = torch.cat([sampled, a[None]])
        factor = 1.0 if cfg.gap is None else old.log_multiplier().exp().clamp(0, 1e6)

        def critic_loss(critic):  # eq. 4, TD error without the factor 1/2
            q = critic(s, actions)  # [E, M + 1, B]
            td = (q[:, -1] - y).square().mean(1)  # [E]
            q = sampled_q(old, q, cfg.num_min_critics)
            values = self.penalized_values(q, batch)
            z = soft_maximum(values, log_density, cfg.variant, cfg.temperature)
            bounded = (z - q[:, -1]).clamp(min=cfg.clip_diff_min).clamp(max=cfg.clip_diff_max)
            cost = cfg.num_critics * (factor * weighted_excess(bounded.mean(1), cfg)).mean()
            return td.sum() + cost, (td.sum(), bounded.mean(1))

        state, _, (td, penalty) = minimize(state, "critic", critic_loss)
        state = update_targets(state)
        metrics = {"critic_loss": td, "penalty": penalty.mean(), "policy_loss": policy_value}
        metrics |= {"target": y.mean(), "entropy": -log_pi, "alpha": alpha}
        if cfg.gap is None:
            return state, metrics

        def multiplier_loss(log_multiplier):  # dual ascent (appendix F)
            multiplier = log_multiplier().exp().clamp(0, 1e6)
            return -(multiplier * weighted_excess(penalty, cfg)).mean()

        state, _ = minimize(state, "log_multiplier", multiplier_loss)
        return state, metrics | {"multiplier": factor}

    def target(self, state: State, batch: Batch, alpha: Tensor) -> Tensor:
        """Return the critic target [B], from one next action or the best of `num_samples`."""
        q, log_pi = candidate_values(state, self.cfg, batch.next_observations)  # [N, B]
        q, best = q.max(0)  # [B]
        if self.cfg.backup_entropy:
            q = q - alpha * log_pi.gather(0, best[None])[0]
        return batch.rewards + batch.discount * q

    def penalized_values(self, q: Tensor, batch: Batch) -> Tensor:
        """Return the values in the soft maximum, [E, M + 1, B]; the last is Q(s, data action)."""
        return q


def sample_proposals(
    state: State, batch: Batch, samples: int, variant: Variant
) -> tuple[Tensor, Tensor]:
    """Sample the actions whose values are penalized.

    Return the actions [M, B, A] and their log densities [M, B]. N is `samples`.
    rho: N policy actions (M = N).
    Other variants: N uniform actions, N policy actions, and N policy actions sampled in the *next*
    state (M = 3N). Q evaluates all of them in the current state.
    """
    current, log_current = state.policy.sample(batch.observations, state.random, samples)
    if variant == "rho":
        return current, log_current
    following, log_following = state.policy.sample(batch.next_observations, state.random, samples)
    uniform = 2 * state.random.uniform(current.shape) - 1
    log_uniform = torch.full_like(log_current, -current.shape[-1] * log(2))
    log_densities = torch.cat([log_uniform, log_current, log_following])
    return torch.cat([uniform, current, following]), log_densities


def soft_maximum(q: Tensor, log_density: Tensor, variant: Variant, temperature: float) -> Tensor:
    """Return the soft maximum of Q that is penalized, [E, B].

    q: [E, M + 1, B], the data's action last.  log_density: [M, B], of the M sampled actions.
    t: the temperature.
    H:     t log sum_k exp((Q(s, a_k) - log p(a_k)) / t): the log of the integral in CQL's eq. 4 by
           importance sampling, up to a constant log M (appendix F).
    H-raw: without densities and including the data's action (`min_q_version=2` in CQL's code).
    rho:   E_mu[Q] with mu(a) proportional to pi(a) exp(Q(s, a) / t), which solves the inner
           problem of eq. 3, max_mu E_mu[Q] - t KL(mu, pi), where pi is the current policy.
           Estimated from its samples: sum_k w_k Q(s, a_k), a_k ~ pi, w = softmax_k(Q(s, a_k) / t).
           As mu is a maximum, no gradient passes through w (envelope theorem).
    """
    t, sampled = temperature, q[:, :-1]
    if variant == "rho":
        return ((sampled.detach() / t).softmax(1) * sampled).sum(1)
    logits = q if variant == "H-raw" else sampled - log_density
    return t * (logits / t).logsumexp(1)


def weighted_excess(penalty: Tensor, cfg: Any) -> Tensor:
    """Return the weighted penalty minus the gap, if one is set, [E] -> [E].

    Default: weight * (penalty - gap), as in young-geng/CQL, where the multiplier starts at e.
    `gap_after_weight`: weight * penalty - gap, as in the authors' code, where it starts at 1.
    """
    weight, gap = cfg.weight, cfg.gap or 0.0
    return weight * penalty - (gap if cfg.gap_after_weight else weight * gap)
