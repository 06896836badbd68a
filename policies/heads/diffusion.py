"""Chunks of actions from noise, round after round: diffusion, flow matching, consistency."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from torch import Tensor, nn

from policies.heads.schedules import Table, centre_and_extent, draws, sample
from policies.networks.denoisers import Kind, denoiser
from policies.networks.dropout import Random, hidden_dropout


class DiffusionActor(nn.Module):
    """A network and the table of a sampler: a `heads.head.Planner` (Chi et al., arXiv:2303.04137).

        time           t-1   t   t+1 … t+14
        observations    o    o                     a history of 2
        window          a    a    a  …   a         of 16 actions, the first beside the oldest one
        answered             a    a  …   a         15, of which `executed` are taken

    The network sees each action's range in the data as [-1, 1].
    """

    def __init__(
        self,
        observations: int,
        actions: int,
        *,
        network: Kind,
        options: Mapping[str, Any],
        table: Table,
        history: int = 2,
        window: int = 16,
        executed: int = 8,
        action_low: Sequence[float] | None = None,
        action_high: Sequence[float] | None = None,
        dropout_rate: float = 0.0,
    ) -> None:
        """options: of the network.  table: `heads.schedules`.  action_low, …: of the data, [A]."""
        super().__init__()
        low, high = [*(action_low or [-1.0] * actions)], [*(action_high or [1.0] * actions)]
        self.table: Table = [[float(number) for number in row] for row in table]
        self.arguments = {
            "observations": observations,
            "actions": actions,
            "network": network,
            "options": dict(options),
            "table": self.table,
            "history": history,
            "window": window,
            "executed": executed,
            "action_low": low,
            "action_high": high,
        }
        self.history, self.window, self.executed = history, window, executed
        self.horizon = window - history + 1
        if executed > self.horizon:
            raise ValueError(
                f"executed={executed}: of a window of {window} actions that begins beside the "
                f"oldest of {history} observations {max(self.horizon, 0)} lie ahead"
            )
        self.noise_shape = (draws(self.table), window, actions)
        ranges = [centre_and_extent(*ends) for ends in zip(low, high, strict=True)]
        self.centre, self.extent = ([pair[k] for pair in ranges] for k in (0, 1))
        self.dropout_rate = dropout_rate
        self.network = denoiser(network, actions, window, history, observations, **options)

    def forward(
        self, observations: Tensor, x: Tensor, times: Tensor, random: Random | None = None
    ) -> Tensor:
        """What the network answers to x [..., B, T, A] at `times` [..., B].

        observations: [B, history, *obs], encoded once for all that lies before B. With `random`,
        under dropout, as in training.
        """
        return self.predict(self.encode(observations), x, times, random)

    def encode(self, observations: Tensor) -> Tensor:
        """[B, history, *obs] -> [B, history, F]."""
        return observations.flatten(2)

    def predict(
        self, seen: Tensor, x: Tensor, times: Tensor, random: Random | None = None
    ) -> Tensor:
        """`forward` after `encode`."""
        drop = hidden_dropout(self.dropout_rate, random) or (lambda values: values)
        rows, chunk = x.shape[:-2], x.shape[-2:]
        seen = seen.expand(*rows, *seen.shape[-2:]).reshape(prod(rows), *seen.shape[-2:])
        flat = x.reshape(prod(rows), *chunk), times.reshape(prod(rows), 1)
        return self.network(*flat, seen, drop).reshape(x.shape)

    def plan(self, observations: Tensor, noise: Tensor) -> Tensor:
        """See `Planner`."""
        seen = self.encode(observations)

        def network(x: Tensor, time: float) -> Tensor:
            return self.predict(seen, x, x.new_full(x.shape[:1], time))

        chunk = sample(self.table, network, noise).clip(-1, 1)
        return self.raw(chunk[:, self.history - 1 :]).clip(-1, 1)

    def unit(self, actions: Tensor) -> Tensor:
        """[..., A] -> as the network sees them."""
        return (actions - actions.new_tensor(self.centre)) / actions.new_tensor(self.extent)

    def raw(self, chunk: Tensor) -> Tensor:
        """The inverse of `unit`."""
        return chunk * chunk.new_tensor(self.extent) + chunk.new_tensor(self.centre)
