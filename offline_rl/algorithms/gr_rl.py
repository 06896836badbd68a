"""GR-RL, offline part: a critic of task progress, which finds the mistakes in demonstrations.

The reward is 1 at the end of a successful demonstration and 0 elsewhere, so the value of a frame is
its progress, gamma^(steps until success). TD3+BC is trained on chunks of actions. The critics are
categorical: they predict distributions over [0, 1]. `offline-rl data filter` leaves out the frames
after which progress falls. Any imitation algorithm can be trained on the filtered data.

Paper:   Li et al., 2025, arXiv:2512.01801, section 3.1. There is no public code.
Use:     train algorithm=gr_rl task=none dataset=…, then data filter <run> <new file>.
Differs: from the paper. Networks are MLPs; the paper's critic is a transformer that predicts a
         value for each step of a chunk. The reward is the same: a chunk that contains the end, k
         steps after its start, has the reward gamma^k. The paper does not publish the form of its
         labels, the number of bins or the weight of TD3+BC's terms; HL-Gauss labels are used, and
         TD3+BC's weight. Progress is the value of the actor's chunks, not of the demonstrated
         ones; see `progress`. For the online part, which steers a flow policy, see `dsrl`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor, nn

from offline_rl.algorithms import td3_bc
from offline_rl.algorithms.common.base import (
    LossAndMetrics,
    Metrics,
    Network,
    Params,
    State,
    minimize,
    update_targets,
)
from offline_rl.algorithms.common.config import BUILT
from offline_rl.algorithms.common.critics import reduce_q
from offline_rl.data import Dataset
from offline_rl.data.augment.progress import label_progress
from offline_rl.replay.batch import Batch, Source, Sources
from offline_rl.replay.chunks import Chunks
from offline_rl.utils.options import Count, Number, Positive, Range, frozen
from policies.heads.chunk import ChunkActor
from policies.networks.mlp import CategoricalCritic


@frozen
class Config(td3_bc.BaseConfig):
    """Defaults: TD3+BC's. Chunks of five actions are those of Q-chunking (arXiv:2507.07969)."""

    horizon: Annotated[Count, BUILT] = 5  # actions of a chunk
    bins: Annotated[int, Range(2), BUILT] = 101  # bins of the critics' distributions over [0, 1]
    smoothing: Annotated[Positive, BUILT] = 0.75  # std of the HL-Gauss labels, in bin widths
    success_reward: Annotated[Number | None, BUILT] = (
        None  # an episode succeeds if its last reward is at least this; null: all episodes succeed
    )
    retries: Annotated[str | None, BUILT] = (
        None  # extra column, 1 where a retry starts: the steps up to it also count as a failure
    )


class GRRL(td3_bc.TD3BC):
    Config: type = Config
    follows_card = False  # replaces the rewards

    @classmethod
    def uses_rewards(cls, cfg: Any) -> bool:
        return cfg.success_reward is not None

    def prepare(self, dataset: Dataset) -> tuple[Dataset, Any]:
        """Replace the rewards by success labels; see `label_progress`. Raises UserError."""
        return label_progress(dataset, self.cfg.success_reward, self.cfg.retries), self.cfg

    def source(self, phase: str, sources: Sources) -> Source:
        shape = {"horizon": self.cfg.horizon, "n_action_steps": self.cfg.horizon}
        return Chunks(super().source(phase, sources), n_obs_steps=1, **shape)

    def actor(self) -> nn.Module:
        horizon = self.cfg.horizon
        return self.build(ChunkActor, horizon=horizon, n_action_steps=horizon)

    def critic(self) -> nn.Module:
        obs, act, cfg = self.spec.observation_dim, self.spec.action_dim, self.cfg
        options = {"bins": cfg.bins, "smoothing": cfg.smoothing, "activation": cfg.activation}
        return CategoricalCritic(obs, act * cfg.horizon, cfg.hidden, **options)

    def update(self, state: State, batch: Batch, i: int) -> tuple[State, Metrics]:
        """Update the critics, and in every `policy_delay`-th update the actor and both targets."""
        target = self.target(state, batch)  # [B]
        s, chunks = batch.observations.flatten(1), batch.actions.flatten(1)

        def critic_loss(critic: Network) -> Tensor:  # mean over B, sum over the ensemble
            return critic.cross_entropy(s, chunks, target).mean(1).sum()

        state, critic_value = minimize(state, "critic", critic_loss)
        metrics = {"critic_loss": critic_value, "target": target.mean()}
        if i != self.cfg.policy_delay - 1:
            return state, metrics
        updated = state

        def policy_loss(policy: Network) -> LossAndMetrics:
            return self.policy_loss(policy, updated, batch)

        state, policy_value, _ = minimize(state, "policy", policy_loss)
        return update_targets(state), metrics | {"policy_loss": policy_value}

    def target(self, state: State, batch: Batch) -> Tensor:
        """Return r + discount * min Q of the target actor's next chunk, with noise, [B]."""
        s2, cfg = batch.next_observations, self.cfg
        noise = cfg.policy_noise * state.random.normal(batch.actions.shape)
        noise = noise.clamp(-cfg.noise_clip, cfg.noise_clip)
        next_chunks = (state.policy_target(s2) + noise).clamp(-1, 1)
        q = state.critic_target(s2.flatten(1), next_chunks.flatten(1))  # [2, B]
        return batch.rewards + batch.discount * reduce_q(state, q)

    def policy_loss(self, policy: Network, state: State, batch: Batch) -> LossAndMetrics:
        """Return TD3+BC's loss. Steps of a chunk after the end of the episode are not imitated."""
        chunks = policy(batch.observations)  # [B, H, A]
        q = state.critic(batch.observations.flatten(1), chunks.flatten(1))[0]  # [B]
        valid: Any = batch.valid  # [B, H]; chunks have this mask
        error = ((chunks - batch.actions).square().mean(-1) * valid).sum() / valid.sum()
        scale = self.cfg.alpha / q.detach().abs().mean()
        return error - scale * q.mean(), {}


def progress(algorithm: GRRL, params: Mapping[str, Params], observations: np.ndarray) -> np.ndarray:
    """Return the progress of normalized observations [N, O]: mean over the critics, [N].

    params: parameters of all networks. Progress is the value of the actor's chunk. The value of a
    demonstrated mistake is already low in its first frame, so it does not fall during the mistake.
    """
    nets = {name: Network(algorithm.modules[name], params[name]) for name in ("policy", "critic")}
    values = []
    with torch.inference_mode():
        for s in torch.from_numpy(observations).split(8192):
            chunks = nets["policy"](s[:, None]).flatten(1)
            values.append(nets["critic"](s, chunks).mean(0).numpy())
    return np.concatenate(values)
