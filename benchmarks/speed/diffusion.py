"""Diffusion Policy's U-Net, learning: the sizes compared, a plain twin, and the authors' file.

Chunks of 16 actions after 2 observations, 100 noise levels, AdamW, a moving average after every
update. Style of the twin: real-stanford/diffusion_policy:diffusion_policy/workspace.
"""

from __future__ import annotations

import copy
import math
import sys
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.speed.clock import ACT, OBS, Clock, arrays, waiting
from benchmarks.speed.eager import plain_fault

HISTORY, WINDOW, LEVELS = 2, 16, 100
# a GPU takes the paper's; a CPU what it learns with in minutes
SIZES = {"cpu": ((64, 128), 128), "cuda": ((256, 512, 1024), 256)}  # widths, chunks of a batch


def settings(device: str) -> dict[str, Any]:
    """Of our own `diffusion_policy`."""
    widths, batch_size = SIZES[device]
    return {"widths": widths, "batch_size": batch_size}


class Windows:
    """Chunks that lie within an episode, from tensors on the device."""

    def __init__(self, data: dict[str, Tensor], batch_size: int) -> None:
        self.data, self.batch_size = data, batch_size
        ends = torch.nonzero(data["timeouts"])[:, 0]
        device = ends.device
        inside = torch.ones(len(data["rewards"]), dtype=torch.bool, device=device)
        for k in range(WINDOW - 1):  # a window may not begin so near to an end
            inside[ends - k] = False
        self.starts = torch.nonzero(inside)[:, 0]

    def sample(self) -> tuple[Tensor, Tensor]:
        """Observations [B, HISTORY, OBS] and actions [B, WINDOW, ACT]."""
        device = self.starts.device
        first = self.starts[torch.randint(len(self.starts), (self.batch_size,), device=device)]
        rows = first[:, None] + torch.arange(WINDOW, device=device)
        return self.data["observations"][rows[:, :HISTORY]], self.data["actions"][rows]


class Block(nn.Module):
    """Two convolutions, what is known between them, and a way around."""

    def __init__(self, inputs: int, outputs: int, known: int) -> None:
        super().__init__()

        def convolution(size: int) -> nn.Sequential:
            layer = nn.Conv1d(size, outputs, 5, padding=2)
            return nn.Sequential(layer, nn.GroupNorm(8, outputs), nn.Mish())

        self.first, self.second = convolution(inputs), convolution(outputs)
        self.film = nn.Sequential(nn.Mish(), nn.Linear(known, 2 * outputs))
        self.skip = nn.Conv1d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x: Tensor, known: Tensor) -> Tensor:
        scale, shift = self.film(known)[..., None].chunk(2, 1)
        return self.second(self.first(x) * scale + shift) + self.skip(x)


class UNet(nn.Module):
    """Along time; [B, T, A], times [B], observations [B, H, O] -> [B, T, A]."""

    def __init__(self, widths: tuple[int, ...]) -> None:
        super().__init__()
        self.size = size = widths[0]
        self.time = nn.Sequential(nn.Linear(size, 4 * size), nn.Mish(), nn.Linear(4 * size, size))
        known, sizes = size + HISTORY * OBS, (ACT, *widths)
        self.down = nn.ModuleList(
            nn.ModuleList([Block(a, b, known), Block(b, b, known)])
            for a, b in zip(sizes, sizes[1:], strict=False)
        )
        self.narrow = nn.ModuleList(nn.Conv1d(w, w, 3, 2, 1) for w in widths[:-1])
        self.middle = nn.ModuleList(Block(widths[-1], widths[-1], known) for _ in range(2))
        self.up = nn.ModuleList(
            nn.ModuleList([Block(2 * b, a, known), Block(a, a, known)])
            for a, b in zip(widths[-2::-1], widths[:0:-1], strict=True)
        )
        self.widen = nn.ModuleList(nn.ConvTranspose1d(w, w, 4, 2, 1) for w in widths[-2::-1])
        self.last = nn.Sequential(
            nn.Conv1d(size, size, 5, padding=2),
            nn.GroupNorm(8, size),
            nn.Mish(),
            nn.Conv1d(size, ACT, 1),
        )

    def forward(self, x: Tensor, times: Tensor, seen: Tensor) -> Tensor:
        half = self.size // 2
        rates = torch.exp(torch.arange(half, device=x.device) * (-math.log(10_000) / (half - 1)))
        angles = times[:, None] * rates
        known = torch.cat(
            [self.time(torch.cat([angles.sin(), angles.cos()], -1)), seen.flatten(1)], -1
        )
        x, kept = x.transpose(1, 2), []
        for k, (first, second) in enumerate(self.down):
            x = second(first(x, known), known)
            kept.append(x)
            x = self.narrow[k](x) if k < len(self.narrow) else x
        for block in self.middle:
            x = block(x, known)
        for (first, second), widen in zip(self.up, self.widen, strict=True):
            x = widen(second(first(torch.cat([x, kept.pop()], 1), known), known))
        return self.last(x).transpose(1, 2)


class Learner:
    """One step of regression on noise, AdamW, and the moving average."""

    def __init__(self, net: Any, device: str) -> None:
        """net: of x, times and observations."""
        self.net, self.average, self.done = net, copy.deepcopy(net), 0
        self.optimizer = torch.optim.AdamW(net.parameters(), 1e-4, (0.95, 0.999), weight_decay=1e-6)
        steps = torch.arange(LEVELS + 1, device=device) / LEVELS
        cosine = torch.cos((steps + 0.008) / 1.008 * torch.pi / 2) ** 2
        self.kept = torch.cumprod(1 - (1 - cosine[1:] / cosine[:-1]).clamp(max=0.999), 0)

    def train(self, batch: tuple[Tensor, Tensor]) -> None:
        seen, actions = batch
        noise = torch.randn_like(actions)
        times = torch.randint(LEVELS, (len(actions),), device=actions.device)
        kept = self.kept[times, None, None]
        x = kept.sqrt() * actions + (1 - kept).sqrt() * noise
        loss = F.mse_loss(self.net(x, times.float(), seen), noise)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.step_average()

    def step_average(self) -> None:
        decay = min(max(0.0, 1 - max(self.done, 1) ** -0.75), 0.9999)
        self.done += 1
        with torch.no_grad():
            for kept, new in zip(self.average.parameters(), self.net.parameters(), strict=True):
                kept.mul_(decay).add_(new, alpha=1 - decay)


def looped(clock: Clock, learner: Any, device: str) -> None:
    """Its training, until the harness ends it."""
    data = {k: torch.from_numpy(v).to(device) for k, v in arrays().items()}
    windows = Windows(data, SIZES[device][1])
    wait = waiting(device)
    clock.fault = partial(plain_fault, learner)
    while True:
        learner.train(windows.sample())
        clock.tick(1, wait)


def eager(clock: Clock, device: str) -> None:
    """The twin."""
    looped(clock, Learner(UNet(SIZES[device][0]).to(device), device), device)


def authors(clock: Clock, checkout: str, device: str) -> None:
    """The network and the moving average of a checkout of real-stanford/diffusion_policy."""
    sys.path.insert(0, checkout)
    from diffusion_policy.model.diffusion.conditional_unet1d import ConditionalUnet1D
    from diffusion_policy.model.diffusion.ema_model import EMAModel

    widths = SIZES[device][0]
    net = ConditionalUnet1D(ACT, None, OBS * HISTORY, widths[0], list(widths), 5, 8, True)
    learner = Learner(Called(net.to(device)), device)
    average = EMAModel(copy.deepcopy(net))
    learner.step_average = lambda: average.step(net)  # type: ignore[method-assign]
    looped(clock, learner, device)


class Called(nn.Module):
    """Their network, told the observations as they have them."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor, times: Tensor, seen: Tensor) -> Tensor:
        return self.net(x, times, global_cond=seen.flatten(1))
