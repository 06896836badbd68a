"""Chunks of actions from noise, round after round: diffusion, flow matching, consistency."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from policies.heads.schedules import Table, draws, sample
from policies.networks.denoisers import Kind, denoiser
from policies.networks.dropout import Random, hidden_dropout
from policies.networks.scaled import Scaled, Seen


class DiffusionActor(Scaled):
    """A network and the table of a sampler: a `heads.head.Planner` (Chi et al., arXiv:2303.04137).

        time           t-1   t   t+1 … t+14
        observations    o    o                     a history of 2
        window          a    a    a  …   a         of 16 actions, the first beside the oldest one
        answered             a    a  …   a         15, of which `n_action_steps` are taken

    The network sees each action's range in the data as [-1, 1].
    """

    def __init__(
        self,
        observations: Seen,
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
        """options: of the network.  table: `heads.schedules`.  action_low, …: of the data, [A].

        observations: numbers in the one vector, or the shape of each channel, whose pictures
        are looked at by an `encoder`, options of `PictureEncoder`.

        until: the network is told a second time, that at which a jump ends; here, when it acts.
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
                f"n_action_steps={n_action_steps}: of a window of {horizon} actions that begins beside the "
                f"oldest of {n_obs_steps} observations {max(self.chunk_size, 0)} lie ahead"
            )
        self.noise_shape = (draws(self.table), horizon, actions)
        self.dropout_rate = dropout_rate
        self.until, sizes = until, (actions, horizon, n_obs_steps, self.features)
        times = 1 if until is None else 2
        self.network = denoiser(network, *sizes, times=times, **options)

    def forward(
        self,
        observations: Any,
        x: Tensor,
        times: Tensor,
        random: Random | None = None,
        until: Tensor | None = None,
    ) -> Tensor:
        """What the network answers to x [..., B, T, A] at `times` [..., B].

        observations: [B, n_obs_steps, *obs], or such channels, encoded once for all that lies before
        B. With `random`, under dropout, as in training. until: [..., B], where it is told a second
        time.
        """
        return self.predict(self.encode(observations, random), x, times, random, until)

    def predict(
        self,
        seen: Tensor,
        x: Tensor,
        times: Tensor,
        random: Random | None = None,
        until: Tensor | None = None,
    ) -> Tensor:
        """`forward` after `encode`."""
        return self.by(self.network, seen, x, times, random, until)

    def by(
        self,
        network: nn.Module,
        seen: Tensor,
        x: Tensor,
        times: Tensor,
        random: Random | None = None,
        until: Tensor | None = None,
    ) -> Tensor:
        """What a network of this one's sizes answers; the rest is `predict`'s."""
        drop = hidden_dropout(self.dropout_rate, random) or (lambda values: values)
        rows, chunk = x.shape[:-2], x.shape[-2:]
        seen = seen.expand(*rows, *seen.shape[-2:]).reshape(prod(rows), *seen.shape[-2:])
        told = [times]
        if self.until is not None:
            told.append(torch.full_like(times, self.until) if until is None else until)
        moments = torch.stack(told, -1).reshape(prod(rows), len(told))
        answer: Tensor = network(x.reshape(prod(rows), *chunk), moments, seen, drop)
        return answer.reshape(x.shape)

    def asked(self, seen: Tensor, x: Tensor, time: float) -> Tensor:
        """The answer in a round of the table, that of `time`."""
        return self.predict(seen, x, x.new_full(x.shape[:1], time))

    def plan(self, observations: Any, noise: Tensor) -> Tensor:
        """See `Planner`."""
        seen = self.encode(observations)

        def network(x: Tensor, time: float) -> Tensor:
            return self.asked(seen, x, time)

        return self.finished(sample(self.table, network, noise))

    def finished(self, x: Tensor) -> Tensor:
        """A sampler's last [B, T, A] -> the actions from the present one on, [B, chunk_size, A]."""
        chunk = x[:, self.n_obs_steps - 1 :].clip(-1, 1)
        return self.raw(chunk).clip(-1, 1)


class TunedActor(DiffusionActor):
    """One of whose rounds the last were fine-tuned; those before ask what `network` was before."""

    def __init__(self, *, tuned: int, **options: Any) -> None:
        """tuned: rounds, fewer than all."""
        super().__init__(**options)
        self.arguments["tuned"] = tuned
        self.base = copy.deepcopy(self.network)
        self.late = {row[0] for row in self.table[-tuned:]}  # their times

    def predict(
        self,
        seen: Tensor,
        x: Tensor,
        times: Tensor,
        random: Random | None = None,
        until: Tensor | None = None,
    ) -> Tensor:
        """Of both networks each row's own: for a graph, in which a time is not known before."""
        late = (times[..., None] == times.new_tensor(sorted(self.late))).any(-1)
        tuned, before = (self.by(net, seen, x, times, random) for net in (self.network, self.base))
        return torch.where(late[..., None, None], tuned, before)

    def asked(self, seen: Tensor, x: Tensor, time: float) -> Tensor:
        network = self.network if time in self.late else self.base
        return self.by(network, seen, x, x.new_full(x.shape[:1], time))

    def before(self, observations: Any, x: Tensor, times: Tensor) -> Tensor:
        """`forward` as it was before it was fine-tuned."""
        return self.by(self.base, self.encode(observations), x, times)
