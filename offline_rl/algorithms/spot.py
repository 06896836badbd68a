"""SPOT: TD3 whose actor pays for actions that a density model of the data finds unlikely.

First a conditional VAE learns which actions the data has in a state. Then TD3 learns as ever, but
its actor also descends on the VAE's negative evidence lower bound of its own action, so that it is
free within the data's support and not pulled to any one action.

Paper:   Wu, Wu, Qiu, Wang, Long, NeurIPS 2022, arXiv:2202.06239.
Differs: nowhere known from the authors' code (thuml/SPOT:SPOT.py, vae.py), with one sample of z and
         its evidence lower bound, as in all of its settings; every seed trains a VAE of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from offline_rl.algorithms.common.base import (
    Algorithm,
    Metrics,
    Network,
    State,
    minimise,
    minimise_with,
    soft_update,
)
from offline_rl.algorithms.common.critics import Critic, regress, td3_target
from offline_rl.algorithms.common.optim import Adam
from offline_rl.algorithms.common.vae import VAE
from offline_rl.data.transform import Preprocessing
from offline_rl.replay.batch import Batch
from offline_rl.utils.random import Random
from policies.heads.deterministic import DeterministicActor
from policies.networks.init import torch_init, uniform_output_init


@dataclass(frozen=True)
class Config(Preprocessing):
    """Defaults: the authors' code's for locomotion; `support_weight` is tuned for each data set."""

    support_weight: float = 1.0  # >= 0 (lambda): weight of the density term in the actor's loss
    kl_weight: float = 0.5  # >= 0 (beta): of the KL term, when the VAE learns and when it judges
    dropout: float = 0.1  # in [0, 1), of the policy; read when it is built
    small_outputs: bool = False  # output layers uniform in +-0.001 (policy) and +-0.003 (critics)
    discount: float = 0.99  # in [0, 1)
    tau: float = 0.005  # in (0, 1]: share of the networks that enters their targets
    policy_noise: float = 0.2  # >= 0: deviation of the noise on the target's action
    noise_clip: float = 0.5  # >= 0: and its largest size
    policy_delay: int = 2  # critic updates per actor and target update
    actor_lr: float = 3e-4
    critic_lr: float = 3e-4
    hidden: tuple[int, ...] = (256, 256)
    vae_updates: int = 100_000  # preliminary updates
    vae_lr: float = 1e-3
    vae_hidden: tuple[int, ...] = (750, 750)
    normalise_observations: bool = True


class SPOT(Algorithm):
    Config = Config
    targets: ClassVar = {"policy_target": "policy", "critic_target": "critic"}

    @property
    def period(self) -> int:
        return self.cfg.policy_delay

    @property
    def phases(self) -> Mapping[str, int]:
        return {"fit_vae": self.cfg.vae_updates}

    def networks(self) -> dict[str, nn.Module]:
        obs, act, cfg = self.spec.observation_dim, self.spec.action_dim, self.cfg
        small = cfg.small_outputs
        inits = [uniform_output_init(w) if small else torch_init for w in (1e-3, 3e-3)]
        return {
            "policy": DeterministicActor(
                obs, act, cfg.hidden, dropout_rate=cfg.dropout, init=inits[0]
            ),
            "critic": Critic(obs, act, cfg.hidden, init=inits[1]),
            "vae": VAE(obs, act, cfg.vae_hidden),
        }

    def optimisers(self) -> dict[str, Adam]:
        cfg = self.cfg
        return {
            "policy": Adam(cfg.actor_lr),
            "critic": Adam(cfg.critic_lr),
            "vae": Adam(cfg.vae_lr),
        }

    def unlikelihood(self, vae: Network, s: Tensor, a: Tensor, random: Random) -> Tensor:
        """The negative evidence lower bound, times kl_weight / (2 |A|) but for a constant; [B].

        Its decoder is normal with variance kl_weight / 4; the means are over |A| and 2 |A| numbers.
        """
        error, kl = vae.terms(s, a, random)
        return error.mean(-1) + self.cfg.kl_weight * kl.mean(-1)

    def fit_vae(self, state: State, batch: Batch, i: int) -> tuple[State, Metrics]:
        """The preliminary phase: the data's actions become likely."""
        s, a = batch.observations, batch.actions

        def vae_loss(vae):
            return self.unlikelihood(vae, s, a, state.random).mean()

        state, vae_value = minimise(state, "vae", vae_loss)
        return state, {"vae_loss": vae_value}

    def update(self, state: State, batch: Batch, i: int) -> tuple[State, Metrics]:
        """The critics; every `policy_delay`-th time then the actor and both targets."""
        s, cfg = batch.observations, self.cfg
        y = td3_target(state, batch, cfg.policy_noise, cfg.noise_clip)  # [B]
        state, metrics = regress(state, batch, y)
        if i != cfg.policy_delay - 1:
            return state, metrics

        def policy_loss(policy):  # the VAE judges and does not learn
            pi = policy(s, state.random)
            q = state.critic(s, pi)[0]  # [B]
            unlikely = self.unlikelihood(state.vae, s, pi, state.random).mean()
            return cfg.support_weight * unlikely - q.mean() / q.detach().abs().mean(), unlikely

        state, policy_value, unlikely = minimise_with(state, "policy", policy_loss)
        state = soft_update(state, "policy_target", "policy", cfg.tau)
        state = soft_update(state, "critic_target", "critic", cfg.tau)
        return state, metrics | {"policy_loss": policy_value, "unlikelihood": unlikely}
