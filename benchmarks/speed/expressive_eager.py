"""FQL and Diffusion-QL in plain PyTorch, in the style of `benchmarks.speed.eager`."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.speed.eager import adam, soft_update

FLOW_STEPS, DENOISING_STEPS = 10, 5


def mlp(sizes: Sequence[int], activation: nn.Module, norm: bool = False) -> nn.Sequential:
    """Return linear layers with the activation, and layer normalization after it, in between."""
    layers: list[nn.Module] = []
    for fan_in, out in pairwise(sizes[:-1]):
        layers += [nn.Linear(fan_in, out), activation]
        layers += [nn.LayerNorm(out, eps=1e-6)] if norm else []
    return nn.Sequential(*layers, nn.Linear(*sizes[-2:]))


def values(critics: nn.ModuleList, s: Tensor, a: Tensor) -> Tensor:
    """Return the values of all critics, [E, B]."""
    x = torch.cat([s, a], -1)
    return torch.stack([q(x)[:, 0] for q in critics])


class FQL:
    """Flow policy, one-step policy and two critics; all losses are at the old parameters."""

    def __init__(self, obs: int, act: int, device: torch.device | str = "cpu") -> None:
        hidden, gelu = [512] * 4, nn.GELU("tanh")
        self.flow = mlp([obs + act + 1, *hidden, act], gelu).to(device)
        self.policy = mlp([obs + act, *hidden, act], gelu).to(device)
        critics = [mlp([obs + act, *hidden, 1], gelu, norm=True) for _ in range(2)]
        self.critics = nn.ModuleList(critics).to(device)
        self.targets = copy.deepcopy(self.critics).requires_grad_(False)
        self.optimizers = [adam(net) for net in (self.flow, self.policy, self.critics)]

    def integrate(self, s: Tensor, x: Tensor) -> Tensor:
        for k in range(FLOW_STEPS):
            t = torch.full_like(x[:, :1], k / FLOW_STEPS)
            x = x + self.flow(torch.cat([s, x, t], -1)) / FLOW_STEPS
        return x.clamp(-1, 1)

    def train(self, batch: list[Tensor]) -> None:
        s, a, r, s2, d = batch
        with torch.no_grad():
            a2 = self.policy(torch.cat([s2, torch.randn_like(a)], -1)).clamp(-1, 1)
            y = r + 0.99 * (1 - d) * values(self.targets, s2, a2).mean(0)
        critic_loss = (values(self.critics, s, a) - y).square().mean()

        x0, t = torch.randn_like(a), torch.rand_like(a[:, :1])
        velocity = self.flow(torch.cat([s, (1 - t) * x0 + t * a, t], -1))
        z = torch.randn_like(a)
        with torch.no_grad():
            target = self.integrate(s, z)
        pi = self.policy(torch.cat([s, z], -1))
        q = values(self.critics, s, pi.clamp(-1, 1)).mean(0)
        actor_loss = F.mse_loss(velocity, a - x0) + F.mse_loss(pi, target)
        actor_loss = actor_loss - q.mean() / q.detach().abs().mean()

        for optimizer in self.optimizers:
            optimizer.zero_grad()
        soft_update(self.targets, self.critics, 0.005)
        critic_loss.backward()
        actor_loss.backward(inputs=[*self.flow.parameters(), *self.policy.parameters()])
        for optimizer in self.optimizers:
            optimizer.step()


class Denoiser(nn.Module):
    """Network that predicts the noise, and the sampler of actions."""

    def __init__(self, obs: int, act: int) -> None:
        super().__init__()
        self.time, self.act = mlp([16, 32, 16], nn.Mish()), act
        self.net = mlp([act + 16 + obs, *[256] * 3, act], nn.Mish())
        steps = torch.arange(DENOISING_STEPS + 1) / DENOISING_STEPS
        alpha_bar = torch.exp(-0.1 * steps - 0.5 * 9.9 * steps**2)
        self.register_buffer("alpha_bar", alpha_bar)
        self.register_buffer("waves", torch.exp(torch.arange(8) * (-math.log(10_000) / 7)))

    def forward(self, s: Tensor, x: Tensor, t: Tensor) -> Tensor:
        angles = t[:, None] * self.waves
        time = self.time(torch.cat([angles.sin(), angles.cos()], -1))
        return self.net(torch.cat([x, time, s], -1))

    def sample(self, s: Tensor) -> Tensor:
        x = torch.randn(len(s), self.act, device=s.device)
        for t in reversed(range(DENOISING_STEPS)):
            before, after = self.alpha_bar[t], self.alpha_bar[t + 1]
            noise = self(s, x, torch.full((len(s),), t, device=s.device))
            x0 = ((x - (1 - after).sqrt() * noise) / after.sqrt()).clamp(-1, 1)
            alpha = after / before
            x = (before.sqrt() * (1 - alpha) * x0 + alpha.sqrt() * (1 - before) * x) / (1 - after)
            if t:
                std = ((1 - before) / (1 - after) * (1 - alpha)).sqrt()
                x = x + std * torch.randn_like(x)
        return x.clamp(-1, 1)


class DiffusionQL:
    """Diffusion policy and two critics."""

    def __init__(self, obs: int, act: int, device: torch.device | str = "cpu") -> None:
        self.policy = Denoiser(obs, act).to(device)
        critics = [mlp([obs + act, *[256] * 3, 1], nn.Mish()) for _ in range(2)]
        self.critics = nn.ModuleList(critics).to(device)
        self.average = copy.deepcopy(self.policy).requires_grad_(False)
        self.targets = copy.deepcopy(self.critics).requires_grad_(False)
        self.optimizers = [adam(self.critics), adam(self.policy)]
        self.done = 0

    def step(self, loss: Tensor, net: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        optimizer.zero_grad()
        loss.backward(inputs=list(net.parameters()))
        nn.utils.clip_grad_norm_(net.parameters(), 5.0)
        optimizer.step()

    def train(self, batch: list[Tensor]) -> None:
        s, a, r, s2, d = batch
        with torch.no_grad():
            q2 = values(self.targets, s2, self.average.sample(s2)).amin(0)
            y = r + 0.99 * (1 - d) * q2
        loss = (values(self.critics, s, a) - y).square().mean(1).sum()
        self.step(loss, self.critics, self.optimizers[0])

        noise = torch.randn_like(a)
        t = torch.randint(DENOISING_STEPS, (len(a),), device=a.device)
        alpha_bar = self.policy.alpha_bar[t + 1, None]
        x = alpha_bar.sqrt() * a + (1 - alpha_bar).sqrt() * noise
        loss = F.mse_loss(self.policy(s, x, t), noise)
        q = values(self.critics, s, self.policy.sample(s))
        k = int(torch.rand(()) > 0.5)
        loss = loss - q[k].mean() / q[1 - k].detach().abs().mean()
        self.step(loss, self.policy, self.optimizers[1])

        if self.done % 5 == 0 and self.done >= 1000:
            soft_update(self.average, self.policy, 0.005)
        soft_update(self.targets, self.critics, 0.005)
        self.done += 1


LEARNERS = {"fql": FQL, "diffusion_ql": DiffusionQL}
