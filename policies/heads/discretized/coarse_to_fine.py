"""A head that selects the bins of all action dimensions together, level by level (CQN)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from policies.heads.discretized.bins import discretize, one_hot, top_gap, zoom_in
from policies.heads.head import Actor, Memory, take_last
from policies.networks.dropout import Random
from policies.networks.init import orthogonal_init
from policies.networks.mlp import MLP, LayerNorm


class Stream(nn.Module):
    """One of the two networks of a dueling critic; its outputs are 0 at the start."""

    def __init__(
        self, observations: int, features: int, position: int, hidden: Sequence[int], outputs: int
    ) -> None:
        """Create the networks. position: size of the inputs that describe the level."""
        super().__init__()
        init = orthogonal_init(1.0)
        self.encoder = MLP(observations, features, (), inner=True, init=init)
        self.norm = LayerNorm(features)
        last_zero = orthogonal_init(1.0, 0.0)
        inputs = features + position
        self.trunk = MLP(
            inputs, outputs, hidden, activation="silu", layer_norm=True, init=last_zero
        )

    def forward(self, observations: Tensor, position: Tensor) -> Tensor:
        """Return the outputs [B, N, ...] for observations [B, O] and positions [B, N, P]."""
        encoded = self.norm(self.encoder(observations)).tanh()[:, None]
        encoded = encoded.expand(-1, position.shape[1], -1)
        outputs: Tensor = self.trunk(torch.cat([encoded, position], -1))
        return outputs


class CoarseToFineActor(Actor):
    """Greedy coarse-to-fine selection of bins by a distributional dueling critic.

    Each level selects one of K bins for each dimension, independently of the other dimensions. The
    critic's inputs include the midpoints of the current intervals and the level. The value of a bin
    is the mean of a categorical distribution over `atoms` returns from v_min to v_max.

    Seo, Uruc, James, CoRL 2024, arXiv:2407.07787.
    """

    def __init__(
        self,
        observations: int,
        actions: int,
        hidden: Sequence[int],
        *,
        features: int,
        levels: int,
        bins: int,
        atoms: int,
        v_min: float,
        v_max: float,
        noise: float = 0.1,
    ) -> None:
        """Create the critic.

        features: size of an encoded observation.
        levels, bins: see `policies.heads.discretized.bins`.
        noise: standard deviation of the exploration noise.
        """
        super().__init__()
        self.arguments = {"observations": observations, "actions": actions, "hidden": [*hidden]}
        self.arguments |= {"features": features, "levels": levels, "bins": bins, "atoms": atoms}
        self.arguments |= {"v_min": v_min, "v_max": v_max}
        self.actions, self.levels, self.bins, self.atoms = actions, levels, bins, atoms
        self.v_min, self.v_max, self.noise, self.num_samples = v_min, v_max, noise, bins
        sizes = observations, features, actions + levels, hidden
        self.value = Stream(*sizes, actions * atoms)
        self.advantage = Stream(*sizes, actions * bins * atoms)

    def support(self, like: Tensor) -> Tensor:
        """Return the atoms of the distributions, [M], on the device of `like`."""
        return torch.linspace(self.v_min, self.v_max, self.atoms, device=like.device)

    def forward(self, observations: Tensor, middles: Tensor, first: int = 0) -> Tensor:
        """Return the logits of the distributions of N levels from `first` on, [B, N, A, K, M].

        observations: [B, O].  middles: [B, N, A], midpoints of the intervals before each level.
        """
        count = middles.shape[1]
        level = torch.eye(self.levels, device=middles.device)[first : first + count]
        position = torch.cat([middles, level.expand(middles.shape[0], -1, -1)], -1)
        value = self.value(observations, position).unflatten(-1, (self.actions, 1, self.atoms))
        shape = (self.actions, self.bins, self.atoms)
        advantage = self.advantage(observations, position).unflatten(-1, shape)
        return value + advantage - advantage.mean(-2, keepdim=True)

    def mean(self, logits: Tensor) -> Tensor:
        """Return the means [...] of distributions with these logits [..., M]."""
        return logits.softmax(-1) @ self.support(logits)

    def evaluate(self, observations: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logits [B, L, A, K, M] and the mask of selected bins [B, L, A, K].

        observations: [B, O].  actions: [B, A]; their bins are the selected ones.
        """
        indices, middles = discretize(actions, self.levels, self.bins)
        return self(observations, middles[:, :-1]), one_hot(indices, self.bins)

    def select(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """Return the greedy actions [B, A] and the values of all bins per level, [B, L, A, K]."""
        low = observations.new_full((observations.shape[0], self.actions), -1.0)
        high, values = -low, list[Tensor]()
        for level in range(self.levels):
            q = self.mean(self(observations, ((low + high) / 2)[:, None], level)[:, 0])  # [B, A, K]
            low, high = zoom_in(low, high, q.argmax(-1).to(low.dtype), self.bins)
            values.append(q)
        return (low + high) / 2, torch.stack(values, 1)

    def act(self, observations: Tensor) -> Tensor:
        """Return the actions [..., A] of the bins with the largest values."""
        actions, _ = self.select(observations.reshape(-1, observations.shape[-1]))
        return actions.reshape(*observations.shape[:-1], -1)

    def explore_action(self, observations: Tensor, random: Random) -> Tensor:
        """Return the actions plus Gaussian noise, rounded to the midpoints of bins."""
        actions = self.act(observations)
        actions = actions + self.noise * random.normal(actions.shape)
        return discretize(actions.clamp(-1, 1), self.levels, self.bins)[1][..., -1, :]

    def selection_margins(self, observations: Tensor, memory: Memory, noise: Tensor) -> Tensor:
        """See `Head.selection_margins`. The smallest margin of all bins counts."""
        return top_gap(self.select(take_last(observations))[1]).amin((1, 2))
