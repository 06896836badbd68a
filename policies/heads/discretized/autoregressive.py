"""A head that selects the bins of an action one after another, by soft advantages (ARSQ)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from policies.heads.discretized.bins import discretize, one_hot, top_gap, zoom_in
from policies.heads.head import Actor, Memory, take_last
from policies.networks.dropout import Random
from policies.networks.init import orthogonal_init
from policies.networks.mlp import ACTIVATIONS, MLP, Activation

Conditioning = Literal["decision", "level"]


class AutoregressiveActor(Actor):
    """An auto-regressive policy over the bins of an action, from an ensemble of soft advantages.

    An action takes D = L * A decisions: one per level and dimension. The networks output the soft
    advantages of the K bins of a decision. Their inputs are the observation and the midpoints of
    the current intervals of all dimensions, which the earlier decisions determine. The sum of
    exp(advantage / alpha) over the bins is 1. Acting selects the bin with the largest minimum
    advantage over the ensemble.

    Liu et al., ICML 2025, arXiv:2502.00288.
    """

    def __init__(
        self,
        observations: int,
        actions: int,
        hidden: Sequence[int],
        *,
        levels: int,
        bins: int,
        alpha: float,
        conditioning: Conditioning = "decision",
        ensemble: int = 2,
        activation: Activation = "tanh",
    ) -> None:
        """Create the networks.

        levels, bins: see `policies.heads.discretized.bins`.
        alpha: temperature of the policy exp(advantage / alpha).
        conditioning: decision: a decision depends on all earlier decisions; level: only on those of
            earlier levels.
        """
        super().__init__()
        self.arguments = {
            "observations": observations,
            "actions": actions,
            "hidden": [*hidden],
            "levels": levels,
            "bins": bins,
            "alpha": alpha,
            "conditioning": conditioning,
            "ensemble": ensemble,
            "activation": activation,
        }
        self.actions, self.levels, self.bins = actions, levels, bins
        self.alpha, self.conditioning = alpha, conditioning
        self.num_samples, self.decisions = bins, levels * actions
        self.activate = ACTIVATIONS[activation]
        shape: dict[str, Any] = {"ensemble": ensemble, "activation": activation}
        *inner, last = hidden
        init = orthogonal_init()
        self.trunk = MLP(observations + actions, last, inner, inner=True, init=init, **shape)
        self.head = MLP(last, self.decisions * bins, (), init=orthogonal_init(0.01), **shape)

    def forward(self, observations: Tensor, middles: Tensor, first: int = 0) -> Tensor:
        """Return the soft advantages of N decisions from `first` on, [E, B, N, K].

        observations: [B, O].  middles: [B, N, A], midpoints of the intervals before each decision.
        """
        count = middles.shape[1]
        s = observations[:, None].expand(-1, count, -1)
        features = self.activate(self.trunk(torch.cat([s, middles], -1)))  # [E, B, N, H]
        weight, bias = self.head.weights[0], self.head.biases[0]
        block = slice(first, first + count)
        weight = weight.unflatten(-1, (-1, self.bins))[:, :, block]  # [E, H, N, K]
        bias = bias.unflatten(-1, (-1, self.bins))[:, :, block]  # [E, 1, N, K]
        logits = torch.einsum("ebnh,ehnk->ebnk", features, weight) + bias
        soft_max = self.alpha * (logits / self.alpha).logsumexp(-1, keepdim=True)
        return logits - soft_max

    def evaluate(self, observations: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Return the soft advantages [E, B, D, K] and the mask of selected bins [B, D, K].

        observations: [B, O].  actions: [B, A]; their bins are the decisions.
        """
        indices, middles = discretize(actions, self.levels, self.bins)
        before = middles[:, :-1, None]  # [B, L, 1, A]
        if self.conditioning == "decision":
            order = torch.arange(self.actions, device=actions.device)
            is_refined = order < order[:, None]  # [A, A]: dimensions before that of the decision
            before = torch.where(is_refined, middles[:, 1:, None], before)
        before = before.expand(-1, -1, self.actions, -1).flatten(1, 2)  # [B, D, A]
        return self(observations, before), one_hot(indices.flatten(1), self.bins)

    def decide_bins(self, observations: Tensor, select: Callable[[Tensor, int], Tensor]) -> Tensor:
        """Return the actions [B, A] after all decisions have been made in order.

        observations: [B, O].  select: function from minimum advantages [B, K] and the number of the
        decision to the selected bins [B].
        """
        low = observations.new_full((observations.shape[0], self.actions), -1.0)
        high, middles = -low, 0 * low
        for number in range(self.decisions):
            dimension = number % self.actions
            if self.conditioning == "decision" or dimension == 0:
                middles = (low + high) / 2
            values = self(observations, middles[:, None], number)[:, :, 0].amin(0)  # [B, K]
            index = select(values, number)[:, None].to(low.dtype)
            start, end = zoom_in(low, high, index, self.bins)
            is_decided = torch.arange(self.actions, device=low.device) == dimension
            low, high = torch.where(is_decided, start, low), torch.where(is_decided, end, high)
        return (low + high) / 2

    def act(self, observations: Tensor) -> Tensor:
        """Return the actions [..., A] of the bins with the largest advantages."""
        flat = observations.reshape(-1, observations.shape[-1])
        actions = self.decide_bins(flat, lambda values, _: values.argmax(-1))
        return actions.reshape(*observations.shape[:-1], -1)

    def explore_action(self, observations: Tensor, random: Random) -> Tensor:
        """Return sampled actions: the probability of a bin is proportional to exp(A / alpha)."""
        u = random.uniform((*observations.shape[:-1], self.decisions, self.bins))
        gumbel = -(-u.clamp(1e-7, 1 - 1e-7).log()).log().flatten(0, -3)  # [B, D, K]

        def sample(values: Tensor, number: int) -> Tensor:
            return (values / self.alpha + gumbel[:, number]).argmax(-1)

        flat = observations.reshape(-1, observations.shape[-1])
        return self.decide_bins(flat, sample).reshape(*observations.shape[:-1], -1)

    def selection_margins(self, observations: Tensor, memory: Memory, noise: Tensor) -> Tensor:
        """See `Head.selection_margins`. The smallest margin of all decisions counts."""
        gaps = list[Tensor]()

        def select(values: Tensor, number: int) -> Tensor:
            gaps.append(top_gap(values))
            return values.argmax(-1)

        self.decide_bins(take_last(observations), select)
        return torch.stack(gaps).amin(0)
