"""SPOT: TD3 whose actor pays for actions that a density model of the data finds unlikely.

First a conditional VAE learns which actions the data has in a state. Then TD3 learns as ever, but
its actor also descends on the VAE's negative evidence lower bound of its own action, so that it is
free within the data's support and not pulled to any one action.

Paper:   Wu, Wu, Qiu, Wang, Long, NeurIPS 2022, arXiv:2202.06239.
Differs: nowhere known from the authors' code (thuml/SPOT:SPOT.py, vae.py), with one sample of z and
         its evidence lower bound, as in all of its settings; every seed trains a VAE of its own.
         Online the weight falls with this run's updates, there with 1M, and both updates of a pair
         come after the second of two steps, as in `td3`; optimizers go on as there, in
         tinkoff-ai/CORL:algorithms/finetune/spot.py they begin anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from torch import Tensor, nn

from offline_rl.algorithms import td3
from offline_rl.algorithms.common import schedule
from offline_rl.algorithms.common.base import Metrics, Network, State, falling, minimize
from offline_rl.algorithms.common.config import BUILT, Dropout, Preliminary, Rate, Sizes, Switch
from offline_rl.algorithms.common.critics import Critic
from offline_rl.algorithms.common.optim import Adam
from offline_rl.algorithms.common.vae import VAE
from offline_rl.replay.batch import Batch
from offline_rl.utils.options import NonNegative, Share
from offline_rl.utils.random import Random
from policies.heads.deterministic import DeterministicActor
from policies.networks.init import torch_init, uniform_output_init


@dataclass(frozen=True)
class Config(td3.OfflineConfig):
    """Defaults: the authors' code's for locomotion; `support_weight` is tuned for each data set."""

    support_weight: NonNegative = 1.0  # lambda: weight of the density term in the actor's loss
    support_end: Share = 1.0  # its share that is left when it has fallen; see Online
    kl_weight: NonNegative = 0.5  # beta: of the KL term, when the VAE learns and when it judges
    dropout: Dropout = 0.1  # of the policy, while it learns
    small_outputs: Switch = False  # output layers uniform in +-0.001 (policy), +-0.003 (critics)
    exploration_noise: Annotated[NonNegative, BUILT] = 0.1  # deviation of that on actions, online
    vae_updates: Preliminary = 100_000  # preliminary updates
    vae_lr: Rate = 1e-3  # of the VAE
    vae_hidden: Sizes = (750, 750)  # of the VAE
    normalize_observations: bool = True


@dataclass(frozen=True, kw_only=True)
class Online(schedule.OneBuffer):
    """Defaults: thuml/SPOT:main_finetune.py; the weight's end is tinkoff-ai/CORL's for the hands.

    One buffer that begins with the data; the density's weight falls with the updates done, linearly
    to a share of itself.
    """

    changes: ClassVar = {"support_end": 0.5}


class SPOT(td3.TD3):
    Config: ClassVar[type] = Config
    Online: ClassVar[type[schedule.Online]] = Online
    follows_card = True  # unlike TD3 it learns from data
    imitation_phases = needed_phases = ("fit_vae",)

    @property
    def phases(self) -> Mapping[str, int]:
        return {"fit_vae": self.cfg.vae_updates}

    def networks(self) -> dict[str, nn.Module]:
        obs, act, cfg = self.spec.observation_dim, self.spec.action_dim, self.cfg
        small = cfg.small_outputs
        actor, critic = (uniform_output_init(w) if small else torch_init for w in (1e-3, 3e-3))
        options: dict[str, Any] = {"activation": cfg.activation}
        noises = {"noise": cfg.exploration_noise, "dropout_rate": cfg.dropout}
        return {
            "policy": DeterministicActor(obs, act, cfg.hidden, init=actor, **noises, **options),
            "critic": Critic(obs, act, cfg.hidden, init=critic, **options),
            "vae": VAE(obs, act, cfg.vae_hidden),
        }

    def optimizers(self) -> dict[str, Adam]:
        return super().optimizers() | {"vae": Adam(self.cfg.vae_lr)}

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

        state, vae_value = minimize(state, "vae", vae_loss)
        return state, {"vae_loss": vae_value}

    def policy_loss(self, policy: Network, state: State, batch: Batch) -> tuple[Tensor, Metrics]:
        """Q, its scale divided out, and the density term; the VAE judges and does not learn."""
        s = batch.observations
        pi = policy(s, state.random)
        q = state.critic(s, pi)[0]  # [B]
        unlikely = self.unlikelihood(state.vae, s, pi, state.random).mean()
        weight = self.cfg.support_weight * falling(state, self.cfg.support_end)
        return weight * unlikely - q.mean() / q.detach().abs().mean(), {"unlikelihood": unlikely}
