"""DSRL: diffusion steering, RL on the initial noise of a frozen flow or diffusion policy.

The policy chooses the noise from which a sampler starts. The sampler maps this noise to a chunk of
actions, without fresh noise. The critic evaluates executed chunks, so it can learn from any data.
The noise critic is distilled from it: for random noise, it predicts the critic's value of the
sampler's chunk. SAC trains the policy on the noise critic. No gradient passes through the sampler.

The sampler is that of `base`, which stays unchanged. Without `base`, a flow policy is trained by
imitation in the same run, and the sampler is its moving average.

Paper:   Wagenmaker et al., CoRL 2025, arXiv:2506.15799. predictor=deterministic: GR-RL,
         arXiv:2512.01801, section on online RL.
Use:     finetune algorithm=dsrl base=<bundle of a flow or diffusion policy> task=…
Differs: without `base`, no known difference in updates from ColinQiyangLi/qam:agents/dsrl.py, with
         best_of_n=1. Evaluation uses the policy's mean; that code and the paper's sample. A chunk
         that the end of an episode cuts short bootstraps here; that code leaves it out of the
         losses of critic (partial=drop) and flow. Like that code, and unlike the paper's
         (ajwagen/dsrl): targets are the mean minus rho standard deviations of ten critics, without
         an entropy term, instead of the minimum of two; the noise critic takes one step per update;
         discounts count environment steps, not chunks; the untrained policy acts in the warm-up,
         not the base. The paper's settings for manipulation are 20 updates per step, target entropy
         0, three layers of 2048 units with tanh, and initial noise up to 1.5. GR-RL has
         distributional critics and does not publish its constants; its predictor's noise is not
         bounded.
"""

from __future__ import annotations

import copy
from functools import partial
from math import prod
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn

from offline_rl.algorithms.common import schedule
from offline_rl.algorithms.common.base import (
    LossAndMetrics,
    Metrics,
    Mode,
    Network,
    State,
    minimize,
    soft_update,
    update_targets,
)
from offline_rl.algorithms.common.config import BUILT, Ensemble, Rate
from offline_rl.algorithms.common.noising.flow_critic import FlowConfig, FlowCritic
from offline_rl.replay.batch import Batch, Source, Sources
from offline_rl.replay.chunks import Chunks
from offline_rl.utils.options import NonNegative, Number, Positive, Share, frozen
from policies.heads.deterministic import DeterministicActor
from policies.heads.gaussian import TanhGaussianActor
from policies.heads.residual import SteeredActor
from policies.networks.init import xavier_init
from policies.networks.mlp import Scalar
from policies.runtimes.network import make_network


@frozen
class Config(FlowConfig):
    """Defaults: ColinQiyangLi/qam:agents/dsrl.py. Chunks and sampler of a base are its own."""

    noise_scale: Positive = 1.0  # largest absolute value of the noise that the policy chooses
    num_critics: Ensemble = 10  # number of critics (E), and of noise critics
    rho: NonNegative = 0.5  # target values: mean - rho * standard deviation of the critics
    alpha_lr: Rate = 3e-4  # learning rate of the temperature
    entropy_scale: Number = 0.5  # target entropy is -entropy_scale * dimensions of the noise
    predictor: Annotated[Literal["gaussian", "deterministic"], BUILT] = (
        "gaussian"  # gaussian: SAC; deterministic: one noise per state, with a norm penalty (GR-RL)
    )
    norm_weight: NonNegative = 1.0  # deterministic: weight of max(|noise|^2 / 2 - limit, 0)
    norm_limit: NonNegative = 0.5  # deterministic: that limit, per dimension of the noise
    predicted_share: Share = 0.5  # deterministic: share of distillation rows with policy noise
    exploration_noise: Annotated[NonNegative, BUILT] = 0.1  # deterministic: std, times noise_scale

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.predictor == "deterministic":
            self.refuse_unread("predictor", "entropy_scale", "alpha_lr")
        else:
            unread = "norm_weight", "norm_limit", "predicted_share", "exploration_noise"
            self.refuse_unread("predictor", *unread)


class DSRL(FlowCritic):
    Config: type = Config
    Online = schedule.Chunked
    mode = Mode(learns=("data", "environment"), takes_base=True)
    acts = ("policy", "sampler")

    @property
    def steps(self) -> dict[str, int]:
        """The numbers of observations and of executed actions per chunk."""
        if self.base is None:
            return {"n_obs_steps": 1, "n_action_steps": self.cfg.horizon}
        spec = self.base.spec
        return {"n_obs_steps": spec.n_obs_steps, "n_action_steps": spec.n_action_steps}

    @property
    def noise_shape(self) -> tuple[int, ...]:
        """The shape of the initial noise, which has D values."""
        sampler: Any = self.modules["sampler"]
        shape: tuple[int, ...] = sampler.noise_shape
        return shape

    def source(self, phase: str, sources: Sources) -> Source:
        shape: Any = self.steps | {"horizon": self.steps["n_action_steps"]}
        shape |= {"chunk_start": "present", "partial": self.cfg.partial}
        chunks = {name: Chunks(x, **shape) for name, x in sources.items()}
        return super(FlowCritic, self).source(phase, chunks)

    def networks(self) -> dict[str, nn.Module]:
        base = self.base
        sampler: Any = self.flow() if base is None else make_network(base, "torch").module
        inputs, size = self.spec.observation_dim * sampler.n_obs_steps, prod(sampler.noise_shape)
        executed = self.spec.action_dim * sampler.n_action_steps
        networks = {"policy": self.noise_policy(inputs, size), "sampler": sampler}
        networks |= {"critic": self.q_network(inputs, executed)}
        networks |= {"noise_critic": self.q_network(inputs, size)}
        if self.cfg.predictor == "gaussian":
            networks["log_alpha"] = Scalar(0.0)
        return networks | ({"flow": copy.deepcopy(sampler)} if base is None else {})

    def noise_policy(self, inputs: int, size: int) -> nn.Module:
        """Return the policy, whose actions are initial noise divided by `noise_scale`."""
        cfg, options = self.cfg, {"activation": self.cfg.activation, "init": xavier_init}
        if cfg.predictor == "gaussian":
            return TanhGaussianActor(inputs, size, cfg.hidden, **options)
        noise = cfg.exploration_noise
        return DeterministicActor(inputs, size, cfg.hidden, noise=noise, **options)

    def acting_head(self) -> SteeredActor:
        parts: Any = [self.modules[name] for name in self.acts]
        arguments: Any = [x for part in parts for x in (type(part).__name__, part.arguments)]
        return SteeredActor(*arguments, noise_scale=float(self.cfg.noise_scale))

    def optimizers(self) -> dict[str, Any]:
        rates = {"noise_critic": self.cfg.critic_lr, "log_alpha": self.cfg.alpha_lr}
        rates["flow"] = self.cfg.actor_lr
        return super().optimizers() | {name: self.adam(rate) for name, rate in rates.items()}

    def update(self, state: State, batch: Batch, i: int) -> tuple[State, Metrics]:
        """Update all networks. Each loss reads the other networks as before the update."""
        old, histories, s = state, batch.observations, batch.observations.flatten(1)
        y = self.target(old, batch, self.next_chunks(old, batch.next_observations))
        noise = self.distillation_noise(old, s)
        values = old.critic(s, self.sample_chunks(old, histories, noise).flatten(1))  # [E, B]

        def noise_critic_loss(noise_critic: Network) -> Tensor:
            return (noise_critic(s, noise) - values).square().mean()

        state, critic_value = minimize(update_targets(state), "critic", self.critic_loss(batch, y))
        state, noise_value = minimize(state, "noise_critic", noise_critic_loss)
        metrics = {"critic_loss": critic_value, "noise_critic_loss": noise_value}
        if self.base is None:
            state = soft_update(state, "sampler", "flow", self.cfg.tau)
            state, flow_value = minimize(state, "flow", self.flow_loss(old, batch))
            metrics["imitation_loss"] = flow_value
        policy_loss = partial(self.policy_loss, old=old, s=s)
        state, policy_value, policy_metrics = minimize(state, "policy", policy_loss)
        if self.cfg.predictor == "gaussian":
            excess = -policy_metrics["entropy"] - self.cfg.entropy_scale * noise.shape[1]
            state, _ = minimize(state, "log_alpha", lambda log_alpha: -log_alpha().exp() * excess)
            metrics["alpha"] = old.log_alpha().exp().detach()
        metrics |= policy_metrics | {"policy_loss": policy_value}
        return state, metrics | {"target": y.mean()}

    def next_chunks(self, state: State, histories: Tensor) -> Tensor:
        """Return the chunks [B, H, A] of the policy for observations [B, n_obs_steps, O]."""
        noise = self.cfg.noise_scale * self.policy_actions(state, histories.flatten(1))
        return self.sample_chunks(state, histories, noise)

    def policy_actions(self, state: State, s: Tensor) -> Tensor:
        """Return the policy's actions [B, D], in [-1, 1], for states [B, O]."""
        if self.cfg.predictor == "gaussian":
            return state.policy.sample(s, state.random)[0]
        return state.policy.act(s)

    def sample_chunks(self, state: State, histories: Tensor, noise: Tensor) -> Tensor:
        """Return the executed actions [B, n_action_steps, A] for initial noise [B, D]."""
        noise = noise.reshape(-1, *self.noise_shape)
        chunks, _ = state.sampler.decide(histories, {}, noise)
        return chunks[:, : self.steps["n_action_steps"]]

    def distillation_noise(self, state: State, s: Tensor) -> Tensor:
        """Return standard normal noise [B, D]; with `deterministic`, partly the policy's noise."""
        size = prod(self.noise_shape)
        noise = state.random.normal((len(s), size))
        if self.cfg.predictor == "gaussian":
            return noise
        is_predicted = state.random.uniform((len(s), 1)) < self.cfg.predicted_share
        return torch.where(is_predicted, self.cfg.noise_scale * state.policy.act(s), noise)

    def policy_loss(self, policy: Network, old: State, s: Tensor) -> LossAndMetrics:
        """Return the loss: entropy term (or norm penalty) minus the mean of the noise critics."""
        cfg = self.cfg
        if cfg.predictor == "gaussian":
            u, log_pi = policy.sample(s, old.random)
            cost, metrics = old.log_alpha().exp() * log_pi, {"entropy": -log_pi.mean()}
        else:
            u = policy.act(s)
            half_norm = (cfg.noise_scale * u).square().sum(-1) / 2
            excess = (half_norm - cfg.norm_limit * u.shape[1]).clamp(min=0)
            cost, metrics = cfg.norm_weight * excess, {"norm_penalty": excess.mean()}
        q = old.noise_critic(s, cfg.noise_scale * u).mean(0)
        return (cost - q).mean(), metrics
