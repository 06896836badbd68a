"""Diffusion, flow matching and consistency policies, which denoise chunks of actions."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from policies.heads.head import ChunkHead, Memory, ObservationSizes
from policies.heads.schedules import Table, count_noises, sample
from policies.networks.denoisers import Kind, build_denoiser
from policies.networks.dropout import Random, hidden_dropout


class DiffusionActor(ChunkHead):
    """A denoising network and its sampler (Chi et al., arXiv:2303.04137).

        time           t-1   t   t+1 … t+14
        observations    o    o                     n_obs_steps = 2
        denoised        a    a    a  …   a         horizon = 16, from the oldest observation on
        chunk                a    a  …   a         15 actions; the first n_action_steps are executed

    The network operates on normalized actions: the range of each action dimension in the data
    becomes [-1, 1].
    """

    table: Table

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

        observations: size of the observation vector, or the shapes of all channels by name.
        network: kind of denoising network.  options: keyword arguments of the network's class.
        table: sampler table, the coefficients of all denoising steps, see `heads.schedules`.
        n_obs_steps: number of observations in the input.
        horizon: number of denoised actions.
        n_action_steps: number of executed actions per chunk.
        action_low, action_high: [A], range of the actions in the data; default -1 and 1.
        until: for consistency models, whose network has a second time input: the time at which a
        jump ends. `until` is the value of this input when the policy acts. None: the network has
        one time input.
        encoder: options of `ImageEncoder`.
        dropout_rate: probability of dropping a hidden unit, in training only.
        """
        super().__init__(observations, actions, action_low, action_high, encoder)
        self.table = [[float(number) for number in row] for row in table]
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
                "number of actions from the present step on. The horizon starts at the oldest "
                f"observation (horizon={horizon}, n_obs_steps={n_obs_steps})"
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

        observations: [B, n_obs_steps, *obs], or channels of this shape by name. They are encoded
        once for all leading dimensions of x.
        random: source of random numbers for crops and dropout, in training only.
        until: [..., B], second time input. Default: the constructor's `until`.
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
        """Return the network's output for encoded observations, `features` [B, n_obs_steps, F].

        Other arguments: see `forward`.
        """
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
        """Return the output of `network`, which has the sizes of `self.network`; see `predict`."""
        rows, chunk, shape = x.shape[:-2], x.shape[-2:], features.shape[-2:]
        dropout = hidden_dropout(self.dropout_rate, random, groups=prod(rows[:-1]))
        drop = dropout or (lambda values: values)
        features = features.expand(*rows, *shape).reshape(prod(rows), *shape)
        inputs = [times]
        if self.until is not None:
            inputs.append(torch.full_like(times, self.until) if until is None else until)
        all_times = torch.stack(inputs, -1).reshape(prod(rows), len(inputs))
        output: Tensor = network(x.reshape(prod(rows), *chunk), all_times, features, drop)
        return output.reshape(x.shape)

    def predict_at(self, features: Tensor, x: Tensor, time: float) -> Tensor:
        """Return the network's output in the denoising step at `time`, which holds for all rows."""
        return self.predict(features, x, x.new_full(x.shape[:1], time))

    def decide(self, observations: Any, memory: Memory, noise: Tensor) -> tuple[Tensor, Memory]:
        """See `Head.decide`."""
        features = self.encode(observations)

        def network(x: Tensor, time: float) -> Tensor:
            return self.predict_at(features, x, time)

        return self.finish(sample(self.table, network, noise)), memory

    def finish(self, x: Tensor) -> Tensor:
        """Convert denoised actions [B, T, A] to a chunk [B, chunk_size, A].

        Drop the actions before the current step, and denormalize the others.
        """
        chunk = x[:, self.n_obs_steps - 1 :].clip(-1, 1)
        return self.denormalize_actions(chunk).clip(-1, 1)


class TunedActor(DiffusionActor):
    """A diffusion policy whose last denoising steps are fine-tuned.

    The earlier steps use `base`, the network before fine-tuning.
    """

    def __init__(self, *, tuned: int, **options: Any) -> None:
        """Create the head.

        tuned: number of fine-tuned denoising steps, less than the number of denoising steps.
        options: arguments of `DiffusionActor`.
        """
        super().__init__(**options)
        self.arguments["tuned"] = tuned
        self.base = copy.deepcopy(self.network)
        self.tuned_times = {row[0] for row in self.table[-tuned:]}  # times of the fine-tuned steps

    def predict(
        self,
        features: Tensor,
        x: Tensor,
        times: Tensor,
        random: Random | None = None,
        until: Tensor | None = None,
    ) -> Tensor:
        """Run both networks and select the output by the time of each row.

        An exported graph cannot select the network before it runs, because time is an input.
        """
        is_tuned = (times[..., None] == times.new_tensor(sorted(self.tuned_times))).any(-1)
        networks = (self.network, self.base)
        tuned, pretrained = (self.run_network(net, features, x, times, random) for net in networks)
        return torch.where(is_tuned[..., None, None], tuned, pretrained)

    def predict_at(self, features: Tensor, x: Tensor, time: float) -> Tensor:
        network = self.network if time in self.tuned_times else self.base
        return self.run_network(network, features, x, x.new_full(x.shape[:1], time))

    def predict_pretrained(self, observations: Any, x: Tensor, times: Tensor) -> Tensor:
        """Return the output of the network before fine-tuning; see `forward`."""
        return self.run_network(self.base, self.encode(observations), x, times)
