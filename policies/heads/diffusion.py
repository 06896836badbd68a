"""Diffusion, flow matching and consistency policies, which denoise chunks of actions."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from policies.heads.schedules import Table, count_noises, sample
from policies.networks.chunk_head import ChunkHead, ObservationSizes
from policies.networks.denoisers import Kind, build_denoiser
from policies.networks.dropout import Random, hidden_dropout


class DiffusionActor(ChunkHead):
    """A denoising network with a sampler table (Chi et al., arXiv:2303.04137).

        time           t-1   t   t+1 … t+14
        observations    o    o                     n_obs_steps = 2
        horizon         a    a    a  …   a         16 actions, the first at the oldest observation
        chunk                a    a  …   a         15 actions, `n_action_steps` of them executed

    The network's actions are normalized: the range of each action in the data becomes [-1, 1].
    The class is a `heads.head.Planner`.
    """

    def __init__(
        self,
        observations: ObservationSizes,
        actions: int,
        *,
        network: Kind,
        options: Mapping[str, Any],
        table: Table,
        n_obs_steps: int = 2,
        horizon: int = 16,
        n_action_steps: int = 8,
        action_low: Sequence[float] | None = None,
        action_high: Sequence[float] | None = None,
        until: float | None = None,
        encoder: Mapping[str, Any] | None = None,
        dropout_rate: float = 0.0,
    ) -> None:
        """Create the head.

        observations: size of the only vector, or the shape of each channel.
        network: kind of denoising network.  options: its options.
        table: of the sampler, see `heads.schedules`.
        n_obs_steps: observations in the input.
        horizon: actions that are denoised.  n_action_steps: actions of a chunk that are executed.
        action_low, action_high: [A], range of the actions in the data; default -1 and 1.
        until: if given, the network has a second time input, the end of a jump; this is its value
        when the policy acts.
        encoder: options of `ImageEncoder`.
        dropout_rate: share of hidden units that are dropped in training.
        """
        super().__init__(observations, actions, action_low, action_high, encoder)
        self.table: Table = [[float(number) for number in row] for row in table]
        self.arguments |= {
            "network": network,
            "options": dict(options),
            "table": self.table,
            "n_obs_steps": n_obs_steps,
            "horizon": horizon,
            "n_action_steps": n_action_steps,
            "until": until,
        }
        self.n_obs_steps, self.horizon, self.n_action_steps = n_obs_steps, horizon, n_action_steps
        self.chunk_size = horizon - n_obs_steps + 1
        if n_action_steps > self.chunk_size:
            raise ValueError(
                f"n_action_steps={n_action_steps} is more than {max(self.chunk_size, 0)}, the "
                f"actions from the present on: horizon={horizon} starts at the oldest of "
                f"n_obs_steps={n_obs_steps}"
            )
        self.noise_shape = (count_noises(self.table), horizon, actions)
        self.dropout_rate = dropout_rate
        self.until, sizes = until, (actions, horizon, n_obs_steps, self.features)
        times = 1 if until is None else 2
        self.network = build_denoiser(network, *sizes, times=times, **options)

    def forward(
        self,
        observations: Any,
        x: Tensor,
        times: Tensor,
        random: Random | None = None,
        until: Tensor | None = None,
    ) -> Tensor:
        """Return the network's output for x [..., B, T, A] at `times` [..., B].

        observations: [B, n_obs_steps, *obs], or such channels by name. They are encoded once for
        all leading dimensions of x.
        random: source of random crops and dropout, in training only.
        until: [..., B], second time input of a network that has one.
        """
        return self.predict(self.encode(observations, random), x, times, random, until)

    def predict(
        self,
        features: Tensor,
        x: Tensor,
        times: Tensor,
        random: Random | None = None,
        until: Tensor | None = None,
    ) -> Tensor:
        """Return `forward` for encoded observations, `features` [B, n_obs_steps, F]."""
        return self.run_network(self.network, features, x, times, random, until)

    def run_network(
        self,
        network: nn.Module,
        features: Tensor,
        x: Tensor,
        times: Tensor,
        random: Random | None = None,
        until: Tensor | None = None,
    ) -> Tensor:
        """Return the output of `network`, which has the sizes of this head's; see `predict`."""
        drop = hidden_dropout(self.dropout_rate, random) or (lambda values: values)
        rows, chunk, shape = x.shape[:-2], x.shape[-2:], features.shape[-2:]
        features = features.expand(*rows, *shape).reshape(prod(rows), *shape)
        inputs = [times]
        if self.until is not None:
            inputs.append(torch.full_like(times, self.until) if until is None else until)
        moments = torch.stack(inputs, -1).reshape(prod(rows), len(inputs))
        output: Tensor = network(x.reshape(prod(rows), *chunk), moments, features, drop)
        return output.reshape(x.shape)

    def predict_at(self, features: Tensor, x: Tensor, time: float) -> Tensor:
        """Return the network's output in the denoising step of the table that has this time."""
        return self.predict(features, x, x.new_full(x.shape[:1], time))

    def plan(self, observations: Any, noise: Tensor) -> Tensor:
        """See `Planner`."""
        features = self.encode(observations)

        def network(x: Tensor, time: float) -> Tensor:
            return self.predict_at(features, x, time)

        return self.finish(sample(self.table, network, noise))

    def finish(self, x: Tensor) -> Tensor:
        """Convert a sampler's result [B, T, A] to a chunk [B, chunk_size, A]."""
        chunk = x[:, self.n_obs_steps - 1 :].clip(-1, 1)
        return self.denormalize_actions(chunk).clip(-1, 1)


class TunedActor(DiffusionActor):
    """A diffusion policy whose last denoising steps are fine-tuned.

    The earlier steps use `base`, the network before fine-tuning.
    """

    def __init__(self, *, tuned: int, **options: Any) -> None:
        """Create the head.

        tuned: number of fine-tuned denoising steps, fewer than all.
        options: of `DiffusionActor`.
        """
        super().__init__(**options)
        self.arguments["tuned"] = tuned
        self.base = copy.deepcopy(self.network)
        self.late = {row[0] for row in self.table[-tuned:]}  # times of the fine-tuned steps

    def predict(
        self,
        features: Tensor,
        x: Tensor,
        times: Tensor,
        random: Random | None = None,
        until: Tensor | None = None,
    ) -> Tensor:
        """Run both networks and select by the time of each row.

        An exported graph needs this, because its times are not known in advance.
        """
        late = (times[..., None] == times.new_tensor(sorted(self.late))).any(-1)
        networks = (self.network, self.base)
        tuned, pretrained = (self.run_network(net, features, x, times, random) for net in networks)
        return torch.where(late[..., None, None], tuned, pretrained)

    def predict_at(self, features: Tensor, x: Tensor, time: float) -> Tensor:
        network = self.network if time in self.late else self.base
        return self.run_network(network, features, x, x.new_full(x.shape[:1], time))

    def predict_pretrained(self, observations: Any, x: Tensor, times: Tensor) -> Tensor:
        """Return `forward` of the network before fine-tuning."""
        return self.run_network(self.base, self.encode(observations), x, times)
