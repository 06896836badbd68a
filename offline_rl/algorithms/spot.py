"""SPOT: TD3 with an actor penalty on actions that are unlikely under the data.

A conditional VAE is first trained on the data's actions. TD3 then adds a penalty to the actor loss:
the VAE's negative evidence lower bound of the actor's action. The policy may move freely within
the support of the data and is not pulled toward single actions.

Paper:   Wu, Wu, Qiu, Wang, Long, NeurIPS 2022, arXiv:2202.06239.
Differs: Offline, no known difference from the authors' code (thuml/SPOT:SPOT.py, vae.py), if that
         code estimates the evidence lower bound from one sample of z, as in all of the authors'
         settings. Every seed trains its own VAE. Online, the penalty weight decays over this run's
         updates; the authors' decays over 1M. Both updates of a pair run after the second of two
         environment steps, as in `td3`. Optimizer states are kept, as in the authors' code;
         tinkoff-ai/CORL:algorithms/finetune/spot.py resets them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar

from torch import Tensor, nn

from offline_rl.algorithms import td3
from offline_rl.algorithms.common import schedule
from offline_rl.algorithms.common.base import (
    DATA_THEN_ONLINE,
    LossAndMetrics,
    Metrics,
    Network,
    State,
    linear_decay,
    minimize,
)
from offline_rl.algorithms.common.config import BUILT, Dropout, Preliminary, Rate, Sizes, Switch
from offline_rl.algorithms.common.critics import Critic
from offline_rl.algorithms.common.models.vae import VAE
from offline_rl.algorithms.common.optim import Adam
from offline_rl.replay.batch import Batch
from offline_rl.utils.options import NonNegative, Share, frozen
from offline_rl.utils.random import Random
from policies.heads.deterministic import DeterministicActor
from policies.networks.init import torch_init, uniform_output_init


@frozen
class Config(td3.OfflineConfig):
    """Defaults: the authors' code for locomotion. `support_weight` is tuned for each data set."""

    support_weight: NonNegative = 1.0  # lambda: weight of the density penalty in the actor loss
    support_end: Share = 1.0  # online: share of support_weight that remains at the end of training
    kl_weight: NonNegative = 0.5  # beta: weight of the KL term, in VAE training and in the penalty
    dropout: Dropout = 0.1  # dropout rate of the policy during training
    small_outputs: Switch = False  # output layers uniform in +-0.001 (policy), +-0.003 (critics)
    exploration_noise: Annotated[NonNegative, BUILT] = 0.1  # online: std of exploration noise
    vae_updates: Preliminary = 100_000  # VAE updates before training starts
    vae_lr: Rate = 1e-3  # learning rate of the VAE
    vae_hidden: Sizes = (750, 750)  # units of each hidden layer of the VAE
    normalize_observations: bool = True


@frozen
class Online(schedule.OneBuffer):
    """Defaults: thuml/SPOT:main_finetune.py; `support_end` is tinkoff-ai/CORL's for Adroit.

    The replay buffer starts with the data. The penalty weight falls linearly with the updates done,
    to a share of its initial value.
    """

    config_changes: ClassVar = {"support_end": 0.5}


class SPOT(td3.TD3):
    Config: type = Config
    Online: type = Online
    mode = DATA_THEN_ONLINE
    decay_ends = ("support_end",)
    follows_card = True  # unlike TD3, it is trained on data
    imitation_phases = needed_phases = ("fit_vae",)  # needs no next observations
    offline_networks = ("vae",)

    @property
    def phases(self) -> Mapping[str, int]:
        return {"fit_vae": self.cfg.vae_updates}

    def actor(self) -> nn.Module:
        init = uniform_output_init(1e-3) if self.cfg.small_outputs else torch_init
        noises = {"noise": self.cfg.exploration_noise, "dropout_rate": self.cfg.dropout}
        return self.build(DeterministicActor, init=init, **noises)

    def critic(self) -> nn.Module:
        init = uniform_output_init(3e-3) if self.cfg.small_outputs else torch_init
        return self.build(Critic, init=init)

    def networks(self) -> dict[str, nn.Module]:
        obs, act, hidden = self.spec.observation_dim, self.spec.action_dim, self.cfg.vae_hidden
        return super().networks() | {"vae": VAE(obs, act, hidden)}

    def optimizers(self) -> dict[str, Adam]:
        return super().optimizers() | {"vae": Adam(self.cfg.vae_lr)}

    def unlikelihood(self, vae: Network, s: Tensor, a: Tensor, random: Random) -> Tensor:
        """Return the negative evidence lower bound of actions, up to a constant and a factor, [B].

        The decoder is a normal distribution with variance kl_weight / 4. The factor is kl_weight /
        (2 |A|): the squared error is averaged over the |A| dimensions of the action, and the KL
        divergence over the 2 |A| dimensions of z.
        """
        error, kl = vae.terms(s, a, random)
        return error.mean(-1) + self.cfg.kl_weight * kl.mean(-1)

    def fit_vae(self, state: State, batch: Batch, i: int) -> tuple[State, Metrics]:
        """Preliminary phase: one VAE update on the data's actions."""
        s, a = batch.observations, batch.actions

        def vae_loss(vae):
            return self.unlikelihood(vae, s, a, state.random).mean()

        state, vae_value = minimize(state, "vae", vae_loss)
        return state, {"vae_loss": vae_value}

    def policy_loss(self, policy: Network, state: State, batch: Batch) -> LossAndMetrics:
        """Return normalized -Q plus the density penalty; no gradient reaches the VAE."""
        s = batch.observations
        pi = policy(s, state.random)
        q = state.critic(s, pi)[0]  # [B]
        penalty = self.unlikelihood(state.vae, s, pi, state.random).mean()
        weight = self.cfg.support_weight * linear_decay(state, self.cfg.support_end)
        return weight * penalty - q.mean() / q.detach().abs().mean(), {"unlikelihood": penalty}
