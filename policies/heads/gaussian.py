"""Heads with a normal distribution over actions, with or without tanh squashing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from policies.episodes import EXECUTED
from policies.heads.head import Actor, Head, Memory, steps_since
from policies.networks.dropout import Random, hidden_dropout
from policies.networks.init import Init, orthogonal_init, torch_init
from policies.networks.mlp import MLP, Activation


class GaussianActor(Actor):
    """A normal distribution with mean tanh(MLP) and a state-independent standard deviation (IQL).

    Without `tanh_mean`, the mean is the output of the MLP (AWAC). Actions are clipped to [-1, 1].
    """

    def __init__(
        self,
        observations: int,
        actions: int,
        hidden: Sequence[int],
        *,
        activation: Activation = "relu",
        log_std_range: Sequence[float] = (-5.0, 2.0),
        tanh_mean: bool = True,
        dropout_rate: float = 0.0,
        init: Init | None = None,
    ) -> None:
        super().__init__()
        self.arguments = {
            "observations": observations,
            "actions": actions,
            "hidden": [*hidden],
            "activation": activation,
            "log_std_range": [*log_std_range],
            "tanh_mean": tanh_mean,
        }
        self.tanh_mean = tanh_mean
        init = init or orthogonal_init()
        self.trunk = MLP(observations, actions, hidden, activation=activation, init=init)
        self.log_std = nn.Parameter(torch.zeros(actions))
        self.log_std_range = (log_std_range[0], log_std_range[1])
        self.dropout_rate = dropout_rate

    def forward(self, observations: Tensor, random: Random | None = None) -> Tensor:
        """Return the mean [..., A] for observations [..., O].

        random: source of random numbers for dropout, in training only.
        """
        mean = self.trunk(observations, hidden_dropout(self.dropout_rate, random))
        return mean.tanh() if self.tanh_mean else mean

    def act(self, observations: Tensor) -> Tensor:
        """Return the mean [..., A], clipped to [-1, 1], for observations [..., O]."""
        return self(observations).clamp(-1, 1)

    def sample(self, observations: Tensor, noise: Tensor) -> Tensor:
        """Return actions [..., A], not clipped, for standard normal noise [..., A]."""
        mean: Tensor = self(observations)
        return mean + self.log_std.clamp(*self.log_std_range).exp() * noise

    def entropy(self) -> Tensor:
        """Return the entropy of the normal distribution in nats, 0-d; it depends on no state."""
        return (
            self.log_std.clamp(*self.log_std_range) + 0.5 * math.log(2 * math.pi * math.e)
        ).sum()

    def log_prob(
        self, observations: Tensor, actions: Tensor, random: Random | None = None
    ) -> Tensor:
        """Return the log density [...] of actions [..., A] for observations [..., O].

        random: source of random numbers for dropout, in training only.
        """
        log_std = self.log_std.clamp(*self.log_std_range)
        z = (actions - self(observations, random)) / log_std.exp()
        return (-0.5 * z.square() - log_std - 0.5 * math.log(2 * math.pi)).sum(-1)

    def explore_action(self, observations: Tensor, random: Random) -> Tensor:
        """Return sampled actions, clipped to [-1, 1]."""
        shape = (*observations.shape[:-1], *self.log_std.shape)
        return self.sample(observations, random.normal(shape)).clamp(-1, 1)


class StepGaussianActor(Head):
    """Normal distributions with a mean network and a standard deviation for each step (HNPG).

    Later steps than `num_steps` use the last network. With num_steps=1, all steps use one network.
    Actions are clipped to [-1, 1].
    """

    def __init__(
        self,
        observations: int,
        actions: int,
        hidden: Sequence[int],
        *,
        num_steps: int = 1,
        init: Init = torch_init,
    ) -> None:
        super().__init__()
        self.arguments = {"observations": observations, "actions": actions, "hidden": [*hidden]}
        self.arguments |= {"num_steps": num_steps}
        self.num_steps = num_steps
        options: dict[str, Any] = {"activation": "tanh", "ensemble": num_steps, "init": init}
        self.trunk = MLP(observations, actions, hidden, **options)
        self.log_std = nn.Parameter(torch.zeros(num_steps, 1, actions))

    def per_step(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean [H, M, A] and log_std [H, 1, A]; step h receives slice h of [H, M, O]."""
        return self.trunk(observations, per_member=True), self.log_std

    def at(self, observations: Tensor, steps: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and log_std [B, A] for observations [B, O] at steps [B] of the episode."""
        mask = step_mask(steps, self.num_steps)[..., None]  # [H, B, 1]
        return (self.trunk(observations) * mask).sum(0), (self.log_std * mask).sum(0)

    def sample(self, observations: Tensor, steps: Tensor, noise: Tensor) -> Tensor:
        """Return actions [B, A], not clipped, for standard normal noise [B, A]; see `at`."""
        mean, log_std = self.at(observations, steps)
        return mean + log_std.exp() * noise

    def initial_memory(self, batch: int) -> Memory:
        """See `Head.initial_memory`. `steps` is the step of the last decision."""
        if self.num_steps == 1:
            return {}
        return {"steps": torch.full((batch,), -1.0), EXECUTED: torch.zeros(batch)}

    def advance(self, observations: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        """Return the steps [B] of the episodes and the next memory; 0 if steps share a network."""
        if not memory:
            return observations.new_zeros(observations.shape[0]), {}  # an export would fix len()
        steps = memory["steps"] + steps_since(memory)
        return steps, memory | {"steps": steps}

    def decide(self, observations: Tensor, memory: Memory, noise: Tensor) -> tuple[Tensor, Memory]:
        """See `Head.decide`."""
        steps, memory = self.advance(observations, memory)
        mean, _ = self.at(observations[:, -1], steps)
        return mean.clamp(-1, 1)[:, None], memory

    def explore(
        self, observations: Tensor, memory: Memory, noise: Tensor, random: Random
    ) -> tuple[Tensor, Memory]:
        """See `Head.explore`."""
        noise = random.normal((observations.shape[0], self.log_std.shape[-1]))
        steps, memory = self.advance(observations, memory)
        return self.sample(observations[:, -1], steps, noise).clamp(-1, 1)[:, None], memory


def step_mask(steps: Tensor, num_steps: int) -> Tensor:
    """Return 1 where a network is that of the step, else 0, [H, ...], for steps [...].

    Later steps than num_steps use the last network.
    """
    numbers = torch.arange(num_steps, device=steps.device).reshape(-1, *[1] * steps.dim())
    return (steps.clamp(max=num_steps - 1) == numbers).float()


class TanhGaussianActor(Actor):
    """tanh of a normal distribution whose mean and log_std depend on the state (SAC).

    With `affine`, log_std is `scale * x + shift` with learned scale and shift. `affine` holds their
    initial values (1 and -1 in CQL's released code).
    """

    def __init__(
        self,
        observations: int,
        actions: int,
        hidden: Sequence[int],
        *,
        activation: Activation = "relu",
        log_std_range: Sequence[float] = (-20.0, 2.0),
        affine: Sequence[float] | None = None,
        layer_norm: bool = False,
        init: Init = torch_init,
    ) -> None:
        """Create the head.

        layer_norm: add layer normalization to the hidden layers.
        """
        super().__init__()
        self.arguments = {
            "observations": observations,
            "actions": actions,
            "hidden": [*hidden],
            "activation": activation,
            "log_std_range": [*log_std_range],
            "affine": None if affine is None else [*affine],
        }
        self.arguments |= {"layer_norm": True} if layer_norm else {}
        options: dict[str, Any] = {"activation": activation, "layer_norm": layer_norm}
        self.trunk = MLP(observations, 2 * actions, hidden, init=init, **options)
        self.log_std_range = (log_std_range[0], log_std_range[1])
        self.affine = None if affine is None else nn.Parameter(torch.tensor([*affine]))

    def forward(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and log_std before the tanh, [..., A] each, for observations [..., O]."""
        mean, log_std = self.trunk(observations).chunk(2, -1)
        if self.affine is not None:
            log_std = self.affine[0] * log_std + self.affine[1]
        return mean, log_std.clamp(*self.log_std_range)

    def act(self, observations: Tensor) -> Tensor:
        """Return tanh(mean) [..., A] for observations [..., O]."""
        return self(observations)[0].tanh()

    def sample(
        self, observations: Tensor, random: Random, samples: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return sampled actions [B, A] and their log densities [B] for observations [B, O].

        samples: number N of samples per observation; the results are [N, B, A] and [N, B]. Default:
        one sample, without the axis N.
        """
        mean, log_std = self(observations)
        shape = mean.shape if samples is None else (samples, *mean.shape)
        return tanh_normal(mean, log_std, random.normal(shape))

    def log_prob(self, observations: Tensor, actions: Tensor) -> Tensor:
        """Return the log density [...] of actions [..., A].

        Actions are clipped to [-1 + 1e-6, 1 - 1e-6], so that the density is finite.
        """
        mean, log_std = self(observations)
        u = actions.clamp(-1 + 1e-6, 1 - 1e-6).atanh()
        z = (u - mean) / log_std.exp()
        log_normal = -0.5 * z.square() - log_std - 0.5 * math.log(2 * math.pi)
        return (log_normal - 2 * (math.log(2) - u - softplus(-2 * u))).sum(-1)

    def explore_action(self, observations: Tensor, random: Random) -> Tensor:
        """Return sampled actions."""
        return self.sample(observations, random)[0]


def tanh_normal(mean: Tensor, log_std: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Return the actions tanh(u), u = mean + std * noise, [..., A], and their log densities [...].

    log pi = sum_j log N(u_j) - 2 (log 2 - u_j - softplus(-2 u_j)). This form is finite even if tanh
    saturates.
    """
    u = mean + log_std.exp() * noise
    log_normal = -0.5 * noise.square() - log_std - 0.5 * math.log(2 * math.pi)
    log_prob = (log_normal - 2 * (math.log(2) - u - softplus(-2 * u))).sum(-1)
    return u.tanh(), log_prob
